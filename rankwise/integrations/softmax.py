"""Log-odds for detectors with a softmax over classes and background."""

from __future__ import annotations

import torch
from torch import Tensor


def log_odds(logits: Tensor, background: int) -> Tensor:
    """log(p / (1 - p)) of the softmax probability of each class, without the background.

    It increases with the probability that is reported as score, so both have the same order, and it does not saturate
    near 0 and 1. The logits cannot be used, because a score also depends on the other logits of the row.

    Args:
        logits: Logits of the classes and the background, [..., C + 1].
        background: The index of the background: 0, or C for the last.

    Returns:
        [..., C].
    """
    peak = logits.argmax(-1, keepdim=True)
    is_peak = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, peak, True)
    relative = logits - logits.gather(-1, peak)
    powers = relative.exp()
    # The sum over all other classes, by subtraction if it contains the largest term, which then loses no precision.
    rest = (powers.sum(-1, keepdim=True) - powers).masked_fill(is_peak, 1.0).log()
    rest_of_peak = relative.masked_fill(is_peak, -torch.inf).logsumexp(-1, keepdim=True)
    odds = relative - torch.where(is_peak, rest_of_peak, rest)
    return torch.cat([odds[..., :background], odds[..., background + 1 :]], dim=-1)
