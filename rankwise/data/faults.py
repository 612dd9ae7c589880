"""Faults of a dataset, with advice on how to fix them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.errors import DataError
from rankwise.files.names import counted, shown

#: Number of faults that an error lists; the others are counted.
SHOWN = 10


@dataclass(frozen=True)
class Fault:
    """A fault of a dataset.

    Attributes:
        kind: The type of the fault, such as ``"missing image"``, for counting.
        file: The file with the fault, relative to the dataset folder.
        what: What is wrong.
        todo: How to fix it.
        image: The image, if the file covers several.
        box: The box.
    """

    kind: str
    file: str
    what: str
    todo: str
    image: str = ""
    box: str = ""

    def __str__(self) -> str:
        where = ": ".join(part for part in (self.file, self.image) if part)
        return shown(f"{where}: {f'{self.box} ' if self.box else ''}{self.what}; {self.todo}")


def refuse(faults: Sequence[Fault], folder: str, split: str) -> None:
    """Raises a DataError with the first faults and their number."""
    lines = [f"{folder}: the {split} split has {counted(len(faults), 'fault')}:"]
    lines += [f"  {fault}" for fault in faults[:SHOWN]]
    if len(faults) > SHOWN:
        lines.append(f"  … and {len(faults) - SHOWN:,} more: rankwise data check {folder} lists them all")
    lines.append("Fix them, or set --data.skip_bad (in Python skip_bad=True) to skip such images and boxes.")
    raise DataError("\n".join(lines))


def left_out(faults: Sequence[Fault], split: str) -> str:
    """The message about skipped items."""
    kinds = ", ".join(f"{count:,} × {kind}" for kind, count in Counter(fault.kind for fault in faults).most_common())
    return f"{split}: {counted(len(faults), 'fault')} skipped or clipped ({kinds})"
