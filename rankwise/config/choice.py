"""Chooses a recipe for `rankwise train --data DIR` by device, available weights and dataset. Flags override it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jsonargparse import Namespace

from rankwise.config.datasets import open_split
from rankwise.config.flags import value_of
from rankwise.config.recipe import config_files
from rankwise.config.settings import DataSettings
from rankwise.data import DetectionDataset
from rankwise.from_dict import from_dict
from rankwise.models.init import read_detector
from rankwise.models.pretrained import locate

#: Environment variable that passes the choice on to the processes of a run.
_SHARED = "RANKWISE_CHOICE"
#: Minimum number of steps: more from random weights than from pretrained ones.
CPU_STEPS, CPU_SCRATCH_STEPS, GPU_STEPS = 1500, 2400, 6000
MOST_EPOCHS = 300
#: Short sides of the input on a CPU: the default, and the maximum for small objects.
CPU_SIDE, CPU_MOST = 320, 480
#: Half of the objects should be at least this large in the input, in pixels.
LARGE_ENOUGH = 32
#: Factor on the learning rate for fine-tuning a trained detector.
FINE_TUNING = 0.3


@dataclass(frozen=True)
class Facts:
    """The properties of a dataset that the choice depends on.

    Attributes:
        images: Number of training images.
        short: Median of the shorter sides.
        long: Median of the longer sides.
        box: Median of the square roots of the box areas, in pixels; 0 without boxes.
    """

    images: int
    short: int
    long: int
    box: float

    @classmethod
    def of(cls, dataset: DetectionDataset) -> Facts:
        """Reads the properties of a dataset."""
        sides = np.array([sorted((record.width, record.height)) for record in dataset.records])
        boxes = np.concatenate([record.boxes[~record.iscrowd] for record in dataset.records])
        sizes = np.sqrt((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))
        short, long = np.median(sides, axis=0).astype(int).tolist()
        return cls(len(dataset), short, long, float(np.median(sizes)) if len(sizes) else 0.0)


@dataclass(frozen=True)
class Choice:
    """A recipe for a machine and a dataset.

    Attributes:
        recipe: Its name.
        flags: Settings adapted to the dataset. Flags of the command line come later and override them.
        lines: Lines to print: what was chosen, why, and how to override it.
    """

    recipe: str
    flags: list[str]
    lines: list[str]


def choose(words: Sequence[str]) -> Choice:
    """Picks a recipe for a dataset, from normalized flags with ``--data.path``."""
    data = DataSettings(
        path=value_of(words, "--data.path") or "shapes",
        train=value_of(words, "--data.train") or "train",
        val=value_of(words, "--data.val") or "val",
        skip_bad=(value_of(words, "--data.skip_bad") or "").lower() in ("true", "yes", "1"),
    )
    facts = Facts.of(open_split(data, "train"))
    gpu = _uses_gpu(value_of(words, "--train.accelerator") or "auto")
    recipe, flags, why = _by_weights(words, gpu)
    lines = [f"recipe    {recipe}: {why}"]
    if not gpu and not value_of(words, "--train.init") and not value_of(words, "--size"):
        short, size = _size(facts)
        flags += [f"--model.input.short_side={short}", f"--model.input.max_side={math.ceil(short * 5 / 96) * 32}"]
        flags += ["--model.neck.extra_levels=0"] if short <= 160 else []
        lines.append(f"size      {size}")
    batch, batch_flags = _batch(words, facts.images, 16 if gpu else 8)
    flags += batch_flags
    if value_of(words, "--train.minutes") in (None, "0") and value_of(words, "--train.epochs") is None:
        steps = GPU_STEPS if gpu else CPU_SCRATCH_STEPS if recipe == "small_scratch" else CPU_STEPS
        epochs = min(MOST_EPOCHS, max(12 if gpu else 6, math.ceil(steps * batch / facts.images)))
        flags += [f"--train.epochs={epochs}"]
        total = epochs * math.ceil(facts.images / batch)
        lines.append(
            f"epochs    {epochs} of {facts.images:,} images, {total:,} steps of {batch}; --minutes 10 sets a time "
            f"budget"
        )
    lines.append(
        f"override  with any flag, such as --epochs 50, --minutes 10 or --size 512, or with a recipe: "
        f"rankwise train {'photos_mobilenet' if gpu else 'own_data'} --data {data.path}"
    )
    return Choice(recipe, [*flags, "--train.evaluate_every=0"], lines)


def prepare(words: list[str], name: str | None) -> tuple[str, list[str], list[str]]:
    """The recipe of a new run, all its flags (those of the choice before those of the user), and the lines to print.

    ``name`` is the recipe if the user named one.
    """
    init, own_data = value_of(words, "--train.init"), value_of(words, "--data.path") is not None
    flags, lines, files = [], [], config_files(words)
    if name is None and not files:
        name = "shapes"
        if own_data:
            choice = shared(words)
            name, flags, lines = choice.recipe, choice.flags, choice.lines
    if init:
        flags.append(f"--model={json.dumps(read_detector(init).settings.without_pretrained().to_dict())}")
        if not init.startswith("torchvision:"):
            words = [*words, f"--train.init={Path(init).absolute()}"]
    recipe = [f"--config={name}"] if name else []
    return name or str(files[-1]), [*recipe, *flags, *words], lines


def shared(words: list[str]) -> Choice:
    """The choice of the first process, which the processes it starts must share."""
    if (known := os.environ.get(_SHARED)) and int(os.environ.get("LOCAL_RANK", "0")):
        return Choice(**json.loads(known))
    choice = choose(words)
    os.environ[_SHARED] = json.dumps(replace(choice, lines=[]).__dict__)
    return choice


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    return torch.cuda.is_available() or torch.backends.mps.is_available()


def _uses_gpu(accelerator: str) -> bool:
    return accelerator in ("cuda", "mps") or (accelerator == "auto" and has_gpu())


def _by_weights(words: Sequence[str], gpu: bool) -> tuple[str, list[str], str]:
    """The recipe by device and available weights, its flags, and the reasons."""
    device = "the larger detector, because there is a GPU" if gpu else "a small detector, because no GPU was found"
    init = value_of(words, "--train.init")
    if init:
        # Muon is faster from random weights only.
        recipe, optimizer, lr = ("own_data", "SGD", 0.01) if gpu else ("small_scratch", "AdamW", 0.0015)
        flags = [f"--optimizer.name={optimizer}", f"--optimizer.lr={lr * FINE_TUNING:g}"]
        return recipe, flags, f"fine-tunes the detector of {init}"
    recipe, name = ("own_data", "resnet50") if gpu else ("photos_mobilenet", "mobilenetv2_100")
    name = value_of(words, "--model.backbone.name") or name
    given = value_of(words, "--model.backbone.pretrained")
    if given is not None and given.lower() not in ("true", "false"):
        return recipe, [], f"{device}; weights of {name} from {given}"
    if given is None or given.lower() == "true":
        found = locate(name)
        if found.kind != "none" or given is not None:
            return recipe, [], f"{device}; ImageNet weights of {name}, {found}"
        reason = f"{found.why}. For trained weights, set --model.backbone.pretrained FILE or --init RUN"
    else:
        reason = "of --model.backbone.pretrained false"
    why = f"{device}; random weights, because {reason}"
    if not gpu:
        return "small_scratch", [], why
    # Frozen random weights would never learn anything.
    return recipe, ["--model.backbone.pretrained=false", "--model.backbone.frozen_stages=0",
                    "--model.backbone.frozen_norm=false"], why  # fmt: skip


def _size(facts: Facts) -> tuple[int, str]:
    """Short side on a CPU, and the reason: the default, more for small objects, at most that of the images."""
    wanted = CPU_SIDE
    if facts.box:
        wanted = max(CPU_SIDE, min(CPU_MOST, math.ceil(facts.short * LARGE_ENOUGH / facts.box / 32) * 32))
    short = max(64, min(wanted, math.ceil(facts.short / 32) * 32))
    box = f", half of the boxes are below {facts.box:.0f} pixels" if facts.box else ""
    return short, f"short side {short}: the images have {facts.short} × {facts.long} pixels{box}"


def _batch(words: Sequence[str], images: int, most: int) -> tuple[int, list[str]]:
    given = value_of(words, "--train.batch_size")
    if given is not None and given != "auto":
        return int(given) if given.isdecimal() and int(given) else most, []  # the parser refuses other values
    batch = automatic_batch(images, most)
    return batch, [] if given else [f"--train.batch_size={batch}", "--train.accumulate=0"]


def automatic_batch(images: int, most: int) -> int:
    """A power of two from 2 to ``most`` that gives at least eight steps per epoch."""
    return int(min(most, max(2, 2 ** int(math.log2(max(1, images / 8))))))


def set_batch_size(config: Namespace) -> None:
    """Replaces ``--batch_size auto`` in a parsed recipe by a number. If GPU memory is short, batches are split."""
    train = config.train
    if train.batch_size != "auto":
        return
    images = len(open_split(from_dict(DataSettings, config.data.as_dict(), "data"), "train"))
    processes = max(1, train.devices)
    batch = automatic_batch(images, 16 if _uses_gpu(train.accelerator) else 8)
    train.batch_size, train.accumulate = -(-batch // processes) * processes, 0
