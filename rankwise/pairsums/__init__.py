"""Sums over all (positive, negative) pairs without the pairs: what every ranking loss is made of.

A ranking loss needs, for positives u with logits p_u and samples v with logits x_v, the sums Σ_v D(x_v - p_u) for each
u, and their adjoint Σ_u w_u · D'(x_v - p_u) for each v. The method, in all engines but the definition:

1. One pass over the samples: a histogram of the logits, with moments 0 to 3 of the samples in each cell.
2. Each positive sums its neighborhood by Taylor expansion about the centers of the cells, and everything beyond by
   prefix sums over the cells: far below, S(z) = e^z - e^2z + …, whose terms factorize; far above, S is 1 minus the same
   series at -z. This is a one-dimensional fast multipole method. For the step, the cells end where ramps end, and
   moments 0 and 1 are exact.
3. The formula of the loss: from the sums to a weight for each positive (`formula`).
4. The adjoint of 2, which leaves a cubic per cell, and one more pass: each sample evaluates its cell's cubic.

`ranking_loss` computes a loss from a `RankingSpec`; `engines` lists the engines, one of which is chosen per call.
docs/engines.md has the method in detail and a table of what each engine supports.
"""

from rankwise.pairsums.distances import Distance, Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.messages import bad_labels, bad_numbers, bad_quality
from rankwise.pairsums.product import product_sums
from rankwise.pairsums.ranking import Ranked, choose, engines, ranking_loss
from rankwise.pairsums.spec import ROUNDING, Engine, Forward, Method, RankingSpec, Samples, Scope

__all__ = [
    "ROUNDING",
    "Distance",
    "Engine",
    "Forward",
    "Method",
    "Ranked",
    "RankingSpec",
    "Samples",
    "Scope",
    "Sigmoid",
    "SigmoidCrossEntropy",
    "Step",
    "bad_labels",
    "bad_numbers",
    "bad_quality",
    "choose",
    "engines",
    "product_sums",
    "ranking_loss",
]
