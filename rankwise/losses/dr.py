"""Distributional ranking: a single pair, the expected scores of positives and negatives."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from rankwise.losses.blocks import Block, over_blocks, total
from rankwise.losses.inputs import Samples, check_choice
from rankwise.losses.samplewise import SamplewiseLoss, ValueAndGradient, with_gradient


class DRLoss(SamplewiseLoss):
    """DR loss: the expected score of hard positives should exceed that of hard negatives by a margin.

    Scores are p = sigmoid(x). Both sets are summarized by an expectation in which hard samples have the most weight:
    the softmax of −p/``positive_temperature`` for positives, and of p/``negative_temperature`` for negatives. The loss
    is τ/L · log(1 + exp(L · (E[negatives] − E[positives] + margin))). Without positives, E[positives] is 1.

    DR Loss: Improving Object Detection by Distributional Ranking, Qian et al. 2020, https://arxiv.org/abs/1907.10156

    Choices: as in the published code, the gradient also flows through the weights of the expectations, and all images
    of the batch are compared together. The paper's text uses the mean over single images, which is
    ``scope="image"``.

    Args:
        margin: The margin between positives and negatives.
        positive_temperature: Softmax temperature of the positives.
        negative_temperature: Softmax temperature of the negatives; 0.1/ln 3.5 by default.
        smoothness: L, the sharpness of the smooth hinge.
        weight: τ, a factor on the loss.
        scope: "batch" compares all samples of the batch; "image" compares each image separately and averages over
            images.
    """

    needs_quality = False
    takes_weights = False
    log = ("positive_score", "negative_score")

    def __init__(
        self,
        margin: float = 0.5,
        positive_temperature: float = 1.0,
        negative_temperature: float = 0.1 / math.log(3.5),
        smoothness: float = 6.0,
        weight: float = 4.0,
        scope: Literal["batch", "image"] = "batch",
    ) -> None:
        super().__init__()
        if min(positive_temperature, negative_temperature) < 0.02 or min(smoothness, weight) <= 0:
            # At lower temperatures, the weights of low scores leave the range of float32.
            raise ValueError(
                f"the temperatures must be at least 0.02, smoothness and weight above 0, got {positive_temperature}, "
                f"{negative_temperature}, {smoothness} and {weight}"
            )
        check_choice("scope", scope, ("batch", "image"))
        self.margin = margin
        self.positive_temperature = positive_temperature
        self.negative_temperature = negative_temperature
        self.smoothness = smoothness
        self.weight = weight
        self.scope = scope
        self.needs_sync = scope == "image"  # the host needs the number of images

    def reads_image(self, image: Tensor | None) -> bool:
        return self.scope == "image"

    @property
    def _sharpness(self) -> np.float32:
        return np.float32(1 / self.negative_temperature)

    def compute(self, samples: Samples) -> ValueAndGradient:
        group, groups = _groups(samples)
        mass, negatives = self._negative_scores(samples, group, groups)
        p = samples.positives.double().sigmoid()
        share = samples.only_positives(torch.exp(-p / self.positive_temperature))
        positives, slope = self._positive_scores(p, share, group[samples.rows], groups)
        gap = negatives - positives + self.margin
        loss = self.weight / self.smoothness * F.softplus(self.smoothness * gap).mean()
        pull = self.weight / groups * torch.sigmoid(self.smoothness * gap)  # per group
        gradient = self._negative_gradient(samples, group, negatives, pull / mass)
        lift = -pull[group[samples.rows]] * slope * p * (1 - p)
        samples.write(gradient, lift)
        return with_gradient(samples, loss, gradient, positives.mean(), negatives.mean())

    def _positive_scores(self, p: Tensor, share: Tensor, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """The expected score of the positives per group (1 without positives), and its derivatives."""
        mass, moment = _group_sums(share, group, groups), _group_sums(share * p, group, groups)
        expected = torch.where(mass > 0, moment / torch.where(mass > 0, mass, 1.0), 1.0)
        return expected, share / mass[group] * (1 - (p - expected[group]) / self.positive_temperature)

    def _negative_scores(self, samples: Samples, group: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """The sum of the unnormalized weights of the negatives per group, and their expected score, 0 without any."""

        def of_block(block: Block) -> Tensor:
            p = block.logits.sigmoid()
            share = block.only_negatives(p.div(self.negative_temperature).exp_())
            rows = torch.stack([share.sum(1), share.mul_(p).sum(1)], 1).double()
            return torch.stack([_group_sums(row, group[block.rows], groups) for row in rows.unbind(1)])

        def of_compiled(block: Block) -> Tensor:
            from rankwise.losses import scores_numba

            sums, given, own = np.zeros((2, groups)), block.negatives(), group[block.rows].numpy()
            length = given.classes if groups > 1 else given.logits.size
            scores_numba.expectation_sums(given, own, length, self._sharpness, scores_numba.buffers(), sums)
            return torch.from_numpy(sums)

        mass, moment = total(over_blocks(samples, of_block, of_compiled), like=samples.logits.new_zeros(2, groups))
        mass = torch.where(mass > 0, mass, 1.0)
        return mass, moment / mass

    def _negative_gradient(self, samples: Samples, group: Tensor, expected: Tensor, pull: Tensor) -> Tensor:
        """``pull`` times the gradient of the expected score of the negatives; ``pull`` includes the divisor."""
        logits = samples.values
        gradient = torch.empty_like(logits, memory_format=torch.contiguous_format)
        constant = (pull * (1 - expected / self.negative_temperature)).to(logits.dtype)
        pull = pull.to(logits.dtype)

        def of_block(block: Block) -> None:
            p, rows = block.logits.sigmoid(), group[block.rows].unsqueeze(1) if len(pull) > 1 else 0
            z = p.div(self.negative_temperature)
            slope = torch.addcmul(constant[rows], z, pull[rows], out=gradient[block.rows])
            slope.mul_(block.only_negatives(z.exp_())).mul_(p)
            slope.mul_(torch.neg(block.logits, out=p).sigmoid_())  # 1 - p would be 0 near 1

        def of_compiled(block: Block) -> None:
            from rankwise.losses import scores_numba

            given, own, numbers = block.negatives(), group[block.rows].numpy(), (constant.numpy(), pull.numpy())
            length = given.classes if len(pull) > 1 else given.logits.size
            out, buffers = gradient[block.rows].view(-1).numpy(), scores_numba.buffers()
            scores_numba.expectation_gradient(given, own, length, self._sharpness, *numbers, buffers, out)

        over_blocks(samples, of_block, of_compiled)
        return gradient


def _groups(samples: Samples) -> tuple[Tensor, int]:
    """The group of each row, [A], and the number of groups."""
    if samples.image is None or not len(samples.logits):
        return samples.rows.new_zeros(len(samples.logits)), 1
    present, group = samples.image.unique(return_inverse=True)
    return group, len(present)


def _group_sums(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """The sum of the values in each group, [groups]."""
    return values.sum()[None] if groups == 1 else values.new_zeros(groups).index_add_(0, group, values)
