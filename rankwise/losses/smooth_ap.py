"""Smooth-AP: average precision with sigmoids for its steps, differentiated through the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from rankwise.losses.inputs import Samples, check_choice
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, with_gradient
from rankwise.pairsums.engines.torch.blocks import blocks
from rankwise.pairsums.engines.torch.sigmoid import PRECISION, coarsening

#: Entries of a block of a matrix of pairs: they take 2 MB. So few pairs need no table.
PAIRS = 1 << 18

#: Resolution of the table; a unit is τ.
TABLE = PRECISION[torch.float64]

#: Smallest temperature with tables: they have 128/τ cells.
MIN_TEMPERATURE = 1e-4

Method = Literal["fast", "dense"]


class SmoothAPLoss(SamplewiseLoss):
    """Smooth-AP: one minus the mean over positives of rank⁺/rank, with ranks as sums of S(z) = sigmoid(z/τ).

    rank⁺(u) is 1 plus the sum of S(f_v − f_u) over the other positives, rank(u) is rank⁺(u) plus the sum over the
    negatives. The gradient is the true one, through both ranks. Without positives the loss is 0.

    Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval, Brown et al. 2020,
    https://arxiv.org/abs/2007.12163

    Choices: f = sigmoid(x), because the published code ranks similarities, which are bounded like scores, and τ is
    chosen for that range. All samples of this process are ranked together. It is included for comparison.

    Args:
        temperature: τ, the softness of a step; at least 0.0001 with "fast".
        method: "fast" computes the sums over all pairs at linear cost, from a table of the scores; "dense" computes
            every pair, as in the definition.
    """

    needs_quality = False
    takes_weights = False
    needs_sync = True  # for the pairs of positives
    log = ("precision",)

    def __init__(self, temperature: float = 0.01, method: Method = "fast") -> None:
        super().__init__()
        check_choice("method", method, get_args(Method))
        if not temperature > 0 or (method == "fast" and temperature < MIN_TEMPERATURE):
            raise ValueError(
                f"temperature must be above 0, and at least {MIN_TEMPERATURE:g} "
                f'unless method is "dense", got {temperature}'
            )
        self.temperature = temperature
        self.method: Method = method

    def compute(self, samples: Samples) -> ValueAndGradient:
        scores = samples.values.double().sigmoid()
        negative = torch.ones_like(scores, dtype=torch.bool)
        negative[samples.rows, samples.classes] = False
        if samples.ignored is not None:
            negative &= ~samples.ignored
        positives, negatives = scores[samples.rows, samples.classes], scores[negative]
        number = max(1, len(positives))
        above, slope_above = self._sums(positives, negatives)
        among, slope_among = self._sums(positives, positives)
        among = among + 0.5  # u itself contributes 1/2 to the sum, but counts 1
        rank = among + above
        loss = (1 - among / rank).sum() / number
        # dL/d(rank⁺) = -above / rank², and the derivative by the sum over the negatives is rank⁺ / rank².
        push, pull = among / rank.square() / number, -above / rank.square() / number
        gradient = torch.zeros_like(scores)
        gradient[negative] = self._adjoint(positives, negatives, push)
        # A positive is no pair with itself: its contributions to the first two terms cancel.
        own = self._adjoint(positives, positives, pull) - pull * slope_among - push * slope_above
        gradient[samples.rows, samples.classes] = own
        gradient *= scores * (1 - scores)
        precision = 1 - loss if len(positives) else loss
        return with_gradient(samples, loss, gradient.to(samples.logits.dtype), precision)

    def _sums(self, positives: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """The sums of S and of its slope over the others, per positive, float64 [P]."""
        tabled = self._tabled(positives, others)
        at, weights = self._points(others) if tabled else (others, torch.ones_like(others))
        total, slope = positives.new_empty(2, len(positives))
        for some, s, slopes in self._matrix(positives, at):
            total[some], slope[some] = s @ weights, slopes @ weights
        return total, slope

    def _adjoint(self, positives: Tensor, others: Tensor, weights: Tensor) -> Tensor:
        """The sum of weights · slope over the positives, for each of the others, float64."""
        tabled = self._tabled(positives, others)
        at = self._points(others[:0])[0] if tabled else others
        values = torch.zeros_like(at)
        for some, _, slopes in self._matrix(positives, at):
            values += weights[some] @ slopes
        return self._interpolated(values, others) if tabled else values

    def _tabled(self, positives: Tensor, others: Tensor) -> bool:
        return self.method == "fast" and len(positives) * len(others) > PAIRS

    def _matrix(self, positives: Tensor, at: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """S and its slope for blocks of positives and the scores ``at``, [block, len(at)]; and which positives."""
        step = max(1, PAIRS // max(1, len(at)))
        for start in range(0, len(positives), step):
            some = slice(start, start + step)
            z = (at - positives[some, None]) / self.temperature
            s = z.sigmoid()
            yield some, s, s * z.neg_().sigmoid_() / self.temperature

    # S and its slope are smooth: in an interval of four τ, they are polynomials through Chebyshev points. So scores
    # are replaced by weights of the points (moments of narrow cells, then of intervals), and values at the points are
    # turned into a polynomial in each cell.

    def _points(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and weights that stand for all the scores in a sum of S or of its slope."""
        table = scores.new_zeros(TABLE.moments, self._intervals * TABLE.interval)
        for part in blocks(scores):
            cell, offset = self._located(scores[part])
            moment = torch.ones_like(offset)
            for row in table:
                row.index_add_(0, cell, moment)
                moment *= offset
        grid = coarsening(self._intervals, TABLE, 1 / TABLE.cells, scores.device)
        weights = (table.unflatten(1, (self._intervals, -1)) @ grid.by_power).sum(0).flatten()
        return grid.points * self.temperature, weights

    def _interpolated(self, values: Tensor, scores: Tensor) -> Tensor:
        """A function of the score, given by its values at the points, for all the scores."""
        grid = coarsening(self._intervals, TABLE, 1 / TABLE.cells, scores.device)
        powers = (values.view(self._intervals, -1) @ grid.by_power.transpose(1, 2)).flatten(1)  # [moments, cells]
        result = torch.empty_like(scores)
        for part in blocks(scores):
            cell, offset = self._located(scores[part])
            *rest, value = powers[:, cell]
            for power in rest[::-1]:
                value = torch.addcmul(power, value, offset)
            result[part] = value
        return result

    @property
    def _intervals(self) -> int:
        return math.floor(TABLE.cells / self.temperature / TABLE.interval) + 1

    def _located(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The cell of each score, and its offset in the cell, 0 to 1."""
        position = scores * (TABLE.cells / self.temperature)
        cell = position.long()
        return cell, position.sub_(cell)
