"""The training loop, from a recipe to a folder with a trained detector, read from top to bottom."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

import torch
from lightning_fabric import Fabric
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from rankwise.data.dataset import DetectionDataset
from rankwise.data.loader import build_loader
from rankwise.evaluation.inference import evaluate_detector, evaluate_run
from rankwise.models import Detector
from rankwise.structures import Batch
from rankwise.training.checkpoint import load_checkpoint, remove_parts, save_checkpoint, write_whole
from rankwise.training.criterion import Criterion, Losses
from rankwise.training.datasets import open_datasets
from rankwise.training.processes import build_fabric, share_of_batch
from rankwise.training.recipe import Recipe
from rankwise.training.schedule import build_optimizer, lr_factor, set_lr
from rankwise.training.step import PlainForward, whole_batch_backward
from rankwise.training.tracking import Stopwatch, Tracker


class TrainingStopped(RuntimeError):
    """The run cannot go on; the message says why and what to try."""


class Interrupted(Exception):
    """The run was asked to stop, has saved its state and can go on later."""


@dataclass
class Progress:
    """Where a run is.

    Attributes:
        epoch: The epoch under way, from 0.
        batch: Steps of it that are done; all of them while it is being evaluated.
        step: Steps done in all.
        best_ap: The best AP so far; -1 before the first evaluation.
        skipped: Steps that were not taken because the loss or a gradient was not finite.
        bad_in_a_row: How many of these came last, one after the other.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best_ap: float = -1.0
    skipped: int = 0
    bad_in_a_row: int = 0


def train(recipe: Recipe, folder: Path | None, resume: bool = False) -> None:
    """Trains a detector by a recipe, evaluates it and draws what it sees.

    Args:
        recipe: What to do.
        folder: Where the run goes; rank 0's counts.
        resume: Go on from the folder's last checkpoint.
    """
    fabric = build_fabric(recipe.train)
    fabric.launch()
    folder = Path(fabric.broadcast(str(folder)))
    train_set, val_set = open_datasets(recipe.data, recipe.model.input)
    run = Run(recipe, folder, fabric, train_set, val_set)
    if resume:
        run.restore()
    elif fabric.is_global_zero:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "recipe.yaml", lambda part: _write_text(part, recipe.text))
    fabric.barrier()
    run.fit()
    if fabric.is_global_zero:
        evaluate_run(folder, console=run.tracker.console)
    fabric.barrier()


class Run:
    """A training under way.

    Args:
        recipe: What to do.
        folder: Where it goes.
        fabric: Devices, precision and processes.
        train_set: What to learn from.
        val_set: What to be measured on.
    """

    def __init__(
        self, recipe: Recipe, folder: Path, fabric: Fabric, train_set: DetectionDataset, val_set: DetectionDataset
    ) -> None:
        settings = recipe.train
        self.recipe, self.folder, self.fabric, self.val_set = recipe, folder, fabric, val_set
        torch.manual_seed(settings.seed)
        self.detector = Detector(recipe.model, train_set.classes)
        if settings.channels_last:
            self.detector = self.detector.to(memory_format=torch.channels_last)
        self.criterion = Criterion(recipe.loss, recipe.assign, recipe.box).to(fabric.device)
        self.loader = build_loader(
            train_set,
            batch_size=share_of_batch(settings.batch_size, fabric.world_size) * fabric.world_size,
            shuffle=True,
            seed=settings.seed,
            workers=recipe.data.workers,
            divisor=recipe.model.input.divisor,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        model: nn.Module = PlainForward(self.detector)
        if settings.compile:
            model = torch.compile(model)  # type: ignore[assignment]
        self.model, self.optimizer = fabric.setup(model, build_optimizer(self.detector, recipe.optimizer))
        self.ema = ModelEmaV3(self.detector, decay=settings.ema, use_warmup=True) if settings.ema else None
        self.watch = Stopwatch(fabric.device)
        self.progress = Progress()
        self.steps_per_epoch = len(self.loader)
        self._last_save = time.monotonic()

    @property
    def evaluated(self) -> Detector:
        """The detector that is measured and saved: the average of the weights where there is one."""
        return self.ema.module if self.ema is not None else self.detector

    def fit(self) -> None:
        """Trains to the end, evaluating and saving as the recipe says."""
        settings, at = self.recipe.train, self.progress
        self.tracker = Tracker(
            self.folder, settings.epochs, self.steps_per_epoch, settings.log_every, self.fabric.is_global_zero, at.step
        )
        self.tracker.ap = at.best_ap if at.best_ap >= 0 else None
        for note in (*self.loader.dataset.notes, *self.val_set.notes):
            self.tracker.say(note)
        with stop_signals() as stop, self.tracker.display(at.step):
            while at.epoch < settings.epochs:
                self.train_epoch(stop)
                if (at.epoch + 1) % settings.evaluate_every == 0 or at.epoch + 1 == settings.epochs:
                    self.evaluate()
                at.epoch, at.batch = at.epoch + 1, 0
                self.save()
        self.tracker.say(self.watch.sentence())
        self.tracker.close()

    def train_epoch(self, stop: StopFlag) -> None:
        """The steps of an epoch that are left."""
        settings, at = self.recipe.train, self.progress
        self.detector.train()
        watch = self.watch
        batches = iter(self.loader.epoch(at.epoch, start=at.batch))
        while at.batch < self.steps_per_epoch:
            watch.start_step((at.step + 1) % settings.log_every == 0)
            with watch.part("wait"):
                batch = next(batches).to(self.fabric.device)
            factor = lr_factor(at.step, self.recipe.schedule, self.steps_per_epoch, settings.epochs)
            lr = set_lr(self.optimizer, factor)
            values = self.train_step(batch, watch)
            at.step, at.batch = at.step + 1, at.batch + 1
            if self.tracker.step(at.step, at.epoch, values, len(batch.targets) * self.fabric.world_size):
                self.tracker.log(at.step, at.epoch, lr, {"skipped": at.skipped, "seconds": watch.seconds()})
            if self.agree(stop.raised):
                self.save()
                raise Interrupted
            if self.save_is_due():
                self.save()
        # A kill during the evaluation costs no training.
        self.save()

    def train_step(self, batch: Batch, watch: Stopwatch) -> dict[str, Tensor]:
        """One step of the optimiser; returns what the log shows of it."""
        settings, clip = self.recipe.train, self.recipe.optimizer.clip_norm
        # Dropout and the like depend on the step alone, so that a resumed run does as if it had never stopped.
        torch.manual_seed(settings.seed * 1_000_003 + self.progress.step * 1009 + self.fabric.global_rank)
        if settings.channels_last:
            batch = Batch(batch.images.to(memory_format=torch.channels_last), batch.targets)
        losses = whole_batch_backward(self.fabric, self.model, self.criterion, batch, settings.accumulate, watch)
        with watch.part("optimizer"):
            norm = self.fabric.clip_gradients(
                self.model, self.optimizer, max_norm=clip or math.inf, error_if_nonfinite=False
            )
            assert norm is not None
            if self.is_bad(losses, norm, batch):
                self.optimizer.zero_grad(set_to_none=True)
                return {}
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.ema is not None:
                self.ema.update(self.detector, step=self.progress.step)
        return {**losses.terms, **losses.log, "gradient_norm": norm}

    def is_bad(self, losses: Losses, norm: Tensor, batch: Batch) -> bool:
        """Whether the step must not be taken, agreed upon by all processes; says why, and stops after too many."""
        at = self.progress
        finite = torch.isfinite(losses.total.detach()) & torch.isfinite(norm)
        if not self.agree(not bool(finite)):
            at.bad_in_a_row = 0
            return False
        at.skipped, at.bad_in_a_row = at.skipped + 1, at.bad_in_a_row + 1
        names = [str(target.get("name", target.get("image_id", "?"))) for target in batch.targets]
        parts = {name: float(value) for name, value in {**losses.terms, "gradient_norm": norm}.items()}
        wrong = ", ".join(f"{name} {value}" for name, value in parts.items() if not math.isfinite(value)) or "elsewhere"
        self.tracker.say(f"step {at.step + 1} skipped: not finite: {wrong}; images: {', '.join(names)}")
        self.tracker.write({"kind": "skipped", "step": at.step + 1, "epoch": at.epoch, "why": wrong, "images": names})
        if at.bad_in_a_row >= self.recipe.train.max_bad_steps:
            raise TrainingStopped(
                f"{at.bad_in_a_row} steps in a row were not finite ({wrong}). The learning rate is "
                f"{self.optimizer.param_groups[0]['lr']:.2g}: try a tenth of it (--optimizer.lr), a longer warm-up "
                f"(--schedule.warmup_steps) or --optimizer.clip_norm 10; with --train.precision 16 try bf16. "
                f"Last images: {', '.join(names)}. The last checkpoint is from before: {self.folder / 'last.ckpt'}"
            )
        return True

    def agree(self, flag: bool) -> bool:
        """True on all processes if it is on any."""
        if self.fabric.world_size == 1:
            return flag
        return bool(self.fabric.all_reduce(torch.tensor(float(flag), device=self.fabric.device), reduce_op="sum") > 0)

    def evaluate(self) -> None:
        """Measures the detector on the validation images and keeps it if it is the best so far."""
        at, settings = self.progress, self.recipe.train
        start = time.monotonic()
        result = evaluate_detector(
            self.evaluated,
            self.val_set,
            batch_size=share_of_batch(settings.batch_size, self.fabric.world_size),
            workers=self.recipe.data.workers,
            fabric=self.fabric,
        )
        if result is not None:  # on rank 0
            ap = -1.0 if result.ap is None else result.ap
            line = {"kind": "eval", "step": at.step, "epoch": at.epoch, "seconds": round(time.monotonic() - start, 2)}
            self.tracker.write({**line, "ap": result.ap, "ap50": result.ap50, "ap75": result.ap75})
            best = ap > at.best_ap
            self.tracker.say(
                f"epoch {at.epoch + 1}: AP {_shown(result.ap)}  AP50 {_shown(result.ap50)}  AP75 {_shown(result.ap75)}"
                f"{'  (best so far)' if best else ''}"
            )
            if best:
                at.best_ap = ap
                write_whole(self.folder / "best.safetensors", self.evaluated.save)
            self.tracker.ap = ap
        self.fabric.barrier()

    def save_is_due(self) -> bool:
        """Whether a checkpoint within the epoch is due."""
        steps, minutes = self.recipe.train.checkpoint_steps, self.recipe.train.checkpoint_minutes
        if steps and self.progress.step % steps == 0:
            return True
        return minutes > 0 and time.monotonic() - self._last_save > 60 * minutes

    def save(self) -> None:
        """Writes the whole state of the run to ``last.ckpt``."""
        self._last_save = time.monotonic()
        if not self.fabric.is_global_zero:
            return
        state = {
            "progress": asdict(self.progress),
            "detector": self.detector.state_dict(),
            "criterion": self.criterion.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.module.state_dict() if self.ema is not None else None,
            "precision": self.fabric.strategy.precision.state_dict(),
            "classes": list(self.detector.classes),
        }
        save_checkpoint(self.folder / "last.ckpt", state)

    def restore(self) -> None:
        """Takes up the state of ``last.ckpt``."""
        if self.fabric.is_global_zero:
            remove_parts(self.folder)
        state = load_checkpoint(self.folder / "last.ckpt")
        if state["classes"] != list(self.detector.classes):
            raise TrainingStopped(
                f"the dataset's classes have changed since {self.folder} was trained: "
                f"they were {state['classes']}, now {list(self.detector.classes)}"
            )
        self.detector.load_state_dict(state["detector"])
        self.criterion.load_state_dict(state["criterion"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.ema is not None and state["ema"] is not None:
            self.ema.module.load_state_dict(state["ema"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.progress = Progress(**state["progress"])


class StopFlag:
    """Whether a signal to stop has come."""

    raised = False


@contextmanager
def stop_signals() -> Iterator[StopFlag]:
    """Turns SIGTERM and Ctrl-C into a flag, so that the step is finished and saved; a second Ctrl-C ends at once."""
    flag = StopFlag()

    def raise_flag(number: int, frame: FrameType | None) -> None:
        if flag.raised and number == signal.SIGINT:
            raise KeyboardInterrupt
        flag.raised = True

    previous = {number: signal.signal(number, raise_flag) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield flag
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
