"""The training loop, from a recipe to a folder with a trained detector. Read it from top to bottom."""

from __future__ import annotations

import math
import signal
import time
from itertools import chain
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import Recipe
from rankwise.criterion import Criterion
from rankwise.data.dataset import DetectionDataset
from rankwise.data.loader import build_loader
from rankwise.distributed import (
    StoppedElsewhere,
    all_gather_objects,
    all_raise,
    all_reduce_any,
    barrier_and_close,
    broadcast_buffers,
)
from rankwise.errors import DataError
from rankwise.evaluation.inference import evaluate_detector, evaluate_run
from rankwise.evaluation.results import EvaluatedRun
from rankwise.evaluation.tabulate import decimals
from rankwise.files.names import counted
from rankwise.files.writing import make_folder, write_text
from rankwise.models import Detector
from rankwise.models.init import initialize
from rankwise.training import diagnostics
from rankwise.training.average import MovingAverage
from rankwise.training.checkpoint import LAST, save_checkpoint
from rankwise.training.diagnostics import Symptoms, TrainingStopped
from rankwise.training.folders import changes
from rankwise.training.lock import lock_run
from rankwise.training.plan import Clock, Plan, fit_to_budget
from rankwise.training.prefetch import Prefetcher
from rankwise.training.processes import Decision, launch
from rankwise.training.schedule import build_optimizer, head_lr, lr_factor, set_lr, unreached
from rankwise.training.signals import Interrupted, StopFlag, stop_signals
from rankwise.training.start import announcement
from rankwise.training.state import Progress, RunState, fixed_settings, read_checkpoint
from rankwise.training.step import Buffers, Parts, PlainForward, compile_errors, compile_step, finite
from rankwise.training.tracking import Stopwatch, Tracker
from rankwise.types import Batch, Predictions


def train(recipe: Recipe, folder: Path | None, resume: bool = False, checkpoint: str = LAST) -> EvaluatedRun | None:
    """Trains a detector with a recipe and evaluates it; returns the evaluation on rank 0.

    Args:
        recipe: The recipe.
        folder: The run folder; that of rank 0 is used.
        resume: Resume from the checkpoint in the folder, or from the start if there is none yet; that of rank 0 is
            used.
        checkpoint: Name of the checkpoint to resume from.
    """
    fabric = launch(recipe.train)
    shared, resume = fabric.broadcast((str(folder), resume))
    folder = Path(shared)
    try:
        with all_raise():
            train_set, val_set = open_datasets(recipe.data, recipe.model.input)
        with lock_run(folder):
            run = Run(recipe, folder, fabric, train_set, val_set, resume, checkpoint)
            run.fit()
            barrier_and_close()
            if not fabric.is_global_zero:
                return None
            return evaluate_run(folder, device=str(fabric.device), console=run.tracker.console)
    except (RuntimeError, MemoryError, OSError) as error:
        raise diagnostics.with_advice(error, folder, fabric.global_rank) from error


class Run:
    """A training run in a folder, from a recipe and its datasets, new or resumed from a checkpoint."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        fabric: Fabric,
        train_set: DetectionDataset,
        val_set: DetectionDataset,
        resume: bool = False,
        checkpoint: str = LAST,
    ) -> None:
        settings = recipe.train
        self.recipe, self.folder, self.fabric, self.val_set = recipe, folder, fabric, val_set
        saved = read_checkpoint(folder, checkpoint, fabric) if resume else None
        with all_raise():
            torch.manual_seed(settings.seed)
            self.detector = Detector(recipe.model.without_pretrained() if saved else recipe.model, train_set.classes)
            self.weights = initialize(self.detector, recipe.train.init) if not saved else "those of last.ckpt"
            if settings.channels_last:
                self.detector = self.detector.to(memory_format=torch.channels_last)
            self.criterion = Criterion(recipe.loss, recipe.assign, recipe.box).to(fabric.device)
            self.loader = build_loader(
                train_set,
                batch_size=settings.images_per_step,
                shuffle=True,
                seed=settings.seed,
                workers=recipe.data.workers,
                divisor=recipe.model.input.divisor,
                colour=recipe.model.input.mean_colour,
                rank=fabric.global_rank,
                world_size=fabric.world_size,
                pin_memory=fabric.device.type == "cuda",
                balance=recipe.data.balance,
            )
        model: nn.Module = PlainForward(self.detector)
        if settings.compile:
            model = compile_step(model, self.criterion, fabric.device)
        self.scaler = getattr(fabric.strategy.precision, "scaler", None)  # with 16-bit floats
        optimizer = build_optimizer(self.detector, recipe.optimizer, self.scaler is not None)
        self.model, self.optimizer = fabric.setup(model, optimizer)
        self.ema = MovingAverage(self.detector, settings.ema) if settings.ema else None
        self.buffers = Buffers(self.detector, self.criterion)
        self.watch = Stopwatch(fabric.device)
        self.progress = Progress()
        fixed = fixed_settings(recipe, train_set)
        self.state = RunState(
            self.detector, self.criterion, self.optimizer, self.ema, fabric.strategy.precision, fixed, self.progress
        )
        self._last_save, self._save_seconds = time.monotonic(), 0.0
        self._known_faults: set[str] = set()
        with all_raise():
            if saved:
                self.state.load_state_dict(saved)
            at = self.progress
            self.plan = Plan.of(settings, len(self.loader), at)
            if fabric.is_global_zero:
                make_folder(folder)
                changed = changes(folder, recipe.text, self.is_done()) if saved else {}
                write_text(folder / "recipe.yaml", recipe.text)
            # Without gradients, an image takes about a third of the training time.
            self.clock = Clock(len(val_set) / settings.images_per_step / 3, at.seconds)
            self.tracker = Tracker(folder, fabric, self.plan, self.clock, settings.log_every, at.step, at.evaluated)
        self.parts = Parts(settings.accumulate, fabric.world_size, self.undo, self.tracker.print)
        if resume:
            start = f"resuming after step {at.step}" if saved else "no checkpoint yet: starting from the beginning"
            self.tracker.print("all epochs are done" if self.is_done() else start)
            if saved and fabric.is_global_zero and changed:
                self.tracker.print(
                    "with other settings: " + ", ".join(f"{k} {a} → {b}" for k, (a, b) in changed.items())
                )
                self.tracker.write({"kind": "changed", "step": at.step, "epoch": at.epoch, "settings": changed})

    @property
    def evaluated(self) -> Detector:
        """The detector that is evaluated and saved: the moving average of the weights if there is one."""
        return self.ema.module if self.ema is not None else self.detector

    def fit(self) -> None:
        """Trains to the end, with evaluations and checkpoints as set in the recipe."""
        at = self.progress
        self.tracker.ap = at.best_ap if at.best_ap >= 0 else None
        train_set, val_set = self.loader.dataset, self.val_set
        lines = announcement(self.recipe, self.folder, self.fabric.device, train_set, val_set, self.weights)
        for line in dict.fromkeys([*lines, *train_set.notes, *val_set.notes, *self.state.notes]):
            self.tracker.print(line)
        if warning := unreached(self.recipe.schedule, self.plan.steps_per_epoch, self.plan.steps):
            self.tracker.print(warning)
        children = getattr(self.fabric.strategy.launcher, "procs", [])
        try:
            with compile_errors(self.folder), stop_signals(children) as stop, self.tracker.display(at.step):
                if self.recipe.train.init and at.step == 0:
                    self.evaluate(stop)  # fine-tuning on few images can end below its start, which then stays the best
                while not self.is_done():
                    self.train_epoch(stop)
                    if at.batch == self.plan.steps_per_epoch:
                        at.epoch, at.batch = at.epoch + 1, 0
                    # An epoch of a few images takes less time than writing a checkpoint.
                    due = self.fabric.is_global_zero and time.monotonic() - self._last_save > 20 * self._save_seconds
                    if self.is_done() or all_reduce_any(due)[0]:
                        self.save()
            self.tracker.summarize(self.watch, at.skipped, at.faults)
        except DataError as error:  # an unreadable image
            again = f"rankwise train --resume {self.folder}"
            raise DataError(
                f"{error}\nThe run is saved. With a good image in its place, resume with: {again}\n"
                f"To skip unreadable images: {again} --data.skip_bad true"
            ) from error
        finally:
            self.tracker.close()
            self.loader.close()

    def is_done(self) -> bool:
        """Whether the run has done its steps and its last evaluation, or has run out of patience."""
        at, patience = self.progress, self.recipe.train.patience
        out_of_patience = bool(patience) and at.stale >= patience
        return out_of_patience or (at.step >= self.plan.steps and at.evaluated >= at.step)

    def train_epoch(self, stop: StopFlag) -> None:
        """Runs the remaining steps of an epoch, including evaluations."""
        settings, at, watch, plan = self.recipe.train, self.progress, self.watch, self.plan
        self.evaluate_if_due(stop)  # if the run was stopped during an evaluation
        self.detector.train()
        source = self.loader.epoch(at.epoch, start=at.batch)
        self.batches = Prefetcher(source, self.fabric.device, settings.channels_last)
        while at.batch < plan.steps_per_epoch and at.step < plan.steps and not self.is_done():
            watch.start_step((at.step + 1) % settings.log_every == 0)
            with watch.stage("wait"):
                batch = self.batches.next()
            set_lr(self.optimizer, lr_factor(at.step, self.recipe.schedule, plan.steps_per_epoch, plan.steps))
            values, decision = self.train_step(batch, stop)
            at.step, at.batch = at.step + 1, at.batch + 1
            self.clock.step()
            if warning := fit_to_budget(plan, self.clock, at, settings.minutes, self.fabric.broadcast):
                self.tracker.print(warning)
            images = min(settings.images_per_step, self.loader.images - (at.batch - 1) * settings.images_per_step)
            if self.tracker.step(at.step, at.epoch, values, images):
                extra = {"skipped": at.skipped, "seconds": watch.seconds()}
                self.tracker.log(at.step, at.epoch, head_lr(self.optimizer), extra)
            if decision.save or decision.stop:
                self.save()
            if decision.stop:
                raise Interrupted(stop.number or signal.SIGTERM)
            self.evaluate_if_due(stop)

    def evaluate_if_due(self, stop: StopFlag) -> None:
        """Evaluates if the plan says so. Saves first, so that a kill loses no training steps."""
        at = self.progress
        if at.evaluated < at.step and self.plan.is_due(at.step):
            self.save()
            self.evaluate(stop)
            at.evaluated = at.step

    def train_step(self, batch: Batch | Exception, stop: StopFlag) -> tuple[dict[str, Tensor], Decision]:
        """One optimizer step; returns the values for the log and the decision of all processes."""
        at, clip = self.progress, self.recipe.optimizer.clip_norm
        if isinstance(batch, Exception):
            self.decide(stop, None, None)
            self.save()
            raise batch
        # Dropout and the like depend only on the step, so that a resumed run behaves like an uninterrupted one.
        torch.manual_seed(self.recipe.train.seed * 1_000_003 + at.step * 1009 + self.fabric.global_rank)
        self.buffers.save()
        decision, symptoms = Decision(), Symptoms()
        seen: list[Predictions] = []

        def is_usable(predictions: Predictions) -> bool:
            nonlocal decision, symptoms
            seen.append(predictions.detach())
            decision = self.decide(stop, batch, predictions)
            if decision.bad:
                symptoms = diagnostics.symptoms_of_predictions(predictions, batch)
            return not decision.bad and not decision.failed

        losses = self.parts.backward(self.fabric, self.model, self.criterion, batch, self.watch, is_usable)
        if decision.failed:
            self.buffers.restore()
            self.save()
            raise StoppedElsewhere
        if decision.faults:
            self.report_faults(batch)
        if losses is None:
            self.skip(symptoms)
            return {}, decision
        with self.watch.stage("optimizer"):
            norm = self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=clip or math.inf, error_if_nonfinite=False
            )
            assert norm is not None
            self.batches.look_ahead()
            # The only point where the host waits for the GPU. All processes agree, because they share the gradient.
            if not bool(torch.isfinite(norm)):
                found = diagnostics.symptoms_of_predictions(seen[-1], batch)
                if not found.wrong:
                    found = diagnostics.symptoms_of_losses(losses.terms, norm, self.detector, batch)
                self.skip(found, self.lower_scale(losses.terms))
                return {}, decision
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.ema is not None:
                self.ema.update(at.step)
        at.bad_in_a_row = 0
        return {**losses.log, **losses.terms, "gradient_norm": norm}, decision

    def decide(self, stop: StopFlag, batch: Batch | None, predictions: Predictions | None) -> Decision:
        """What all processes do in this step, agreed by the only message per step."""
        # On a GPU this would wait for the device. There, bad predictions make the loss and all gradients NaN instead.
        on_host = self.fabric.device.type == "cpu"
        bad = on_host and predictions is not None and not bool(finite(predictions))
        faults = batch is not None and any(target.get("fault") for target in batch.targets)
        steps, minutes = self.recipe.train.checkpoint_steps, self.recipe.train.checkpoint_minutes
        due = steps > 0 and (self.progress.step + 1) % steps == 0
        if minutes > 0 and self.fabric.is_global_zero:
            due = due or time.monotonic() - self._last_save > 60 * minutes
        return Decision(*all_reduce_any(stop.raised, batch is None, bad, faults, due))

    def skip(self, symptoms: Symptoms, normal: bool = False) -> None:
        """Skips a step, reports why, and stops the run after too many consecutive ones, unless that is ``normal`` now
        and then."""
        at = self.progress
        self.undo()
        at.skipped, at.bad_in_a_row = at.skipped + 1, at.bad_in_a_row + (not normal)
        everyone = diagnostics.joined(all_gather_objects(symptoms))
        wrong, images = ", ".join(everyone.wrong), list(everyone.images)
        self.tracker.print(f"step {at.step + 1} skipped: not finite: {wrong}; images: {', '.join(images)}")
        self.tracker.write({"kind": "skipped", "step": at.step + 1, "epoch": at.epoch, "why": wrong, "images": images})
        if at.bad_in_a_row >= self.recipe.train.max_bad_steps:
            if not self.fabric.is_global_zero:
                raise StoppedElsewhere
            lr, precision = head_lr(self.optimizer), self.recipe.train.precision
            raise TrainingStopped(
                diagnostics.diagnosis(everyone, at.bad_in_a_row, lr, precision, self.detector, self.folder)
            )

    def undo(self) -> None:
        """Discards gradients and statistics of a skipped step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.buffers.restore()

    def lower_scale(self, terms: dict[str, Tensor]) -> bool:
        """With 16-bit floats, lowers the loss scale; True if the scale was too high."""
        if self.scaler is None:
            return False
        was_high = self.scaler.get_scale() > 1
        self.scaler.update()
        return was_high and all(math.isfinite(float(value.detach())) for value in terms.values())

    def report_faults(self, batch: Batch) -> None:
        """Counts and names the unreadable images of the batch, of all processes."""
        faults = [(str(target["name"]), target["fault"]) for target in batch.targets if target.get("fault")]
        at = self.progress
        for name, why in chain(*all_gather_objects(faults)):
            at.faults += 1
            self.tracker.write({"kind": "fault", "step": at.step + 1, "epoch": at.epoch, "image": name, "why": why})
            self.print_fault(name, why)

    def print_fault(self, name: str, why: str) -> None:
        """Reports a skipped image, once."""
        if name not in self._known_faults:
            self._known_faults.add(name)
            self.tracker.print(f"image skipped: {why}")

    def evaluate(self, stop: StopFlag) -> None:
        """Evaluates the detector on the validation images and saves it if it is the best so far."""
        at, settings = self.progress, self.recipe.train
        start = time.monotonic()
        broadcast_buffers(self.evaluated)
        result, faults = evaluate_detector(
            self.evaluated,
            self.val_set,
            batch_size=settings.evaluate_batch,
            workers=self.recipe.data.workers,
            stopped=lambda: stop.raised,
        )
        if all_reduce_any(stop.raised)[0]:
            raise Interrupted(stop.number or signal.SIGTERM)
        for name, why in faults.items():
            self.print_fault(name, why)
        self.clock.evaluation(time.monotonic() - start)
        best = False
        with all_raise():
            if result is not None:  # on rank 0
                ap = -1.0 if result.ap is None else result.ap
                seconds = round(time.monotonic() - start, 2)
                line = {"kind": "eval", "step": at.step, "epoch": at.epoch, "seconds": seconds, "faults": len(faults)}
                self.tracker.write({**line, "ap": result.ap, "ap50": result.ap50, "ap75": result.ap75})
                # Without validation objects there is no AP: the latest detector is then as good as any.
                best = ap > at.best_ap or result.ap is None
                when = f"epoch {at.epoch + 1}" if at.step else "before training"
                self.tracker.print(
                    f"{when}: AP {decimals(result.ap)}  AP50 {decimals(result.ap50)}  "
                    f"AP75 {decimals(result.ap75)}{'  (best so far)' if best else ''}"
                )
                if best:
                    at.best_ap = ap
                    self.evaluated.save(self.folder / "best.safetensors")
                self.tracker.ap = result.ap
        at.stale = 0 if all_reduce_any(best)[0] else at.stale + 1
        if self.is_done() and at.step < self.plan.steps:
            evaluations = counted(at.stale, "evaluation")
            self.tracker.print(f"{evaluations} without a better AP (--train.patience): stopping the run")

    def save(self) -> None:
        """Writes the whole state of the run to ``last.ckpt``."""
        start = time.monotonic()
        if self.recipe.train.minutes:  # otherwise a checkpoint depends only on the training
            self.progress.seconds = self.clock.spent
        with all_raise():
            if self.fabric.is_global_zero:
                if broken := diagnostics.broken_weight(self.detector):  # keep the previous checkpoint
                    lr, precision = head_lr(self.optimizer), self.recipe.train.precision
                    raise TrainingStopped(diagnostics.broken_weight_message(broken, lr, precision, self.folder))
                save_checkpoint(self.folder / LAST, self.state.state_dict())
        self._last_save = time.monotonic()
        self._save_seconds = self._last_save - start
