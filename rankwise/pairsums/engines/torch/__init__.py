"""The engine for any device: histograms with moments, in few torch operations.

`sigmoid` sums sigmoids, `direct` those of few positives in fewer operations, `many` those of many, and `floors` those
with a cutoff. `step` sums steps, by the cells of `edges`. `histogram` is for many samples on a CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rankwise.pairsums.distances import Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums.engines.by_sums import SumsEngine
from rankwise.pairsums.engines.dense import DenseSums
from rankwise.pairsums.engines.groups import Group
from rankwise.pairsums.engines.torch import direct, sigmoid, step
from rankwise.pairsums.formula import PairSums, Terms
from rankwise.pairsums.spec import Forward, RankingSpec, Samples


class TorchEngine(SumsEngine):
    """Few operations on any device. MPS has no float64, so tensors there are copied to the CPU."""

    name = "torch"

    def unsupported(self, spec: RankingSpec, samples: Samples) -> str | None:
        """Why this engine cannot compute it, or None if it can."""
        if type(spec.distance) not in (Step, Sigmoid, SigmoidCrossEntropy):
            return f"it does not know the distance {type(spec.distance).__name__}"
        return None

    def sums(self, group: Group, spec: RankingSpec) -> sigmoid.SigmoidSums | step.StepSums | DenseSums:
        """The sums over the pairs of a group; pair by pair if the positives are too far apart for a table."""
        kind = step.StepSums if isinstance(spec.distance, Step) else sigmoid.SigmoidSums
        return kind.of(group, spec) or DenseSums(group, spec)

    def terms(
        self, sums: PairSums, group: Group, spec: RankingSpec, number: int, shared: bool, faults: Tensor | int
    ) -> tuple[Terms, Tensor | int]:
        """The formula applied to a group's sums, with a table for the backward pass, and the faults."""
        if isinstance(sums, sigmoid.SigmoidSums) and not shared and direct.is_possible(sums):
            return direct.terms(sums, number), faults
        terms, faults = super().terms(sums, group, spec, number, shared, faults)
        if isinstance(sums, sigmoid.SigmoidSums | step.StepSums):
            terms = terms._replace(table=sums.table(terms.weights), layout=sums.layout)
        return terms, faults

    def gradient(
        self, group: Group, spec: RankingSpec, weights: Tensor, layout: Tensor, upstream: Tensor, out: Tensor
    ) -> None:
        """Write each sample's gradient, from the table that ``terms`` returned if there is one."""
        if len(layout):
            module = step if isinstance(spec.distance, Step) else sigmoid
            module.evaluate(group, spec, layout, weights, upstream, out)
        else:
            super().gradient(group, spec, weights, layout, upstream, out)

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
