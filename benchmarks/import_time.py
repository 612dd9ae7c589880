"""How long `import rankwise.losses` takes beyond `import torch`, and what it imports.

Run: python benchmarks/import_time.py [--turns 9]
"""

from __future__ import annotations

import argparse
import subprocess
import sys

#: What a loss must not need: half a second and more, or packages that a user of one loss may not have.
FOREIGN = (
    "torchvision",
    "timm",
    "numba",
    "lightning",
    "lightning_fabric",
    "matplotlib",
    "scipy",
    "jsonargparse",
    "hotcoco",
    "rich",
)

CODE = """
import sys, time
start = time.perf_counter()
import torch
{more}
seconds = time.perf_counter() - start
print(seconds, *sorted(set(sys.modules) & set({foreign!r})))
"""


def measure(more: str) -> tuple[float, list[str]]:
    """Seconds of the imports in a new process, and which of the foreign packages they brought."""
    command = [sys.executable, "-c", CODE.format(more=more, foreign=FOREIGN)]
    seconds, *foreign = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(seconds), foreign


def main(turns: int) -> None:
    best = {"": float("inf"), "import rankwise.losses": float("inf")}
    foreign: list[str] = []
    for more in [*best] * turns:  # in turns, so that a slow moment of the machine meets both
        seconds, foreign = measure(more)
        best[more] = min(best[more], seconds)
    torch_alone, both = best.values()
    print(f"torch alone: {torch_alone:.3f} s, with rankwise.losses: {both:.3f} s, best of {turns}")
    print(f"rankwise.losses adds {both - torch_alone:.3f} s and imports {', '.join(foreign) or 'nothing else'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=9, help="processes of each kind")
    main(**vars(parser.parse_args()))
