"""How well a detector's scores follow the quality of its boxes."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from rankwise.evaluation.matching import Matches


@dataclass(frozen=True)
class Correlation:
    """Correlation of score and IoU; None where it is not defined (fewer than two points, or all of them equal).

    Attributes:
        pcc: Pearson's coefficient, of the values.
        scc: Spearman's coefficient, of the ranks.
        kcc: Kendall's coefficient (tau-b), of the order of all pairs.
        n: How many detections went in.
    """

    pcc: float | None
    scc: float | None
    kcc: float | None
    n: int

    def to_dict(self) -> dict[str, float | int | None]:
        """The same as plain values, for JSON."""
        return asdict(self)


def localised(matches: Matches, above: float = 0.5) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Score and IoU of the detections that lie well on an object.

    A detection's IoU is its highest with any object of its class in its image, whether or not a detection of higher
    score has taken that object: duplicates count, as they do for non-maximum suppression, which lives by this order.
    Crowd boxes are no objects.

    Args:
        matches: Any matching of the detections; only their best IoU is read.
        above: Detections count whose IoU is greater than this.
    """
    chosen = matches.best_iou > above
    return matches.detections.scores[chosen], matches.best_iou[chosen]


def correlate(scores: NDArray[np.float64], ious: NDArray[np.float64]) -> Correlation:
    """PCC, SCC and KCC of two lists of equal length."""
    n = len(scores)
    if n < 2 or np.ptp(scores) == 0 or np.ptp(ious) == 0:
        return Correlation(None, None, None, n)
    from scipy import stats  # slow to import, and training evaluates late

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nearly constant input: the number is what it is
        values = (
            stats.pearsonr(scores, ious).statistic,
            stats.spearmanr(scores, ious).statistic,
            stats.kendalltau(scores, ious).statistic,
        )
    pcc, scc, kcc = (float(value) if np.isfinite(value) else None for value in values)
    return Correlation(pcc, scc, kcc, n)
