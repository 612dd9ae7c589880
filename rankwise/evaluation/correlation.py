"""Correlation of the scores of a detector with the IoU of its boxes."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.matching import Matches


@dataclass(frozen=True)
class Correlation:
    """Correlation of score and IoU; None if undefined (fewer than two points, or all of them equal).

    Attributes:
        pcc: Pearson's coefficient, of the values.
        scc: Spearman's coefficient, of the ranks.
        kcc: Kendall's coefficient (tau-b), of the order of all pairs.
        n: Number of detections.
    """

    pcc: float | None
    scc: float | None
    kcc: float | None
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """As plain values for JSON."""
        return asdict(self)


def localized(matches: Matches, above: float = 0.5) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Score and IoU of well-localized detections.

    The IoU of a detection is its highest IoU with any object of its class in its image, even if a detection with a
    higher score has matched that object. Duplicates count, because NMS depends on their order too. Crowd boxes are not
    objects.

    Args:
        matches: Any matching of the detections; only their best IoU is used.
        above: The IoU must be greater than this.
    """
    chosen = matches.best_iou > above
    return matches.detections.scores[chosen], matches.best_iou[chosen]


localised = localized  # the spelling of earlier versions


def score_quartiles(scores: NDArray[np.float64], ious: NDArray[np.float64]) -> NDArray[np.float64]:
    """Quartiles of the score in ten bins of IoU above 0.5: rows of bin center, 25 %, 50 % and 75 %, [K, 4].

    Bins with fewer than five detections are left out.
    """
    edges = np.linspace(0.5, 1, 11)
    bin_of = np.clip(np.digitize(ious, edges) - 1, 0, 9)
    rows = [
        (edges[number : number + 2].mean(), *np.percentile(own, (25, 50, 75)))
        for number in range(10)
        if len(own := scores[bin_of == number]) >= 5
    ]
    return np.asarray(rows, dtype=np.float64).reshape(-1, 4)


def correlate(scores: NDArray[np.float64], ious: NDArray[np.float64]) -> Correlation:
    """PCC, SCC and KCC of two lists of equal length."""
    n = len(scores)
    if n < 2 or np.ptp(scores) == 0 or np.ptp(ious) == 0:
        return Correlation(None, None, None, n)
    from scipy import stats  # slow to import, and only needed for evaluations

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ignore warnings about nearly constant input
        values = (
            stats.pearsonr(scores, ious).statistic,
            stats.spearmanr(scores, ious).statistic,
            stats.kendalltau(scores, ious).statistic,
        )
    pcc, scc, kcc = (float(value) if np.isfinite(value) else None for value in values)
    return Correlation(pcc, scc, kcc, n)
