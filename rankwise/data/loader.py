"""Batches in an order that depends only on seed and epoch, for any number of workers and after any restart."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from rankwise.data.balance import epoch_images, repeat_factors, repeated_order
from rankwise.data.dataset import DetectionDataset
from rankwise.errors import DataError
from rankwise.images.settings import MEAN_COLOUR
from rankwise.images.tensors import pad_images
from rankwise.types import Batch, Target

#: The epoch, the index of an item, and how often it was used before in the epoch: all that a worker needs.
_Key = tuple[int, int, int]

#: The index that stands for a blank image.
_NOTHING = -1


def collate(
    items: Sequence[tuple[Tensor, Target]], divisor: int = 32, colour: tuple[int, int, int] = MEAN_COLOUR
) -> Batch:
    """Pads images at the right and bottom to the same size and stacks them with their targets.

    Args:
        items: Images, uint8 [3, H, W], and targets.
        divisor: Height and width of the batch are multiples of this.
        colour: The padding color: red, green and blue in bytes.
    """
    images, targets = zip(*items, strict=True)
    return Batch(pad_images(images, divisor, colour), list(targets))


def epoch_order(images: int, seed: int, epoch: int, shuffle: bool, factors: Sequence[float] | None = None) -> list[int]:
    """The order of the images in an epoch, a function of seed and epoch only: each once, or repeated by the factors."""
    if not shuffle:
        return list(range(images))
    generator = torch.Generator().manual_seed(mixed(seed, epoch))
    if factors is not None:
        return repeated_order(factors, generator)
    return torch.randperm(images, generator=generator).tolist()


def mixed(*numbers: int) -> int:
    """Mixes several integers into one seed, so that similar inputs give unrelated seeds (SplitMix64)."""
    mask = (1 << 64) - 1
    state = 0
    for number in numbers:
        state = (state ^ (number & mask)) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state >> 1  # torch generators accept 63 bits


@dataclass(eq=False)
class _Batches(Sampler[list[_Key]]):
    """The images of this process in each step of an epoch."""

    images: int
    batch_size: int
    shuffle: bool
    seed: int
    rank: int
    world_size: int
    factors: Sequence[float] | None
    epoch: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        self.total = self.images if self.factors is None else epoch_images(self.factors)  # over all processes

    def __len__(self) -> int:
        full, rest = divmod(self.total, self.batch_size)
        return full + (rest > (0 if self.shuffle else self.rank))

    def __iter__(self) -> Iterator[list[_Key]]:
        order = epoch_order(self.images, self.seed, self.epoch, self.shuffle, self.factors)
        used: Counter[int] = Counter()
        repeats = []
        for index in order:
            repeats.append(used[index])
            used[index] += 1
        for step in range(self.start, len(self)):
            own = slice(step * self.batch_size + self.rank, (step + 1) * self.batch_size, self.world_size)
            share = list(zip(order[own], repeats[own], strict=True))
            yield [(self.epoch, index, repeat) for index, repeat in share or [(_NOTHING, 0)]]


class _Seeded(Dataset[tuple[Tensor, Target] | DataError]):
    """A dataset whose random numbers depend on seed, epoch and image."""

    def __init__(self, dataset: DetectionDataset, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitem__(self, key: _Key) -> tuple[Tensor, Target] | DataError:
        epoch, index, repeat = key
        if index == _NOTHING:
            image, target = self.dataset.blank(0, fault=None)
            return image, target | {"image_id": _NOTHING, "name": "(blank)"}
        with torch.random.fork_rng(devices=[]):  # without workers, this is the training process
            # Only the CPU generator: torch.manual_seed would record the call stack for each type of device.
            torch.default_generator.manual_seed(mixed(self.seed, epoch, index, *([repeat] if repeat else [])))
            try:
                return self.dataset[index]
            except DataError as error:
                return error  # raised where the batch is used, without the traceback of the worker


def _collate_or_error(items: list[Any], divisor: int, colour: tuple[int, int, int]) -> Batch | DataError:
    """The batch, unless one of its items is an error: then the first one."""
    error = next((item for item in items if isinstance(item, DataError)), None)
    return collate(items, divisor, colour) if error is None else error


class Loader:
    """Batches of a dataset, epoch by epoch; :func:`build_loader` makes one.

    Args:
        dataset: The dataset.
        batches: The indices of each batch.
        loader: The torch loader.
    """

    def __init__(self, dataset: DetectionDataset, batches: _Batches, loader: DataLoader[Any]) -> None:
        self.dataset = dataset
        self._batches = batches
        self._loader = loader

    def __len__(self) -> int:
        """Number of batches per epoch for this process."""
        return len(self._batches)

    @property
    def images(self) -> int:
        """Number of images per epoch, over all processes."""
        return self._batches.total

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, for this process.

        Args:
            epoch: The epoch, from 0.
            start: Number of steps to skip: those that a stopped run has already done.
        """
        self._batches.epoch, self._batches.start = epoch, start
        batches = None
        while True:
            try:
                batches = batches or _started(self._loader)
                batch = next(batches)
            except StopIteration:
                return
            except (RuntimeError, ConnectionError, EOFError) as error:
                lost = isinstance(error, ConnectionError | EOFError) and self._loader.num_workers
                if not lost and "exited unexpectedly" not in str(error) and "killed by signal" not in str(error):
                    raise
                why = next(iter(str(error).splitlines()), type(error).__name__)
                raise RuntimeError(
                    f"a loader worker died ({why}); usually memory ran out: use fewer workers or smaller images, or 0 "
                    f"workers to see the error"
                ) from error
            if isinstance(batch, DataError):
                self.close()
                raise batch
            yield batch

    def close(self) -> None:
        """Ends the workers; another epoch starts new ones. As garbage, each would keep torch waiting for 5 seconds."""
        batches: Any = self._loader._iterator  # of workers that stay for the next epoch
        self._loader._iterator = None
        if batches is not None:
            batches._shutdown_workers()


def _started(loader: DataLoader[Any]) -> Iterator[Any]:
    """An iterator that reports a dead worker only when a batch is asked for.

    torch's handler of SIGCHLD raises wherever the program is, such as in an optimizer step, after which a run cannot be
    saved.
    """
    before = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    batches = iter(loader)
    if before is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, before)
    return batches


def usable_cores() -> int:
    """The number of cores that this process may use: taskset, containers and Slurm may allow only some of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def build_loader(
    dataset: DetectionDataset,
    batch_size: int,
    shuffle: bool,
    seed: int = 0,
    workers: int | None = 0,
    divisor: int = 32,
    rank: int = 0,
    world_size: int = 1,
    pin_memory: bool = False,
    prefetch: int = 2,
    colour: tuple[int, int, int] = MEAN_COLOUR,
    balance: bool | float = False,
) -> Loader:
    """Creates a loader whose batches depend only on ``seed`` and the epoch.

    The order of the images depends on ``seed`` and the epoch, the augmentation of an image on ``seed``, the epoch and
    the image. The numbers of workers and processes do not change them, and a run that was stopped in the middle of an
    epoch resumes exactly there. Step s of an epoch uses images ``s * batch_size`` to ``(s + 1) * batch_size`` of the
    order; process r of w uses every w-th of them, starting with the r-th. The last step may be smaller. A process
    without an image then skips it; when shuffling, it gets a blank image that is entirely an ignore region, so that all
    processes train the same number of steps.

    Args:
        dataset: The dataset.
        batch_size: Images per step, over all processes.
        shuffle: Whether to use a new order in each epoch, as for training; otherwise that of the dataset.
        seed: Random seed of order and augmentation.
        workers: Number of loader processes, at most one per core; 0 loads in this process, None uses one per core
            except one.
        divisor: Height and width of a batch are multiples of this.
        rank: The rank of this process.
        world_size: Number of processes.
        pin_memory: Whether to pin batches in memory, for copies to a GPU.
        prefetch: Number of batches that each worker loads ahead.
        colour: The padding color: red, green and blue in bytes.
        balance: Sample images of rare classes more often when shuffling; see ``repeat_factors``.
    """
    if batch_size < 1 or batch_size % world_size:
        raise ValueError(
            f"batch_size is {batch_size}, for {world_size} processes; it counts the images of all of them and must "
            f"be a multiple of {world_size}"
        )
    if len(dataset) == 0:
        raise DataError("the dataset has no images; run rankwise data check")
    cores = usable_cores()
    if workers is None:
        workers = cores - 1
    if workers < 0:
        raise DataError(f"workers is {workers}: it must be at least 0 (--data.workers, --workers)")
    if workers > (most := max(64, 4 * cores)):
        raise DataError(
            f"workers is {workers}: this machine allows at most {most}; use fewer (--data.workers, --workers)"
        )
    workers = min(workers, cores)  # more would compete with each other for them, and torch would warn about it
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": prefetch} if workers else {}
    if workers and "fork" in multiprocessing.get_all_start_methods():
        more["multiprocessing_context"] = "fork"  # records and generated images are shared, not copied
    factors = repeat_factors(dataset, balance) if shuffle else None
    batches = _Batches(len(dataset), batch_size, shuffle, seed, rank, world_size, factors)
    loader: DataLoader[Any] = DataLoader(
        _Seeded(dataset, seed),
        batch_sampler=batches,
        num_workers=workers,
        collate_fn=partial(_collate_or_error, divisor=divisor, colour=colour),
        pin_memory=pin_memory,
        generator=torch.Generator(),  # a separate one: the loader must not affect the random state of the training
        **more,
    )
    return Loader(dataset, batches, loader)
