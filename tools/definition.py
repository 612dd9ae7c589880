"""The ranking losses as their papers define them, pair by pair in NumPy and float64: what `make soak` compares with.

It shares no code with the package but the description of a loss.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankwise.pairsums import RankingSpec, Step

Array = NDArray[np.float64]


def definition(
    spec: RankingSpec, logits: Array, labels: NDArray[np.int64], quality: Array, image: NDArray[np.int64]
) -> tuple[float, Array]:
    """The loss and its gradient.

    Args:
        spec: Which loss.
        logits: [A, C].
        labels: A positive's class, C background, -1 ignored, [A].
        quality: Of the positives, [A].
        image: Of each row, [A].
    """
    rows, classes = logits.shape
    positive = labels[:, None] == np.arange(classes)
    negative = ~positive & (labels >= 0)[:, None]
    groups = {
        "batch": np.zeros((rows, classes), int),
        "image": np.broadcast_to(image[:, None], (rows, classes)),
        "class": np.broadcast_to(np.arange(classes), (rows, classes)),
    }[spec.scope]
    every = np.broadcast_to(quality[:, None], (rows, classes))
    number, loss, gradient = max(1, positive.sum()), 0.0, np.zeros_like(logits)
    for group in np.unique(groups[positive]):
        own, other = positive & (groups == group), negative & (groups == group)
        if spec.max_negatives is not None and other.sum() > spec.max_negatives:
            other &= logits >= np.sort(logits[other])[-spec.max_negatives]
        value, of_positives, of_negatives = _FAMILIES[spec.family](spec, logits[own], every[own], logits[other])
        loss += value / number
        gradient[own], gradient[other] = of_positives / number, of_negatives / number
    return loss, gradient


def _pairwise(spec: RankingSpec, p: Array, q: Array, n: Array) -> tuple[float, Array, Array]:
    """PE, APE, AP and all between: Σ_u w_u / B_u · Σ_v D(x_v - p_u)."""
    lower = (q < q[:, None]) & spec.adaptive  # [u, v]: positives that count as negatives of u
    (rank, error, valid), (among, errors, near) = _pairs(spec, n, p), _pairs(spec, p, p)
    above = rank.sum(1) + (among * lower).sum(1)
    balance = rank.sum(1) + among.sum(1) - 0.5 + spec.own
    if spec.margin is not None:
        balance = np.maximum(1, valid.sum(1) + (near & lower).sum(1))
    error = (error.sum(1) + (errors * lower).sum(1)) / balance
    weight = q if spec.weight_by_quality else np.ones_like(q)
    if spec.interpolated:  # the best precision of this positive and those below it
        best = np.array([error[p <= own].min() for own in p])
        weight = weight * np.divide(best, error, out=np.ones_like(best), where=error > 0)
    share = weight / balance
    return (weight * error).sum(), share @ (among * lower) - share * above, share @ rank


def _ranksort(spec: RankingSpec, p: Array, q: Array, n: Array) -> tuple[float, Array, Array]:
    """The ranking error, and the mean 1 - q of positives above beyond what it would be in the right order."""
    (rank, *_), (among, *_) = _pairs(spec, n, p), _pairs(spec, p, p)
    ranking = rank.sum(1) / (rank.sum(1) + among.sum(1))
    missorted = among * (q < q[:, None])
    sorting = (among @ (1 - q)) / among.sum(1) - ((among - missorted) @ (1 - q)) / (among - missorted).sum(1)
    wrong = missorted.sum(1)
    share = np.divide(sorting, wrong, out=np.zeros_like(wrong), where=wrong > 1e-9)
    gradient = share @ missorted - share * wrong - ranking
    return (ranking + sorting).sum(), gradient, (1 / (rank.sum(1) + among.sum(1))) @ rank


def _alrp(spec: RankingSpec, p: Array, q: Array, n: Array) -> tuple[float, Array, Array]:
    """The precision error; its gradient has the box errors above each positive too."""
    (rank, *_), (among, *_) = _pairs(spec, n, p), _pairs(spec, p, p)
    among = among * ~np.eye(len(p), dtype=bool)
    above = rank.sum(1)
    whole = 1 + among.sum(1) + above
    pull = (above + among @ ((1 - q) / (2 * (1 - spec.tau)))) / whole * (above > 1e-5)
    return (above / whole).sum(), -pull, (pull / np.maximum(above, 1e-5)) @ rank


_FAMILIES = {"pairwise": _pairwise, "ranksort": _ranksort, "alrp": _alrp}


def _pairs(spec: RankingSpec, x: Array, p: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """For every positive u and sample v what v adds to the rank and to the error of u, and whether it is a pair."""
    z, distance = x - p[:, None], spec.distance
    valid = np.ones(z.shape, bool) if spec.margin is None else x > p[:, None] - spec.margin
    if isinstance(distance, Step):
        rank = error = np.clip(z / (2 * distance.delta) + 0.5, 0, 1)
    else:
        z = distance.lam * z  # type: ignore[attr-defined]
        small = np.exp(-np.abs(z))
        rank = error = np.where(z > 0, 1, small) / (1 + small)
        if type(distance).__name__ == "SigmoidCrossEntropy":
            error = (np.maximum(z, 0) + np.log1p(small)) / distance.lam  # type: ignore[attr-defined]
        if distance.cut is not None:  # type: ignore[attr-defined]
            valid = valid & (x >= p[:, None] - distance.cut / distance.lam)  # type: ignore[attr-defined]
    return rank * valid, error * valid, valid
