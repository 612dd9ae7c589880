"""What the ranking losses have in common: all are computed by an engine, from a description of what to compute."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import get_args

from torch import Tensor

from rankwise.losses.base import Loss, Outcome
from rankwise.losses.inputs import check_arguments, check_choice, flat
from rankwise.pairsums import Distance, Method, Ranked, RankingSpec, Scope, Sigmoid, SigmoidCrossEntropy, Step
from rankwise.pairsums import ranking_loss as compute


class RankingLoss(Loss):
    """A loss over the pairs of positives and other samples, computed by one of the engines of `rankwise.pairsums`.

    Args:
        spec: What to compute.
        method: The engine; "fast" takes the best there is.
        check: Whether bad values raise an error at once; None does so on a CPU only.
    """

    @abstractmethod
    def __init__(self, spec: RankingSpec, method: Method, check: bool | None) -> None:
        super().__init__()
        check_choice("scope", spec.scope, get_args(Scope))
        check_choice("method", method, get_args(Method))
        if method != "dense" and type(spec.distance) not in (Step, Sigmoid, SigmoidCrossEntropy):
            raise ValueError(
                f"{type(spec.distance).__name__} is a distance of your own, which only the definition can sum: use "
                'method="dense", or Step, Sigmoid or SigmoidCrossEntropy themselves'
            )
        self.spec, self.method, self.check = spec, method, check

    @property
    def scope(self) -> Scope:
        """Which samples rank together."""
        return self.spec.scope

    @property
    def distance(self) -> Distance:
        """What a pair adds."""
        return self.spec.distance

    def _labelled(self, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> Tensor:
        return self.ranked(logits, labels, quality, image).loss

    def outcome(
        self, logits: Tensor, labels: Tensor, quality: Tensor | None = None, image: Tensor | None = None
    ) -> Outcome:
        ranked = self.ranked(logits, labels, quality, image)
        return Outcome(ranked.loss, ranked.log)

    def ranked(self, logits: Tensor, labels: Tensor, quality: Tensor | None, image: Tensor | None) -> Ranked:
        """The loss, numbers for the log, and each row's box weight."""
        logits, labels, quality, image = flat(logits, labels, quality, image)
        needs_quality, needs_image = self.spec.needs_quality, self.spec.scope == "image"
        check_arguments(logits, labels, quality if needs_quality else None, image if needs_image else None)
        if needs_quality and quality is None:
            raise ValueError("quality must be given: float [A], the IoU of each positive's predicted box")
        if needs_image and image is None:
            raise ValueError('scope="image" needs the argument image: which image each row is from, int64 [samples]')
        return compute(
            logits,
            labels,
            quality if needs_quality else None,
            image if needs_image else None,
            self.spec,
            self.method,
            self.check,
        )

    def extra_repr(self) -> str:
        settings = {
            field.name: getattr(self.spec, field.name)
            for field in fields(self.spec)
            if field.repr and field.name != "family"
        }
        settings |= {"method": self.method, "check": self.check}
        return ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
