"""Sums over all (positive, negative) pairs without the pairs. Numbers only: nothing here knows a particular loss.

A ranking loss needs, for positives u with logits p_u and samples v with logits x_v, sums like Σ_v D(x_v - p_u) for each
u, and the same read back from the other side: Σ_u w_u · D(x_v - p_u) for each v. `pair_sums` gives both:

    sums = pair_sums(negatives, positives, Step(0.5))  # or Sigmoid(8.0), SigmoidCrossEntropy(8.0); method="dense"
    number, rank, error = sums.over_negatives()   # for each u: Σ 1, Σ distance.rank, Σ distance.error over negatives
    number, rank, error = sums.over_positives()   # over all positives v, u itself (1, D(0), D(0)) included
    sums.over_positives(quality)                  # only over v with quality_v < quality_u
    sums.over_positives(quality, values)          # each v times values_v: Σ_v values_v · D(p_v - p_u)
    sums.read_back_positives(weights)             # for each positive v: Σ_u weights_u · rank(p_v - p_u), u = v included
    sums.read_back_positives(weights, quality)    # only over u with quality_u > quality_v
    sums.read_back(weights, out)                  # for each negative, written into the flat gradient `out`

All sums come in float64, [P]. A sum over quality_v >= quality_u is the one over all less the one over the lower.
`error_driven` makes a loss of a value, these weights and the positives' gradient; the pass that reads the negatives'
gradient back runs in backward only.

Negatives that are one process's share (``Negatives(..., world=True)``) are summed over all processes; positives are
then those of all processes, and `error_driven` leaves out those whose place is -1.

`DensePairSums` is the definition, pair by pair. `FastPairSums` sums the negatives into cells (`passes`, `compiled`) and
reads the positives' sums from these: `step` for the step, `sigmoid` and `floors` for the smooth ones.
"""

from rankwise.pairsums.base import PairSums
from rankwise.pairsums.dense import DensePairSums
from rankwise.pairsums.distances import Distance, Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.eager import eager
from rankwise.pairsums.fast import FastPairSums, Method, pair_sums
from rankwise.pairsums.gradient import error_driven
from rankwise.pairsums.samples import Negatives, NotFiniteError, Sums
from rankwise.pairsums.world import gather_rows, highest, world_size

__all__ = [
    "DensePairSums",
    "Distance",
    "FastPairSums",
    "Method",
    "Negatives",
    "NotFiniteError",
    "PairSums",
    "Sigmoid",
    "SigmoidCrossEntropy",
    "Step",
    "Sums",
    "eager",
    "error_driven",
    "gather_rows",
    "highest",
    "pair_sums",
    "world_size",
]
