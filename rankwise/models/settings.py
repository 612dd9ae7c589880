"""All settings of a detector, as plain values for recipes, the command line and weights files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rankwise.files.names import escaped, shortened
from rankwise.from_dict import MOST_VALUES, from_dict
from rankwise.images.settings import LEAST_SIDE, MOST_SIDE, InputSettings, require

#: timm arguments that rankwise sets itself or that load files. Settings may come from untrusted weights, and timm would
#: unpickle the file of ``checkpoint_path``.
_NOT_FOR_ARGS = frozenset(
    {
        "features_only",
        "out_indices",
        "model_name",
        "pretrained",
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "checkpoint_path",
        "cache_dir",
        "scriptable",
    }
)


#: Upper limit of channels, layers and the like, so that a small file cannot cause excessive work.
MOST = 100_000


def _require_small(value: Any, where: str, depth: int = 0) -> None:
    """Refuses values that no backbone constructor needs: huge numbers, long lists, deep nesting."""
    if isinstance(value, dict | list | tuple):
        require(len(value) <= MOST_VALUES and depth < 5, f"{where} has {len(value):,} values, or is nested too deeply")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _require_small(item, f"{where}.{escaped(name)[:50]}", depth + 1)
    elif isinstance(value, str):
        require(len(value) <= 1000, f"{where} is a text of {len(value):,} characters")
    elif isinstance(value, int | float):
        require(abs(value) <= MOST, f"{where} is {shortened(value)}: the limit is {MOST}")


@dataclass(frozen=True)
class BackboneSettings:
    """The backbone: any timm network that returns features of several strides.

    Args:
        name: Name in timm, such as resnet50, resnext101_64x4d, res2net101d or mobilenetv2_100, optionally with a
            weights tag, such as resnet50.tv_in1k for those of torchvision.
        strides: Strides of the features used by the pyramid, in ascending order. 8, 16, 32 are C3, C4, C5.
        pretrained: true for timm's ImageNet weights from the Hub; the path of a .safetensors or .pth file, which may be
            a trained detector; false for random weights.
        args: Extra arguments of timm's constructor, such as ``{"channels": [32, 64, 128, 256]}`` for a slim ResNet.
        frozen_stages: Number of features, from the finest, that are frozen together with all layers before them. 0
            trains everything; for a ResNet, 1 freezes the stem, 2 the stem and the first stage, and so on. Batch norms
            of frozen stages also keep their statistics.
        frozen_norm: true freezes parameters and statistics of all batch norms of the backbone; "statistics" freezes
            only the statistics. Usual with pretrained weights and few images per process; wrong with random weights.
        deformable_stages: Stages whose 3x3 convolutions become deformable (v2, modulated): 3, 4, 5 have strides 8, 16,
            32. Only for timm's ResNet family (ResNet, ResNeXt, Res2Net, ...).
    """

    name: str = "resnet50"
    strides: tuple[int, ...] = (8, 16, 32)
    pretrained: bool | str = False
    args: dict[str, Any] = field(default_factory=dict)
    frozen_stages: int = 0
    frozen_norm: bool | Literal["statistics"] = False
    deformable_stages: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.strides, self.strides[1:], strict=False))
        require(
            bool(self.strides) and self.strides[0] >= 1 and rising,
            f"backbone.strides is {shortened(self.strides)}: give at least one, in ascending order, each 1 or more",
        )
        require(self.frozen_stages >= 0, f"backbone.frozen_stages is {self.frozen_stages}: it must be 0 or more")
        _require_small(self.args, "backbone.args")
        taken = _NOT_FOR_ARGS & set(self.args)
        require(
            not taken,
            f"backbone.args sets {', '.join(sorted(taken))}: remove it, because rankwise sets it; for weights, use "
            f"backbone.pretrained",
        )


@dataclass(frozen=True)
class NeckSettings:
    """The feature pyramid.

    Args:
        channels: Channels of every level.
        extra_levels: Number of coarser levels on top, each with half the size of the previous one. 2 on top of C3 to C5
            gives P3 to P7.
        extra_from: Input of the first extra level: c5, the last feature of the backbone, or p5, that of the pyramid.
        norm: Normalization after each convolution: none, gn (group norm) or bn (batch norm).
    """

    channels: int = 256
    extra_levels: int = 2
    extra_from: Literal["c5", "p5"] = "p5"
    norm: Literal["none", "gn", "bn"] = "none"

    def __post_init__(self) -> None:
        require(1 <= self.channels <= MOST, f"neck.channels is {self.channels}: it must be 1 to {MOST}")
        require(0 <= self.extra_levels <= 16, f"neck.extra_levels is {self.extra_levels}: it must be 0 to 16")


@dataclass(frozen=True)
class HeadSettings:
    """The head, which predicts class logits and boxes and is shared by all levels.

    Args:
        channels: Channels of the two towers.
        depth: Number of 3x3 convolutions per tower.
        norm: Normalization in the towers: none, gn (group norm) or bn (batch norm, with separate statistics per level).
        prior: Initial probability of every class for every sample.
        level_scale: Learn one factor per level for the box output, because object sizes differ between levels.
        coding: Box encoding: delta (offset and log size relative to the anchor), ltrb (distances from the anchor center
            to the four sides in strides, as the exponential of the output) or ltrb_relu (the same distances as ReLU of
            the output, as in torchvision's FCOS).
        bins: Predict each of the four distances as a distribution over 0 to ``bins`` strides and use its mean, as in
            Generalized Focal Loss (16 there). 0 predicts the distance directly. Needs ltrb coding.
        delta_std: Divisor of delta codes: for x and y, and for log width and log height.
        bias: Use a bias in the tower convolutions even before a normalization, as torchvision's FCOS does.
    """

    channels: int = 256
    depth: int = 4
    norm: Literal["none", "gn", "bn"] = "gn"
    prior: float = 0.01
    level_scale: bool = True
    coding: Literal["delta", "ltrb", "ltrb_relu"] = "delta"
    bins: int = 0
    delta_std: tuple[float, float, float, float] = (0.1, 0.1, 0.2, 0.2)
    bias: bool = False

    def __post_init__(self) -> None:
        require(1 <= self.channels <= MOST, f"head.channels is {self.channels}: it must be 1 to {MOST}")
        require(0 <= self.depth <= 1000, f"head.depth is {self.depth}: it must be 0 to 1000")
        require(0 < self.prior < 1, f"head.prior is {self.prior}: it must be between 0 and 1, both excluded")
        require(0 <= self.bins <= 10_000, f"head.bins is {self.bins}: it must be 0 (off) to 10000")
        require(
            self.bins == 0 or self.coding == "ltrb",
            f"head.bins is {self.bins} with head.coding {self.coding}: distributions of distances need coding ltrb",
        )
        require(all(std > 0 for std in self.delta_std), f"head.delta_std is {self.delta_std}: all must be above 0")


@dataclass(frozen=True)
class AnchorSettings:
    """The anchors: at each location, one box per scale and ratio.

    Args:
        base: Side of a square anchor with scale 1, in strides of its level.
        scales: Factors on that side.
        ratios: Ratios of height to width, at equal area.
        levels: Width and height in pixels of each anchor of each level, instead of base, scales and ratios.
        offset: Position of a location in its cell: 0.5 is the center, 0 the upper left corner, as in torchvision.
    """

    base: float = 8.0
    scales: tuple[float, ...] = (1.0,)
    ratios: tuple[float, ...] = (1.0,)
    levels: tuple[tuple[tuple[float, float], ...], ...] = ()
    offset: float = 0.5

    def __post_init__(self) -> None:
        for name, values in (("base", (self.base,)), ("scales", self.scales), ("ratios", self.ratios)):
            require(
                0 < len(values) <= 100 and all(value > 0 for value in values),
                f"anchors.{name} is {shortened(getattr(self, name))}: give 1 to 100 numbers above 0",
            )
        require(
            len({len(level) for level in self.levels}) <= 1
            and all(side > 0 for level in self.levels for anchor in level for side in anchor),
            f"anchors.levels is {shortened(self.levels)}: give all levels as many anchors, with sides above 0",
        )
        require(0 <= self.offset <= 1, f"anchors.offset is {self.offset}: give 0 to 1")

    @property
    def per_location(self) -> int:
        """Number of anchors per location."""
        return len(self.levels[0]) if self.levels else len(self.scales) * len(self.ratios)


@dataclass(frozen=True)
class PostprocessSettings:
    """Post-processing of predictions to detections.

    Args:
        score_threshold: Minimum raw score, applied first. Scores of ranking losses are not probabilities and may all
            stay low, so a value above 0 can cost AP. Which detections to show is decided by the thresholds of the
            evaluation.
        topk: Number of best samples per level and image that enter NMS.
        nms_threshold: IoU above which a better box suppresses another one.
        per_class: Only suppress boxes of the same class.
        max_detections: Maximum number of detections per image.
        score_voting: Replace each kept box by the mean of the surrounding boxes of its class, weighted by score and IoU
            (as in PAA).
        voting_sigma: Width of the weights of score voting: exp(-(1 - IoU)² / voting_sigma).
    """

    score_threshold: float = 0.0
    topk: int = 1000
    nms_threshold: float = 0.6
    per_class: bool = True
    max_detections: int = 100
    score_voting: bool = False
    voting_sigma: float = 0.025

    def __post_init__(self) -> None:
        require(
            0 <= self.score_threshold < 1,
            f"postprocess.score_threshold is {self.score_threshold}: it must be from 0 (keep all) to 1",
        )
        require(self.topk >= 1, f"postprocess.topk is {self.topk}: it must be at least 1")
        require(
            0 < self.nms_threshold <= 1,
            f"postprocess.nms_threshold is {self.nms_threshold}: it must be an IoU from 0 to 1",
        )
        require(self.max_detections >= 1, f"postprocess.max_detections is {self.max_detections}: it must be at least 1")
        require(self.voting_sigma > 0, f"postprocess.voting_sigma is {self.voting_sigma}: it must be above 0")


@dataclass(frozen=True)
class TestSettings:
    """Test-time augmentation (TTA): detect at several scales and in flipped images, with one NMS over all views.

    Applies to the evaluation at the end of a run, to ``rankwise eval`` and to ``predict``; evaluations during training
    use a single view. The time grows with the number of views. Off by default.

    Args:
        short_sides: Short sides in pixels, one view each. Empty for the size of ``input`` only.
        max_side: Maximum long side of these views; that of ``input`` if not given.
        flip: Add a flipped view of each size.
    """

    __test__ = False  # not a pytest class, despite its name

    short_sides: tuple[int, ...] = ()
    max_side: int | None = None
    flip: bool = False

    def __post_init__(self) -> None:
        require(
            len(self.short_sides) <= 100 and all(LEAST_SIDE <= side <= MOST_SIDE for side in self.short_sides),
            f"test.short_sides is {shortened(self.short_sides)}: give {LEAST_SIDE} to {MOST_SIDE} each",
        )
        require(
            len(set(self.short_sides)) == len(self.short_sides),
            f"test.short_sides is {self.short_sides}: sizes must be unique",
        )
        longest = max(self.short_sides, default=LEAST_SIDE)
        require(
            self.max_side is None or self.max_side >= longest,
            f"test.max_side is {self.max_side}: it must be at least {longest}, the largest of test.short_sides",
        )


@dataclass(frozen=True)
class DetectorSettings:
    """All settings of a detector. The defaults are ATSS on ResNet-50: one square anchor per location, no centerness.

    Args:
        input: Size and normalization of images.
        backbone: The backbone.
        neck: The feature pyramid.
        head: The head.
        anchors: The anchors.
        postprocess: The post-processing.
        test: Test-time augmentation.
    """

    input: InputSettings = field(default_factory=InputSettings)
    backbone: BackboneSettings = field(default_factory=BackboneSettings)
    neck: NeckSettings = field(default_factory=NeckSettings)
    head: HeadSettings = field(default_factory=HeadSettings)
    anchors: AnchorSettings = field(default_factory=AnchorSettings)
    postprocess: PostprocessSettings = field(default_factory=PostprocessSettings)
    test: TestSettings = field(default_factory=TestSettings)

    def to_dict(self) -> dict[str, Any]:
        """As nested plain dicts, for YAML or JSON."""
        return asdict(self)

    def without_pretrained(self) -> DetectorSettings:
        """The same settings without pretrained weights, for a detector whose weights come from elsewhere."""
        return replace(self, backbone=replace(self.backbone, pretrained=False))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DetectorSettings:
        """Creates settings from nested plain dicts; missing values have their defaults.

        Args:
            values: Such as ``{"backbone": {"name": "resnet18"}, "head": {"bins": 16}}``.

        Raises:
            ModelError: If a name does not exist or a value has the wrong type.
        """
        return from_dict(cls, values, "settings")


def atss(backbone: str = "resnet50", pretrained: bool | str = False, **parts: Any) -> DetectorSettings:
    """An ATSS or PAA detector without centerness: one square anchor of 8 strides per location, delta coding.

    Args:
        backbone: Name of the backbone in timm.
        pretrained: As in ``BackboneSettings``.
        **parts: Parts of ``DetectorSettings`` that replace those of the preset.
    """
    return replace(DetectorSettings(backbone=BackboneSettings(backbone, pretrained=pretrained)), **parts)


def fcos(backbone: str = "resnet50", pretrained: bool | str = False, **parts: Any) -> DetectorSettings:
    """An FCOS detector without centerness: one point per location, distances to the four sides.

    The anchor of 8 strides around each point is only used by the assigners.

    Args:
        backbone: Name of the backbone in timm.
        pretrained: As in ``BackboneSettings``.
        **parts: Parts of ``DetectorSettings`` that replace those of the preset.
    """
    return atss(backbone, pretrained, **{"head": HeadSettings(coding="ltrb"), **parts})


def retinanet(
    backbone: str = "resnet50", pretrained: bool | str = False, size: int = 512, **parts: Any
) -> DetectorSettings:
    """A RetinaNet for square images: 2 scales and 3 ratios per location, towers without normalization.

    Args:
        backbone: Name of the backbone in timm.
        pretrained: As in ``BackboneSettings``.
        size: Side of the square input.
        **parts: Parts of ``DetectorSettings`` that replace those of the preset.
    """
    preset: dict[str, Any] = {
        "input": InputSettings(short_side=size, max_side=size, keep_ratio=False),
        "neck": NeckSettings(extra_from="c5"),
        "head": HeadSettings(norm="none", level_scale=False),
        "anchors": AnchorSettings(base=4.0, scales=(1.0, 2**0.5), ratios=(0.5, 1.0, 2.0)),
    }
    return atss(backbone, pretrained, **{**preset, **parts})
