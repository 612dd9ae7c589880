"""Every kind of ranking loss as a specification, and scenes to compute them on."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.spec import RankingSpec, Samples

SPECS = {
    "APE": RankingSpec("pairwise", SigmoidCrossEntropy(8.0), adaptive=True),
    "PE": RankingSpec("pairwise", SigmoidCrossEntropy(8.0)),
    "sigmoid": RankingSpec("pairwise", Sigmoid(5.0), adaptive=True, weight_by_quality=True),
    "interpolated sigmoid": RankingSpec("pairwise", Sigmoid(3.0), interpolated=True),
    "narrow step": RankingSpec("pairwise", Step(0.04), adaptive=True, weight_by_quality=True),
    "AP": RankingSpec("pairwise", Step(0.5), own=1.0, interpolated=True),
    "RankSort": RankingSpec("ranksort", Step(0.5)),
    "aLRP": RankingSpec("alrp", Step(1.0), own=1.0),
}

SCENES = (
    *("start", "middle", "end", "sorted", "all equal", "hundreds apart", "millions apart", "outliers", "one positive"),
    *("no positives", "one class", "only positives", "everything ignored"),
)


def make_samples(name: str, rows: int = 60, classes: int = 40, positives: int = 16, seed: int = 0) -> Samples:
    """A scene with ignored rows, ties in quality, and four images whose rows are mixed."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    classes = 1 if name == "one class" else classes
    positives = {"one positive": 1, "no positives": 0, "only positives": rows}.get(name, positives)
    order = torch.randperm(rows, generator=generator)
    rows_of = order[:positives]
    labels = torch.full((rows,), classes)
    labels[rows_of] = torch.randint(0, classes, (positives,), generator=generator)
    labels[order[positives : positives + 2]] = -1
    if name == "everything ignored":
        labels.fill_(-1)
    quality = (torch.rand(rows, generator=generator) * 8).round() / 8
    of_negatives, of_positives = {
        "start": ((-4.6, 0.5), (-4.6, 0.5)),
        "end": ((-7.5, 1.3), (0.5, 1.2)),
        "sorted": ((-9.0, 1.0), (2.0, 0.3)),
        "all equal": ((-4.6, 0.0), (-4.6, 0.0)),
        "hundreds apart": ((0.0, 300.0), (0.0, 300.0)),
        "millions apart": ((0.0, 3e6), (0.0, 3e6)),
    }.get(name, ((-5.0, 1.2), (-2.5, 1.5)))
    logits = of_negatives[0] + of_negatives[1] * normal(rows, classes)
    logits[rows_of, labels[rows_of]] = of_positives[0] + of_positives[1] * normal(positives)
    if name == "outliers":
        logits[rows_of[0], labels[rows_of[0]]] = -40
        logits[order[-1], 0], logits[order[-2], 0] = 1e4, -1e5
    image = torch.randint(0, 4, (rows,), generator=generator)
    return Samples(logits, labels, quality, image)


def component_error(got: Tensor, wanted: Tensor) -> float:
    """The largest error of a component: 1 is 1e-5 relative, or 1e-9 of the largest component if that is more."""
    wanted = wanted.double()
    if not wanted.numel():
        return 0.0
    error, largest = (got.double() - wanted).abs(), wanted.abs().max().clamp(min=1e-300)
    allowed = torch.maximum(1e-5 * wanted.abs(), 1e-9 * largest)
    return float((error / allowed).max())
