"""Splits batches into parts to save memory: a fixed number, or more when GPU memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankwise.training.step import whole_batch_backward
from rankwise.types import Batch


class Parts:
    """Runs the backward pass of a step in parts.

    Args:
        accumulate: Number of parts; 0 starts with one part and doubles the number when memory runs out.
        world_size: Number of processes. A step is only retried with a single process: others would wait for it.
        again: Called before a retry to restore what the first attempt changed.
        say: Called with messages for the user.
    """

    def __init__(self, accumulate: int, world_size: int, again: Callable[[], None], say: Callable[[str], None]) -> None:
        self.count = max(1, accumulate)
        self.grows = accumulate == 0 and world_size == 1
        self.again, self.say = again, say

    def backward(self, fabric: Any, model: Any, criterion: Any, batch: Batch, watch: Any, go_on: Any) -> Any:
        """The same as :func:`whole_batch_backward`, with as many parts as memory needs."""
        while True:
            try:
                return whole_batch_backward(fabric, model, criterion, batch, self.count, watch, go_on)
            except torch.OutOfMemoryError:
                if not self.grows or self.count >= len(batch.targets):
                    raise
            self.count = min(2 * self.count, len(batch.targets))
            self.again()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.say(f"GPU memory is too small for a whole batch: batches are now split into {self.count} parts")
