"""The base class of the ranking losses, which are computed by an engine from a specification."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import get_args

from torch import Tensor

from rankwise.losses.base import Loss, Outcome
from rankwise.losses.dense import DenseTargets
from rankwise.losses.inputs import check_arguments, check_choice, flat
from rankwise.losses.weighted import per_positive
from rankwise.pairsums import Distance, Method, Ranked, RankingSpec, Scope, Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums import ranking_loss as compute
from rankwise.pairsums.engines.dense import DenseEngine
from rankwise.pairsums.engines.torch import TorchEngine


class RankingLoss(Loss):
    """A loss over the pairs of positives and other samples, computed by one of the engines of `rankwise.pairsums`.

    Args:
        spec: The specification of the loss.
        method: The engine; "fast" uses the best available one.
        check: Whether invalid values raise an error; None does so only on a CPU.
    """

    @abstractmethod
    def __init__(self, spec: RankingSpec, method: Method, check: bool | None) -> None:
        super().__init__()
        check_choice("scope", spec.scope, get_args(Scope))
        check_choice("method", method, get_args(Method))
        if not isinstance(spec.distance, Distance):
            raise TypeError(f"distance must be an instance of a Distance, such as Step(), got {spec.distance!r}")
        if method != "dense" and type(spec.distance) not in (Step, Sigmoid, SigmoidCrossEntropy):
            raise ValueError(
                f"{type(spec.distance).__name__} is a custom distance, which needs "
                'method="dense": use that, or Step, Sigmoid or SigmoidCrossEntropy'
            )
        self.spec, self.method, self.check = spec, method, check

    @property
    def scope(self) -> Scope:
        """The samples that are ranked together."""
        return self.spec.scope

    @property
    def distance(self) -> Distance:
        """The error of a pair."""
        return self.spec.distance

    def _labelled(self, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> Tensor:
        return self.ranked(logits, labels, quality, image).loss

    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        ranked = self.ranked(logits, labels, quality, image)
        return Outcome(ranked.loss, ranked.log)

    def dense_terms(self, read: DenseTargets) -> Tensor:
        if self.method in ("numba", "triton"):
            raise ValueError(
                f'method="{self.method}" does not support weight and reduction="none"; use "fast", "torch" or "dense"'
            )
        if self.spec.scope in ("class", "world") or self.spec.max_negatives is not None:
            raise ValueError('weight and reduction="none" do not support scope="class", "world" and max_negatives')
        terms = per_positive(read, self.spec, DenseEngine() if self.method == "dense" else TorchEngine())
        return terms if read.weight is None else terms * read.weight[read.rows, read.classes]

    def dense_outcome(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        mask: Tensor | None = None,
        weight: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Outcome:
        if self.spec.scope == "class":
            raise ValueError(
                'scope="class" needs labels, with one class per row; use "batch" or "image" for dense targets'
            )
        return super().dense_outcome(logits, targets, mask=mask, weight=weight, normalizer=normalizer)

    def ranked(self, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> Ranked:
        """The loss, values for logging, and the box weight of each row."""
        logits, labels, quality, image = flat(logits, labels, quality, image)
        needs_quality, needs_image = self.spec.needs_quality, self.spec.scope == "image"
        quality, image = check_arguments(logits, labels, quality, image, needs_quality, needs_image)
        return compute(logits, labels, quality, image, self.spec, self.method, self.check)

    def extra_repr(self) -> str:
        settings = {
            field.name: getattr(self.spec, field.name)
            for field in fields(self.spec)
            if field.repr and field.name != "family"
        }
        settings |= {"method": self.method, "check": self.check}
        return ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
