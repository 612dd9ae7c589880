"""Settings of data and training, one dataclass per section of a recipe."""

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
        seed: Random seed of the images.
    """

    size: int = 128
    train_images: int = 4000
    val_images: int = 250
    seed: int = 0

    def __post_init__(self) -> None:
        _at_least(self, "data.shapes", size=32, train_images=1, val_images=1, seed=0)


@dataclass(frozen=True)
class DataSettings:
    """The dataset and its loading.

    Args:
        path: Dataset folder (COCO, Pascal VOC or YOLO), data.yaml or COCO file; "shapes" is the built-in dataset. The
            format is detected automatically. ``--data DIR`` is short for ``--data.path DIR``.
        train: Name of the training split.
        val: Name of the validation split.
        skip_bad: Skip and count faulty images and boxes instead of stopping.
        workers: Loader processes, at most one per core that the process may use; 0 loads in the training process.
        balance: Sample images of rare classes more often: images with a class that is in a smaller fraction of the
            images than this are repeated max(1, √(balance / fraction)) times. True uses the fraction of the median
            class, False repeats nothing.
        augment: Augmentation of the training images.
        shapes: Settings of the built-in dataset.
    """

    path: str = "shapes"
    train: str = "train"
    val: str = "val"
    skip_bad: bool = False
    workers: int = 4
    balance: bool | float = False
    augment: AugmentSettings = field(default_factory=AugmentSettings)
    shapes: ShapesSettings = field(default_factory=ShapesSettings)

    def __post_init__(self) -> None:
        _at_least(self, "data", workers=0, balance=0)
        if self.balance > 1:
            raise SettingsError(f"--data.balance is {self.balance:g}: it is a fraction of the images, at most 1")


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer.

    Args:
        name: SGD, AdamW or Muon, which orthogonalizes the step of each layer and is AdamW for all other weights. From
            random weights, Muon needs far fewer steps.
        lr: Learning rate, for the global batch of all processes.
        momentum: Momentum of SGD, first beta of AdamW and Muon.
        weight_decay: Weight decay, not applied to norms and biases.
        backbone_lr: Factor on the learning rate of the backbone.
        clip_norm: Maximum norm of the gradient; 0 turns clipping off.
    """

    name: Literal["SGD", "AdamW", "Muon"] = "SGD"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-4
    backbone_lr: float = 1.0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, "optimizer", lr=0, momentum=0, weight_decay=0, backbone_lr=0, clip_norm=0)
        if self.momentum >= 1:
            raise SettingsError(f"--optimizer.momentum is {self.momentum:g}: it must be below 1")


@dataclass(frozen=True)
class ScheduleSettings:
    """The learning rate schedule.

    Args:
        warmup_steps: Steps of linear warm-up; at most a tenth of the run.
        warmup_start: Factor on the learning rate at the start of the warm-up.
        decay: "step" divides by ten at each milestone, "cosine" decays to ``final``, "none" keeps it constant.
        milestones: Where "step" divides: fractions of the run, such as [0.75, 0.9], or epochs, such as [18, 22] of 24.
        final: Factor on the learning rate at the end of "cosine".
    """

    warmup_steps: int = 500
    warmup_start: float = 0.001
    decay: Literal["step", "cosine", "none"] = "step"
    milestones: tuple[float, ...] = (0.75, 0.9)
    final: float = 0.0

    def __post_init__(self) -> None:
        _at_least(self, "schedule", warmup_steps=0, warmup_start=0, final=0)
        if not all(milestone > 0 for milestone in self.milestones):
            raise SettingsError(f"--schedule.milestones is {list(self.milestones)}: all must be above 0")


@dataclass(frozen=True)
class TrainSettings:
    """The training loop.

    Args:
        epochs: Number of epochs.
        minutes: Time budget for the whole run, including evaluations. It replaces ``epochs``; 0 turns it off.
        patience: Stop after this many evaluations without a better AP; 0 turns it off.
        init: A trained detector to start from: a run folder, a .safetensors file or ``torchvision:NAME``. NAME is
            retinanet_resnet50_fpn_v2 or fcos_resnet50_fpn. Empty for none.
        batch_size: Images per step, over all processes; "auto" adapts it to the dataset and the GPU memory.
        accumulate: Number of parts into which each process splits its batch to save memory. The parts are still ranked
            together; each part runs forward twice. 0 starts with one part and splits further when GPU memory runs out.
        precision: "32", "bf16" or "16" (mixed precision).
        seed: Random seed of initial weights, data order and augmentation, 0 to 4294967295.
        ema: Decay of the moving average of the weights, which is evaluated and saved instead of the weights; 0 turns it
            off.
        channels_last: Use the memory format channels_last; often faster.
        compile: Compile the detector, and on a GPU the criterion, with ``torch.compile``.
        evaluate_every: Epochs between evaluations; 0 evaluates ten times per run. A run is always evaluated in its
            first fifth and at its end.
        evaluate_batch: Evaluation batch size of each process. Images of a batch are padded to the same size, which may
            change results slightly, so it does not depend on the number of processes.
        log_every: Steps between log lines in ``metrics.jsonl``.
        checkpoint_minutes: Minutes between checkpoints within an epoch. Epochs end with a checkpoint too, unless they
            are so short that writing it would take more than a twentieth of the time.
        checkpoint_steps: Steps between checkpoints; 0 uses ``checkpoint_minutes`` only.
        max_bad_steps: Stop after this many consecutive steps with a loss or gradient that is not finite.
        accelerator: "auto", "cpu", "cuda" or "mps". The variable CUDA_VISIBLE_DEVICES chooses among several GPUs.
        devices: Number of processes on this machine, one per device. ``torchrun`` overrides it.
        threads: CPU threads per process; 0 uses the default of torch.
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
        _at_least(self, "train", evaluate_batch=1, log_every=1, seed=0)
        _at_least(self, "train", ema=0, checkpoint_minutes=0, checkpoint_steps=0, max_bad_steps=1, threads=0)
        if self.batch_size != "auto":
            _at_least(self, "train", batch_size=1)
        if self.ema >= 1:
            raise SettingsError(f"--train.ema is {self.ema:g}: it must be below 1")
        if self.seed >= 2**32:
            raise SettingsError(f"--train.seed is {self.seed}: it must be below {2**32}")
        if self.threads > 1024:  # OpenMP crashes where it cannot start them
            raise SettingsError(f"--train.threads is {self.threads}: it must be at most 1024")

    @property
    def images_per_step(self) -> int:
        """The batch size as a number."""
        if isinstance(self.batch_size, str):
            raise ValueError(
                "--train.batch_size auto: call rankwise.config.choice.set_batch_size first, which sets the number"
            )
        return self.batch_size


def _at_least(settings: Any, section: str, **least: int) -> None:
    """Refuses values that are too small and names their flags."""
    for name, smallest in least.items():
        value = getattr(settings, name)
        if not value >= smallest:
            raise SettingsError(f"--{section}.{name} is {value:g}: it must be at least {smallest}")
