"""aLRP loss: ranking and box errors, both divided by the rank."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.distributed import all_reduce_mean
from rankwise.losses.base import Outcome, PositiveBoxes
from rankwise.losses.ranking import RankingLoss
from rankwise.pairsums import Method, RankingSpec, Scope, Step


class ALRPLoss(RankingLoss):
    """aLRP loss: the negatives and the box errors ranked above each positive, both divided by its rank.

    With H(z) = clamp(z/2δ + 1/2, 0, 1), each positive u has rank⁻(u) = Σ H(n_v − p_u) over the negatives, rank(u) =
    1 + Σ H(p_v − p_u) over the other positives + rank⁻(u), and with the box errors E_k

    - a classification part rank⁻(u) / rank(u): their mean is this loss;
    - a box part (E_u + Σ_k H(p_k − p_u) · E_k) / rank(u): their mean is the box loss.

    The classification gradient includes the box errors: u is pulled up by (rank⁻(u) + Σ_k H(p_k − p_u) · E_k) /
    rank(u), and the negatives are pushed down by the same amount, in proportion to H. The box loss is multiplied by
    a balance factor, the sum of both parts over the box part, so that it has the size of the total; use a weight of
    1.

    A Ranking-based, Balanced Loss Function Unifying Classification and Localisation in Object Detection, Oksuz et al.
    2020, https://arxiv.org/abs/2009.13592

    Choices: the box error is (1 − GIoU)/2 / (1 − τ) in the box loss, and in the classification gradient the same with
    the quality q in place of the GIoU. For the balance, the paper uses the averages of the last epoch. Here they are
    running averages over batches with positives: arithmetic for the first 1/(1 − ``momentum``) batches and exponential
    afterwards, so that the first batch is already balanced. They are buffers, are averaged over all processes, and are
    only updated in training mode.

    Args:
        delta: δ, half the width of the ramp.
        tau: τ, the IoU of a correct box; a box with exactly this IoU has an error of 1.
        momentum: Weight of the old value in the running averages of the balance.
        scope: The samples ranked together: those of this process ("batch"), of each image ("image"), of each class
            ("class") or of all processes ("world").
        method: "fast" is exact at linear cost and uses the best available engine; "triton", "numba" and "torch" select
            one; "dense" computes every pair, as in the definition.
        check: Whether invalid values raise an error that says where they are, which waits for the device on a GPU.
            Otherwise they make the loss NaN. None checks only on a CPU.
    """

    averages: Tensor
    batches: Tensor

    def __init__(
        self,
        delta: float = 1.0,
        tau: float = 0.5,
        momentum: float = 0.999,
        scope: Scope = "batch",
        method: Method = "fast",
        check: bool | None = None,
    ) -> None:
        if not 0 <= tau < 1 or not 0 <= momentum < 1:
            raise ValueError(f"tau and momentum must be in [0, 1), got {tau} and {momentum}")
        super().__init__(RankingSpec("alrp", Step(delta), tau=tau, scope=scope), method, check)
        self.momentum = momentum
        self.register_buffer("averages", torch.zeros(2, dtype=torch.float64))  # of both parts together, of the box part
        self.register_buffer("batches", torch.zeros((), dtype=torch.float64))

    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        loss, log, row_weights = self.ranked(logits, labels, quality, image)
        positive = (labels >= 0) & (labels < logits.shape[-1])
        return Outcome(loss, log | {"balance": self.balance()}, row_weights, positive.flatten())

    def box_loss(self, boxes: PositiveBoxes, outcome: Outcome) -> Tensor:
        assert outcome.row_weights is not None
        weights = outcome.row_weights[outcome.positive if boxes.rows is None else boxes.rows]
        box = (boxes.errors / (2 * (1 - self.spec.tau)) * boxes.weights * weights).sum()
        if self.training:
            self._update(outcome.parts, box.detach())
        return box * self.balance().to(box.dtype)

    def balance(self) -> Tensor:
        """The factor on the box loss: 1 before the first batch with positives."""
        both, box = self.averages
        return torch.where(self.batches > 0, both / box.clamp(min=1e-9), 1.0)

    @torch.no_grad()
    def _update(self, parts: dict[str, Tensor], box: Tensor) -> None:
        present = (parts["positives"] > 0).double()  # processes without positives are not averaged
        now = all_reduce_mean(torch.stack([parts["classification"] + box, box.double(), present]))
        moved = (now[2] > 0).double()
        self.batches.add_(moved)
        step = moved * (1 / self.batches.clamp(min=1)).clamp(min=1 - self.momentum)
        self.averages.lerp_(now[:2] / now[2].clamp(min=1e-9), step)
