"""All that can be chosen about a detector, as plain values: for recipes, command line and the file of weights."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rankwise.errors import ModelError
from rankwise.files.names import shortened, shown
from rankwise.from_dict import MOST_VALUES, from_dict
from rankwise.images.settings import MOST_SIDE, InputSettings

__all__ = [
    "AnchorSettings",
    "BackboneSettings",
    "DetectorSettings",
    "HeadSettings",
    "InputSettings",
    "ModelError",
    "NeckSettings",
    "PostprocessSettings",
    "TestSettings",
    "atss",
    "fcos",
    "retinanet",
]


#: Arguments of timm's that decide what is built in or loaded. Settings may come with a stranger's weights, and
#: timm would unpickle whatever ``checkpoint_path`` names.
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


#: Numbers of channels, layers and the like are no larger, so that no file of a few bytes asks for a day of work.
MOST = 100_000


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ModelError(message)


def _require_small(value: Any, where: str, depth: int = 0) -> None:
    """Refuses what no constructor of a backbone has use for: huge numbers, long lists, deep nesting."""
    if isinstance(value, dict | list | tuple):
        _require(len(value) <= MOST_VALUES and depth < 5, f"{where} has {len(value):,} values, or is nested too deeply")
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _require_small(item, f"{where}.{shown(name)[:50]}", depth + 1)
    elif isinstance(value, str):
        _require(len(value) <= 1000, f"{where} is a text of {len(value):,} characters")
    elif isinstance(value, int | float):
        _require(abs(value) <= MOST, f"{where} is {shortened(value)}: the limit is {MOST}")


@dataclass(frozen=True)
class BackboneSettings:
    """The network that turns an image into features: any of timm that gives features of several strides.

    Args:
        name: timm's name of it, such as resnet50, resnext101_64x4d, res2net101d, mobilenetv2_100; after a dot which of
            its pretrained weights, such as resnet50.tv_in1k for torchvision's.
        strides: Strides of the features that go into the pyramid, rising. 8, 16, 32 are C3, C4, C5.
        pretrained: true for timm's own ImageNet weights, fetched from its hub; the path of a .safetensors or .pth file
            for weights from there, also of a trained detector; false to begin at random.
        args: Further arguments of timm's constructor, such as ``{"channels": [32, 64, 128, 256]}`` for a slim ResNet.
        frozen_stages: How many of the backbone's features, counted from the image, are kept as they are with all
            that comes before them. 0 trains everything; with a ResNet 1 freezes the stem, 2 the stem and the first
            stage, and so on. Batch norms of frozen stages keep their statistics too.
        frozen_norm: true keeps every batch norm of the backbone as it is, parameters and statistics; "statistics" keeps
            the statistics and trains the parameters. Usual with pretrained weights and few images a process; wrong
            with random weights.
        deformable_stages: Stages whose 3x3 convolutions become deformable (v2, modulated): 3, 4, 5 are those of
            stride 8, 16, 32. For timm's ResNet family (ResNet, ResNeXt, Res2Net, ...).
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
        _require(bool(self.strides) and rising, f"backbone.strides is {shortened(self.strides)}: give some, rising")
        _require(self.frozen_stages >= 0, f"backbone.frozen_stages is {self.frozen_stages}: it must be 0 or more")
        _require_small(self.args, "backbone.args")
        taken = _NOT_FOR_ARGS & set(self.args)
        _require(
            not taken,
            f"backbone.args sets {', '.join(sorted(taken))}: leave it out, rankwise sets it itself; weights are given "
            "by backbone.pretrained",
        )


@dataclass(frozen=True)
class NeckSettings:
    """The feature pyramid that gives all levels the same number of channels.

    Args:
        channels: Channels of every level.
        extra_levels: How many coarser levels follow the backbone's own, each half the size of the one before. 2 above
            C3 to C5 makes P3 to P7.
        extra_from: What the first extra level is made of: c5, the backbone's last feature, or p5, the pyramid's.
        norm: Normalisation after each convolution: none, gn (groups) or bn (batch).
    """

    channels: int = 256
    extra_levels: int = 2
    extra_from: Literal["c5", "p5"] = "p5"
    norm: Literal["none", "gn", "bn"] = "none"

    def __post_init__(self) -> None:
        _require(1 <= self.channels <= MOST, f"neck.channels is {self.channels}: it must be 1 to {MOST}")
        _require(0 <= self.extra_levels <= 16, f"neck.extra_levels is {self.extra_levels}: it must be 0 to 16")


@dataclass(frozen=True)
class HeadSettings:
    """The convolutions that turn each level into class logits and boxes, the same ones for all levels.

    Args:
        channels: Channels of the two towers.
        depth: How many 3x3 convolutions each tower has.
        norm: Normalisation in the towers: none, gn (groups) or bn (batch, with own statistics for each level).
        prior: Probability that every sample has for every class before training.
        level_scale: Learn one factor a level for the box output, since levels see objects of different size.
        coding: How a box is coded: delta (shift and log size against the anchor), ltrb (distances from the anchor's
            centre to the four sides, as the exponential of the output, in units of the stride) or ltrb_relu (the same
            distances as the output itself, at least 0, as in torchvision's FCOS).
        bins: Predict each of the four distances as a distribution over 0 to ``bins`` strides and take its mean,
            as Generalized Focal Loss does (16 there). 0 predicts the distance itself. Needs ltrb coding.
        delta_std: What delta codes are divided by: for the shift in x and y, for log width and log height.
        bias: Give the towers' convolutions a bias although a normalisation follows, as torchvision's FCOS does.
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
        _require(1 <= self.channels <= MOST, f"head.channels is {self.channels}: it must be 1 to {MOST}")
        _require(0 <= self.depth <= 1000, f"head.depth is {self.depth}: it must be 0 to 1000")
        _require(0 < self.prior < 1, f"head.prior is {self.prior}: it must be between 0 and 1, both excluded")
        _require(0 <= self.bins <= 10_000, f"head.bins is {self.bins}: it must be 0 (off) to 10000")
        _require(
            self.bins == 0 or self.coding == "ltrb",
            f"head.bins is {self.bins} with head.coding {self.coding}: distributions of distances need coding ltrb",
        )
        _require(all(std > 0 for std in self.delta_std), f"head.delta_std is {self.delta_std}: all must be above 0")


@dataclass(frozen=True)
class AnchorSettings:
    """The boxes that predictions start from: at each location one for every scale and every ratio.

    Args:
        base: Side of a square anchor of scale 1, in strides of its level.
        scales: Factors on that side.
        ratios: Heights over widths, at equal area.
        levels: Width and height in pixels of each anchor of each level, instead of base, scales and ratios.
        offset: Where in its cell a location is: 0.5 is the middle, 0 the upper left corner, as in torchvision.
    """

    base: float = 8.0
    scales: tuple[float, ...] = (1.0,)
    ratios: tuple[float, ...] = (1.0,)
    levels: tuple[tuple[tuple[float, float], ...], ...] = ()
    offset: float = 0.5

    def __post_init__(self) -> None:
        for name, values in (("base", (self.base,)), ("scales", self.scales), ("ratios", self.ratios)):
            _require(
                0 < len(values) <= 100 and all(value > 0 for value in values),
                f"anchors.{name} is {shortened(getattr(self, name))}: give 1 to 100 numbers above 0",
            )
        _require(
            len({len(level) for level in self.levels}) <= 1
            and all(side > 0 for level in self.levels for anchor in level for side in anchor),
            f"anchors.levels is {self.levels}: give each level the same number of anchors, with sides above 0",
        )
        _require(0 <= self.offset <= 1, f"anchors.offset is {self.offset}: give 0 to 1")

    @property
    def per_location(self) -> int:
        """How many anchors each location has."""
        return len(self.levels[0]) if self.levels else len(self.scales) * len(self.ratios)


@dataclass(frozen=True)
class PostprocessSettings:
    """How predictions become detections.

    Args:
        score_threshold: Samples with a score below are dropped, before anything else. Scores of ranking losses are no
            probabilities and may all stay low: above 0 this can cost AP. What to show is decided by thresholds that
            evaluation finds.
        topk: How many samples of a level and image, best first, go on to the suppression.
        nms_threshold: A box is suppressed by a better one with a higher IoU than this.
        per_class: Let only boxes of the same class suppress each other.
        max_detections: How many detections an image may have.
        score_voting: Replace each kept box by the mean of the boxes around it of the same class, weighted by score and
            nearness (as in PAA).
        voting_sigma: How near: the weight of a box falls as exp(-(1 - IoU)² / voting_sigma).
    """

    score_threshold: float = 0.0
    topk: int = 1000
    nms_threshold: float = 0.6
    per_class: bool = True
    max_detections: int = 100
    score_voting: bool = False
    voting_sigma: float = 0.025

    def __post_init__(self) -> None:
        _require(
            0 <= self.score_threshold < 1,
            f"postprocess.score_threshold is {self.score_threshold}: scores are 0 to 1, give 0 (keep all) or more",
        )
        _require(self.topk >= 1, f"postprocess.topk is {self.topk}: it must be at least 1")
        _require(0 < self.nms_threshold <= 1, f"postprocess.nms_threshold is {self.nms_threshold}: give an IoU, 0 to 1")
        _require(
            self.max_detections >= 1, f"postprocess.max_detections is {self.max_detections}: it must be at least 1"
        )
        _require(self.voting_sigma > 0, f"postprocess.voting_sigma is {self.voting_sigma}: it must be above 0")


@dataclass(frozen=True)
class TestSettings:
    """Test-time augmentation (TTA): detect in several sizes of each image and mirrored, with one NMS over all of it.

    Applies to the evaluation at the end of a run, to ``rankwise eval`` and to ``predict``; evaluations during training
    use a single view. Costs time in proportion to the number of views; off by default.

    Args:
        short_sides: Lengths in pixels that the shorter side is resized to, one view each. Empty: the size of
            ``input`` alone.
        max_side: Limit of the longer side in these views; that of ``input`` if not given.
        flip: Add a mirrored view of each size.
    """

    __test__ = False  # no test of pytest's, for all its name

    short_sides: tuple[int, ...] = ()
    max_side: int | None = None
    flip: bool = False

    def __post_init__(self) -> None:
        _require(
            len(self.short_sides) <= 100 and all(1 <= side <= MOST_SIDE for side in self.short_sides),
            f"test.short_sides is {shortened(self.short_sides)}: give 1 to {MOST_SIDE} each",
        )
        _require(
            len(set(self.short_sides)) == len(self.short_sides),
            f"test.short_sides is {self.short_sides}: a size that is there twice would count twice",
        )
        longest = max(self.short_sides, default=1)
        _require(
            self.max_side is None or self.max_side >= longest,
            f"test.max_side is {self.max_side}: it must be at least {longest}, the largest of test.short_sides",
        )


@dataclass(frozen=True)
class DetectorSettings:
    """A whole detector. The defaults are an ATSS detector on ResNet-50: one square anchor a location, no centerness.

    Args:
        input: Size and normalisation of images.
        backbone: The network that gives the features.
        neck: The feature pyramid.
        head: The convolutions that predict.
        anchors: The boxes that predictions start from.
        postprocess: How predictions become detections.
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
        """The same as nested plain dicts, ready for YAML or JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DetectorSettings:
        """Settings from nested plain dicts; what is left out has its default.

        Args:
            values: Such as ``{"backbone": {"name": "resnet18"}, "head": {"bins": 16}}``.

        Raises:
            ModelError: A name that does not exist or a value of the wrong kind, with what would be right.
        """
        return from_dict(cls, values, "settings")


def atss(backbone: str = "resnet50", pretrained: bool | str = False, **parts: Any) -> DetectorSettings:
    """An ATSS or PAA detector without centerness: one square anchor of 8 strides a location, delta coding.

    Args:
        backbone: timm's name of the backbone.
        pretrained: As in ``BackboneSettings``.
        **parts: Any part of ``DetectorSettings`` instead of the preset's own.
    """
    return replace(DetectorSettings(backbone=BackboneSettings(backbone, pretrained=pretrained)), **parts)


def fcos(backbone: str = "resnet50", pretrained: bool | str = False, **parts: Any) -> DetectorSettings:
    """An FCOS detector without centerness: one point a location, distances to the four sides.

    The anchor of 8 strides around each point serves the assigners only.

    Args:
        backbone: timm's name of the backbone.
        pretrained: As in ``BackboneSettings``.
        **parts: Any part of ``DetectorSettings`` instead of the preset's own.
    """
    return atss(backbone, pretrained, **{"head": HeadSettings(coding="ltrb"), **parts})


def retinanet(
    backbone: str = "resnet50", pretrained: bool | str = False, size: int = 512, **parts: Any
) -> DetectorSettings:
    """A RetinaNet for square images: 2 scales and 3 ratios a location, towers without normalisation.

    Args:
        backbone: timm's name of the backbone.
        pretrained: As in ``BackboneSettings``.
        size: Side of the square that every image is resized to.
        **parts: Any part of ``DetectorSettings`` instead of the preset's own.
    """
    preset: dict[str, Any] = {
        "input": InputSettings(short_side=size, max_side=size, keep_ratio=False),
        "neck": NeckSettings(extra_from="c5"),
        "head": HeadSettings(norm="none", level_scale=False),
        "anchors": AnchorSettings(base=4.0, scales=(1.0, 2**0.5), ratios=(0.5, 1.0, 2.0)),
    }
    return atss(backbone, pretrained, **{**preset, **parts})
