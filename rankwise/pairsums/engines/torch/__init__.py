"""The engine for any device: the same cells as the compiled ones, in a few torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.engines.by_sums import Group, SumsEngine
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.engines.torch.sigmoid import SigmoidSums
from rankwise.pairsums.engines.torch.step import StepSums
from rankwise.pairsums.formula import PairSums
from rankwise.pairsums.spec import Forward, RankingSpec, Samples


class TorchEngine(SumsEngine):
    """Few operations on any device. MPS has no float64 to sum in: there it computes on the CPU."""

    name = "torch"

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """It leaves other distances to the dense engine."""
        if type(spec.distance) not in (Step, Sigmoid, SigmoidCrossEntropy):
            return f"it does not know the distance {type(spec.distance).__name__}"
        return None

    def sums(self, group: Group, spec: RankingSpec) -> PairSums:
        """The sums over the pairs of a group; pair by pair if the positives are too far apart for a table."""
        kind = StepSums if isinstance(spec.distance, Step) else SigmoidSums
        return kind.of(group, spec) or DenseSums(group, spec)

    def forward(self, samples: Samples, spec: RankingSpec) -> Forward:
        """The loss, numbers for the log, and what the backward pass needs."""
        device = samples.logits.device
        if device.type != "mps":
            return super().forward(samples, spec)
        loss, log, box_weights, saved = super().forward(_on_cpu(samples), spec)
        box_weights = None if box_weights is None else box_weights.to(device)
        return Forward(loss.to(device), log.float().to(device), box_weights, saved)

    def backward(self, upstream: Tensor, samples: Samples, saved: tuple[Tensor, ...], spec: RankingSpec) -> Tensor:
        """The gradient of the logits, in their shape and dtype."""
        device = samples.logits.device
        if device.type != "mps":
            return super().backward(upstream, samples, saved, spec)
        return super().backward(upstream.cpu(), _on_cpu(samples), saved, spec).to(device)


def _on_cpu(samples: Samples) -> Samples:
    return Samples(*(part if part is None else torch.Tensor.cpu(part) for part in samples))  # type: ignore[arg-type]
