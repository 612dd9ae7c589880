"""Integrity of weights files: checksums, and limits on the size of the detector they describe."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from rankwise.errors import ModelError
from rankwise.files.names import escaped

#: Metadata key of the checksum.
KEY = "sha256"

#: How much larger than its file a detector may be during construction, because unused layers are removed later.
_FACTOR, _TENSORS, _NUMBERS = 4, 500, 2**26
#: Maximum number of modules per tensor; most modules have no weights.
_MODULES = 20


def checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """The SHA-256 of all tensors, which are on the CPU, and all metadata except the checksum itself."""
    digest = hashlib.sha256()
    for name in sorted(set(metadata) - {KEY}):
        digest.update(repr((name, metadata[name])).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(repr((name, str(tensor.dtype), list(tensor.shape))).encode())
        if tensor.numel():
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], promised: bool, path: Path) -> None:
    """Refuses a file whose checksum does not match, or is missing although ``promised``: files of earlier versions have
    none."""
    if (promised or KEY in metadata) and metadata.get(KEY) != checksum(tensors, metadata):
        raise ModelError(
            f"{escaped(path)}: damaged: its checksum does not match its content. Use an intact copy, or train again"
        )


@contextmanager
def no_larger_than(tensors: Mapping[str, Tensor], path: Path) -> Iterator[None]:
    """Stops the construction of a detector as soon as it has more or larger weights than the file.

    A few bytes in a file may describe a billion layers. The check stops at the first excess layer, before its weights
    are filled.

    Raises:
        ModelError: If the detector is larger.
    """
    held = sum(tensor.numel() for tensor in tensors.values())
    most = {
        "tensors": _FACTOR * len(tensors) + _TENSORS,
        "numbers": _FACTOR * held + _NUMBERS,
        "modules": _MODULES * (_FACTOR * len(tensors) + _TENSORS),
    }
    built = dict.fromkeys(most, 0)

    def count(what: str, number: int = 1) -> None:
        built[what] += number
        if built[what] > most[what]:
            raise ModelError(
                f"{escaped(path)}: its settings ask for a detector of more than {most[what]:,} {what}, but it contains "
                f"{len(tensors):,} tensors with {held:,} values in total; it was not built"
            )

    def tensor(module: nn.Module, name: str, value: Tensor | None) -> None:
        if value is not None:
            count("tensors")
            count("numbers", value.numel())

    handles = [
        register_module_parameter_registration_hook(tensor),
        register_module_buffer_registration_hook(tensor),
        register_module_module_registration_hook(lambda module, name, value: count("modules")),
    ]
    try:
        yield
    except (ModelError, RuntimeError, MemoryError, OverflowError) as error:
        if str(error).startswith(escaped(path)):
            raise
        raise ModelError(f"{escaped(path)}: its settings cannot be built: {str(error)[:300]}") from error
    finally:
        for handle in handles:
            handle.remove()
