"""Into how many parts a batch is taken, for memory: a fixed number, or more when the GPU's memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rankwise.training.step import whole_batch_backward
from rankwise.types import Batch


class Parts:
    """Runs the backward pass of a step in parts.

    Args:
        accumulate: The recipe's number; 0 begins with one part and doubles the number when memory runs out.
        world_size: How many processes there are. Only one alone can try a step again: the others would wait for it.
        again: Called before a step is tried again: puts back what the first try has changed.
        say: Called with what a user should hear.
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
            self.say(
                f"the GPU's memory is too small for a batch at once: it is taken in {self.count} parts from now on"
            )
