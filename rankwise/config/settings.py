"""What a recipe says about data and training: plain values, one dataclass for each section of the YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from rankwise.data.transforms import AugmentSettings
from rankwise.errors import SettingsError


@dataclass(frozen=True)
class ShapesSettings:
    """The built-in dataset.

    Args:
        size: Height and width of the images in pixels, at least 32.
        train_images: Number of training images.
        val_images: Number of validation images.
        seed: Another seed, other images.
    """

    size: int = 128
    train_images: int = 4000
    val_images: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(self, "data.shapes", size=32, train_images=1, val_images=1, seed=0)


@dataclass(frozen=True)
class DataSettings:
    """Where images and boxes come from.

    Args:
        path: A folder (COCO, Pascal VOC or YOLO, detected automatically), a ``data.yaml`` or a COCO file, or "shapes"
            for the built-in dataset. ``--data DIR`` is short for ``--data.path DIR``.
        train: Name of the training split.
        val: Name of the validation split.
        skip_bad: Leave out and count faulty images and boxes instead of stopping at them.
        workers: Loader processes; 0 loads in the training process.
        augment: Random changes of the training images.
        shapes: The built-in dataset's settings.
    """

    path: str = "shapes"
    train: str = "train"
    val: str = "val"
    skip_bad: bool = False
    workers: int = 4
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    shapes: ShapesSettings = field(default_factory=ShapesSettings)

    def __post_init__(self) -> None:
        _at_least(self, "data", workers=0)


@dataclass(frozen=True)
class OptimizerSettings:
    """How weights follow gradients.

    Args:
        name: SGD or AdamW.
        lr: Learning rate for the whole batch over all processes.
        momentum: Momentum of SGD, first beta of AdamW.
        weight_decay: Weight decay, left out for norms and biases.
        backbone_lr: Factor on the learning rate of the backbone.
        clip_norm: Largest norm of the whole gradient; 0 does not clip.
    """

    name: Literal["SGD", "AdamW"] = "SGD"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    backbone_lr: float = 1.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, "optimizer", lr=0, momentum=0, weight_decay=0, backbone_lr=0, clip_norm=0)


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate goes.

    Args:
        warmup_steps: Steps in which it rises linearly to its full value; at most a tenth of the run.
        warmup_start: The share of the full value that warm-up starts from.
        decay: "step" divides by ten at each milestone, "cosine" falls to ``final``, "none" stays.
        milestones: Where "step" divides: shares of the run, such as [0.75, 0.9], or epochs, such as [18, 22] of 24.
        final: The share of the full value at which "cosine" ends.
    """

    warmup_steps: int = 500
    warmup_start: float = 0.001
    decay: Literal["step", "cosine", "none"] = "step"
    milestones: tuple[float, ...] = (0.75, 0.9)
    final: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, "schedule", warmup_steps=0, warmup_start=0, final=0)


@dataclass(frozen=True)
class TrainSettings:
    """The training itself.

    Args:
        epochs: How often every training image is seen.
        minutes: A time budget for the whole run, evaluations included. It replaces ``epochs``; 0 is off.
        patience: Evaluations without a better AP after which the run stops; 0 is off.
        init: A trained detector to start from: a run's folder, a .safetensors file, or
            ``torchvision:retinanet_resnet50_fpn_v2`` or ``torchvision:fcos_resnet50_fpn``. Empty starts without one.
        batch_size: Images a step, over all processes; "auto" fits it to the dataset and to the GPU's memory.
        accumulate: Into how many parts each process takes its share of the batch, for memory. The step is that of
            the whole batch, ranked as one: each part runs forward twice. 0 begins with one part and takes more when
            the GPU's memory runs out.
        precision: "32", "bf16" or "16" (mixed precision).
        seed: Decides weights, data order and augmentation.
        ema: Decay of the moving average of the weights, which is then what is evaluated and saved; 0 is off.
        channels_last: Memory format of images and convolutions; often faster.
        compile: Run the detector through ``torch.compile``.
        evaluate_every: Epochs between evaluations; 0 evaluates ten times in a run. The last epoch always is evaluated,
            and there is always an evaluation in the first fifth of a run.
        evaluate_batch: Images at a time in the evaluation, in each process. Images of a batch are padded to one size,
            which may change results a little: so this does not follow the number of processes.
        log_every: Steps between lines of ``metrics.jsonl``.
        checkpoint_minutes: Minutes between checkpoints within an epoch; each epoch's end writes one as well.
        checkpoint_steps: Steps between checkpoints; 0 leaves it to the minutes.
        max_bad_steps: Steps in a row with a loss or gradient that is not finite before the run stops.
        accelerator: "auto", "cpu", "cuda" or "mps".
        devices: Processes on this machine, each with its device. Under ``torchrun`` its number counts.
        threads: CPU threads of each process; 0 leaves it to torch.
    """

    epochs: int = 24
    minutes: float = 0.0
    patience: int = 0
    init: str = ""
    batch_size: int | Literal["auto"] = 16
    accumulate: int = 1
    precision: Literal["32", "bf16", "16"] = "32"
    seed: int = 0
    ema: float = 0.0
    channels_last: bool = False
    compile: bool = False
    evaluate_every: int = 1
    evaluate_batch: int = 8
    log_every: int = 50
    checkpoint_minutes: float = 15.0
    checkpoint_steps: int = 0
    max_bad_steps: int = 5
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = 1
    threads: int = 0

    def __post_init__(self) -> None:
        _at_least(self, "train", epochs=1, minutes=0, patience=0, accumulate=0, evaluate_every=0)
        _at_least(self, "train", evaluate_batch=1, log_every=1)
        _at_least(self, "train", ema=0, checkpoint_minutes=0, checkpoint_steps=0, max_bad_steps=1, threads=0)
        if self.ema >= 1:
            raise SettingsError(f"--train.ema is {self.ema:g}: it must be below 1")

    @property
    def images_per_step(self) -> int:
        """The batch size as a number."""
        if isinstance(self.batch_size, str):
            raise ValueError("--train.batch_size auto: rankwise.config.choice.resolve sets the number before training")
        return self.batch_size


def _at_least(settings: Any, section: str, **least: int) -> None:
    """Refuse numbers that are too small, by the flags that set them."""
    for name, smallest in least.items():
        value = getattr(settings, name)
        if not value >= smallest:
            raise SettingsError(f"--{section}.{name} is {value:g}: it must be at least {smallest}")
