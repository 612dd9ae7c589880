"""Random scenes for every ranking loss, each compared with its definition in float64: `make soak`.

Logits have all spreads and shifts that float32 holds, up to 3e38, in float32, bfloat16 and float16; λ goes from 1 to
30; there are ties, ignored rows, scenes without positives and several images. Array bounds are checked where numba
computes. A scene fails if value or gradient differ from the definition by more than rounding explains, or an error is
raised where the definition has a finite value. Exit code 1 if any does.
"""

from __future__ import annotations

import argparse
import inspect
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

if __name__ == "__main__":  # before numba is imported, and apart from what is compiled without checks
    os.environ["NUMBA_BOUNDSCHECK"] = "1"
    os.environ["NUMBA_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "rankwise-soak")  # noqa: PTH118

import torch
from torch import Tensor

from rankwise import losses
from rankwise.losses import Loss

#: Largest logit; float32 ends at 3.4e38.
LARGEST = 3e38
#: Relative error that rounding explains: of the values in float32, and of what is returned in half precision.
TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}


class Scene(NamedTuple):
    """A loss and what it is called with."""

    settings: dict[str, Any]
    logits: Tensor
    labels: Tensor
    quality: Tensor
    image: Tensor


def ranking_losses() -> list[type[Loss]]:
    """Every loss that has a fast and a dense method."""
    kinds = [value for value in vars(losses).values() if isinstance(value, type) and issubclass(value, Loss)]
    return sorted(
        (kind for kind in kinds if "method" in inspect.signature(kind).parameters), key=lambda kind: kind.__name__
    )


def scenes(kind: type[Loss], number: int, seed: int = 0, largest: float = LARGEST) -> Iterator[Scene]:
    """Random scenes for a loss, the same ones for the same seed.

    Args:
        kind: The loss.
        number: How many.
        seed: Another seed, other scenes.
        largest: Largest absolute value of a logit.
    """
    dice = random.Random(f"{kind.__name__} {seed}")
    known = inspect.signature(kind).parameters
    for _ in range(number):
        generator = torch.Generator().manual_seed(dice.getrandbits(40))
        rows, classes = dice.randint(1, 40), dice.randint(1, 3)
        spread, shift = (10 ** dice.uniform(-3, math.log10(largest)) for _ in range(2))
        noise = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
        if dice.random() < 0.2:
            noise = noise.round()  # ties
        logits = noise * spread + dice.choice([0, 0, -1, 1]) * shift
        labels = torch.full((rows,), classes)
        order = torch.randperm(rows, generator=generator)
        positives, ignored = dice.randint(0, min(rows, 8)), dice.randint(0, 2)
        labels[order[:positives]] = torch.randint(0, classes, (positives,), generator=generator)
        labels[order[positives : positives + ignored]] = -1
        dtype = dice.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
        most = min(largest, torch.finfo(dtype).max * 0.99)
        settings: dict[str, Any] = {"scope": dice.choice(["batch", "image"])} if "scope" in known else {}
        if "lam" in known:
            settings["lam"] = dice.uniform(1, 30)
        if "weight_by_quality" in known:
            settings["weight_by_quality"] = dice.random() < 0.5
        quality = torch.rand(rows, generator=generator)
        image = torch.randint(0, dice.randint(1, 3), (rows,), generator=generator)
        yield Scene(settings, logits.clamp(-most, most).to(dtype), labels, quality.to(dtype), image)


def fault(kind: type[Loss], scene: Scene) -> str | None:
    """What is wrong with a loss on a scene; None if nothing is."""
    truth, slope = _called(kind, scene, "dense", torch.float64)
    try:
        value, gradient = _called(kind, scene, None, scene.logits.dtype)
    except Exception as error:
        overflows = isinstance(error, ValueError) and abs(float(truth)) > torch.finfo(scene.logits.dtype).max / 4
        return None if overflows else f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if abs(float(truth)) > torch.finfo(value.dtype).max / 4:
        return None  # no number of this type is near it
    tolerance = TOLERANCE[scene.logits.dtype]
    if not abs(float(value) - float(truth)) <= tolerance * abs(float(truth)) + 1e-5:
        return f"value {float(value):g} instead of {float(truth):g}"
    difference = float((gradient.double() - slope).abs().max()) if slope.numel() else 0.0
    largest = float(slope.abs().max()) if slope.numel() else 0.0
    if largest < torch.finfo(gradient.dtype).max / 4 and not difference <= tolerance * largest + 1e-5:
        return f"gradient off by {difference:g}, the largest is {largest:g}"
    return None


def _called(kind: type[Loss], scene: Scene, method: str | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    loss = kind(**scene.settings, **({} if method is None else {"method": method}))
    logits = scene.logits.detach().to(dtype).requires_grad_()
    value = loss(logits, scene.labels, scene.quality.to(dtype), scene.image)
    (gradient,) = torch.autograd.grad(value, logits, allow_unused=True)
    return value.detach(), torch.zeros_like(logits) if gradient is None else gradient


def soak(kind: type[Loss], number: int, seed: int = 0, largest: float = LARGEST) -> list[str]:
    """The faults of a loss over random scenes, each with its scene."""
    found = []
    for index, scene in enumerate(scenes(kind, number, seed, largest)):
        if wrong := fault(kind, scene):
            top = float(scene.logits.abs().max())
            found.append(f"{kind.__name__} scene {index} {scene.settings} {scene.logits.dtype} to {top:.3g}: {wrong}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=20_000, help="Scenes per loss.")
    parser.add_argument("--loss", nargs="*", help="Names of losses (default: every ranking loss).")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--largest", type=float, default=LARGEST, help="Largest absolute value of a logit.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = 0
    for kind in ranking_losses():
        if options.loss and kind.__name__ not in options.loss:
            continue
        start = time.monotonic()
        found = soak(kind, options.scenes, options.seed, options.largest)
        failed += len(found)
        seconds = time.monotonic() - start
        print(f"{kind.__name__:<16} {options.scenes:,} scenes, {len(found):,} failures, {seconds:.0f} s", flush=True)
        for line in found[:5]:
            print(f"  {line}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
