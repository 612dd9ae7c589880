"""What to rank where a detector reports a softmax over its classes and a background class."""

from __future__ import annotations

import torch
from torch import Tensor


def log_odds(logits: Tensor, background: int) -> Tensor:
    """log(p / (1 - p)) of each class's softmax probability, without the background's.

    It rises with the probability that is reported as score, so that to rank the one is to rank the other, and it is not
    squeezed together near 0 and 1. The logits themselves will not do: a score also depends on the row's other logits.

    Args:
        logits: Of the classes and the background, [..., C + 1].
        background: Which of them is the background: 0, or C for the last.

    Returns:
        [..., C].
    """
    peak = logits.argmax(-1, keepdim=True)
    is_peak = torch.zeros_like(logits, dtype=torch.bool).scatter_(-1, peak, True)
    relative = logits - logits.gather(-1, peak)
    powers = relative.exp()
    # The sum of all others, by subtraction where the largest stays in it: there it loses no digits.
    rest = (powers.sum(-1, keepdim=True) - powers).masked_fill(is_peak, 1.0).log()
    rest_of_peak = relative.masked_fill(is_peak, -torch.inf).logsumexp(-1, keepdim=True)
    odds = relative - torch.where(is_peak, rest_of_peak, rest)
    return torch.cat([odds[..., :background], odds[..., background + 1 :]], dim=-1)
