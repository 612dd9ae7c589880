"""Copies the next batch to the GPU while it works on the current one."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rankwise.types import Batch


class Prefetcher:
    """Iterates over batches on a device; `look_ahead` starts the copy of the next one, from pinned memory, on a
    separate stream.

    Errors are returned instead of a batch, so that all processes learn about them in the same step.
    """

    def __init__(self, batches: Iterator[Batch], device: torch.device, channels_last: bool = False) -> None:
        self.batches = batches
        self.device = device
        self.channels_last = channels_last
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._next: Batch | Exception | None = None

    def next(self) -> Batch | Exception:
        """The next batch, ready for the current stream, or the error."""
        batch = self._next or self._load()
        self._next = None
        if self.stream is not None and isinstance(batch, Batch):
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(self.stream)
            batch.images.record_stream(current)  # otherwise its memory could be reused while it is still being read
        return batch

    def look_ahead(self) -> None:
        """Loads the next batch and starts its copy. Call it while the GPU is busy; on a CPU it has no effect."""
        if self.stream is not None and self._next is None:
            self._next = self._load()

    def _load(self) -> Batch | Exception:
        try:
            batch = next(self.batches)
            with torch.cuda.stream(self.stream):  # no stream: nothing happens
                batch = batch.to(self.device)
                if self.channels_last:
                    batch = Batch(batch.images.to(memory_format=torch.channels_last), batch.targets)
            return batch
        except Exception as error:
            return error
