"""What is wrong with a dataset, said so that it can be put right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rankwise.errors import DataError
from rankwise.files.names import shown

#: Faults that an error shows one by one; the others it counts.
SHOWN = 10


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Attributes:
        kind: What sort of fault, such as ``"missing image"``: for counting.
        file: The file that holds it, from the dataset's folder on.
        what: What is wrong.
        todo: What to do about it.
        image: Which image it concerns, if the file is about several.
        box: Which box.
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
    """Stop at a dataset with faults: the first of them, and how many there are.

    Raises:
        DataError: Always.
    """
    lines = [f"{folder}: the {split} split has {_count(faults)}:"]
    lines += [f"  {fault}" for fault in faults[:SHOWN]]
    if len(faults) > SHOWN:
        lines.append(f"  … and {len(faults) - SHOWN:,} more: rankwise data check {folder} lists them all")
    lines.append("Put them right, or set skip_bad to leave such images and boxes out.")
    raise DataError("\n".join(lines))


def left_out(faults: Sequence[Fault], split: str) -> str:
    """What to say when faulty items were left out."""
    kinds = ", ".join(f"{count:,} × {kind}" for kind, count in Counter(fault.kind for fault in faults).most_common())
    return f"{split}: {_count(faults)} left out or clipped ({kinds})"


def _count(faults: Sequence[Fault]) -> str:
    return "1 fault" if len(faults) == 1 else f"{len(faults):,} faults"
