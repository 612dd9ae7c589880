"""Random scenes for every ranking loss, each compared with its definition in float64: `make soak`.

Logits have all spreads and shifts that float32 holds, up to 3e38, alone and mixed with usual ones, in float32, float64,
bfloat16 and float16; λ goes from 1 to 30; there are ties, ignored rows, scenes without positives, several images, few
and thousands of samples, every scope, distance, balance and choice of pairs. Numba computes each scene with array
bounds checked, the other engines for CPUs some of them. A scene fails if value or gradient differ from the definition
by more than rounding explains, or an error is raised where the definition has a finite value. Exit code 1 if any does.
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
from definition import definition
from torch import Tensor

from rankwise import losses
from rankwise.losses import AdaptivePairs, Loss, PositiveVsNegative, Rank, ValidNegatives
from rankwise.losses.ranking import RankingLoss
from rankwise.pairsums import Sigmoid, SigmoidCrossEntropy, Step

#: Largest logit; float32 ends at 3.4e38.
LARGEST = 3e38
#: Relative error that rounding explains: of the values in float32, and of what is returned in half precision.
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4, torch.bfloat16: 2e-2, torch.float16: 2e-3}
#: Numbers drawn once per loss, so that losses with the same settings are made once.
POOL = 40


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
    choices = _choices(kind, dice)
    for _ in range(number):
        generator = torch.Generator().manual_seed(dice.getrandbits(40))
        classes, many = dice.randint(1, 3), dice.random()
        # Few samples in most scenes, which find as much in less time; more positives than engines take one by one.
        rows = round(math.exp(dice.uniform(0, math.log(60 if many < 0.97 else 3000))))
        positives = dice.randint(0, min(rows, 8))
        if many > 0.9998:
            rows, positives = 1600, dice.randint(1030, 1500)
        noise = torch.randn(rows, classes, generator=generator, dtype=torch.float64)
        tied = dice.random() < 0.2
        if tied:
            noise = noise.round()
        spread, shift = _size(dice, largest), dice.choice([0, 0, -1, 1]) * _size(dice, largest)
        logits = noise * spread + shift
        if dice.random() < 0.2:  # a few of another size
            others = torch.rand(rows, classes, generator=generator) < 0.1
            logits[others] = noise[others] * _size(dice, largest)
        labels = torch.full((rows,), classes)
        order = torch.randperm(rows, generator=generator)
        ignored = dice.randint(0, 2)
        labels[order[:positives]] = torch.randint(0, classes, (positives,), generator=generator)
        labels[order[positives : positives + ignored]] = -1
        dtype = dice.choice([torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16])
        most = min(largest, torch.finfo(dtype).max * 0.99)
        logits = logits.clamp(-most, most).to(dtype)
        settings = {name: dice.choice(values) for name, values in choices.items()}
        if settings.get("interpolated") and kind is losses.PairwiseError:  # it cannot be combined with all
            settings |= {
                "distance": dice.choice([Step(), Sigmoid()]),
                "balance": Rank(1),
                "pairs": PositiveVsNegative(),
            }
        if settings.get("max_negatives") and len(logits.unique()) < logits.numel():
            settings["max_negatives"] = None  # of equal ones any may be taken
        quality = torch.rand(rows, generator=generator)
        image = torch.randint(0, dice.randint(1, 3), (rows,), generator=generator)
        yield Scene(settings, logits, labels, quality.to(dtype), image)


def _size(dice: random.Random, largest: float) -> float:
    """A size of logits: of any, or one that is met in training."""
    return 10 ** dice.uniform(*((-3, math.log10(largest)) if dice.random() < 0.6 else (-2, 2)))


def _choices(kind: type[Loss], dice: random.Random) -> dict[str, list[Any]]:
    """The values of each setting of a loss."""
    lams = [dice.uniform(1, 30) for _ in range(POOL)]
    deltas = [10 ** dice.uniform(-3, 2) for _ in range(POOL)]
    known = {
        "scope": ["batch", "batch", "image", "class"],
        "lam": lams,
        "delta": deltas,
        "weight_by_quality": [False, True],
        "interpolated": [False, True],
        "max_negatives": [None, None, None, 1, 5, 50],
        "cut": [None, None, None, 4.0],
        "tau": [0.0, 0.5, 0.9],
        "alpha": [0.5, 1.0, 10.0],
        "groups": [1, 10, 100],
        "temperature": [1e-3, 0.01, 1.0],
        "distance": [Step(deltas[0]), Step(deltas[1]), *map(Sigmoid, lams[:3]), *map(SigmoidCrossEntropy, lams[:5])],
        "balance": [None, None, None, Rank(1.0), ValidNegatives(), ValidNegatives(3.0)],
        "pairs": [None, AdaptivePairs(), PositiveVsNegative()],
    }
    return {name: values for name, values in known.items() if name in inspect.signature(kind).parameters}


class Soak:
    """A loss by its definition and by every engine.

    Args:
        kind: The loss.
    """

    def __init__(self, kind: type[Loss]) -> None:
        self.kind = kind
        self._made: dict[str, Loss] = {}

    def fault(self, scene: Scene, index: int) -> str | None:
        """What is wrong with a loss on a scene; None if nothing is.

        Args:
            scene: The scene.
            index: Its number: the torch engine computes every eighth scene, the dense one some of these.
        """
        others = (["torch"] if index % 8 == 0 else []) + (["dense"] if index % 40 == 0 else [])
        loss = self._loss("fast", scene)
        if isinstance(loss, RankingLoss):
            arrays = (
                part.numpy() for part in (scene.logits.double(), scene.labels, scene.quality.double(), scene.image)
            )
            truth, slope = definition(loss.spec, *arrays)
            # Numba says that it cannot drop pairs.
            methods = list(dict.fromkeys(["torch" if loss.spec.has_floor else "numba", *others]))
        else:
            value, gradient = self._call("dense", scene, torch.float64)
            truth, slope, methods = float(value), gradient.numpy(), ["fast"]
        for method in methods:
            if wrong := self._difference(method, scene, truth, torch.from_numpy(slope)):
                return f"{method}: {wrong}"
        return None

    def _difference(self, method: str, scene: Scene, truth: float, slope: Tensor) -> str | None:
        dtype = scene.logits.dtype
        try:
            value, gradient = self._call(method, scene, dtype)
        except Exception as error:
            overflows = isinstance(error, ValueError) and abs(truth) > torch.finfo(dtype).max / 4
            return None if overflows else f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if abs(truth) > torch.finfo(value.dtype).max / 4:
            return None  # no number of this type is near it
        tolerance = TOLERANCE[dtype]
        if not abs(float(value) - truth) <= tolerance * abs(truth) + 1e-5:
            return f"value {float(value):g} instead of {truth:g}"
        difference = float((gradient.double() - slope).abs().max())
        largest = float(slope.abs().max())
        if largest < torch.finfo(dtype).max / 4 and not difference <= tolerance * largest + 1e-5:
            return f"gradient off by {difference:g}, the largest is {largest:g}"
        return None

    def _call(self, method: str, scene: Scene, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        logits = scene.logits.detach().to(dtype).requires_grad_()
        value = self._loss(method, scene)(logits, scene.labels, scene.quality.to(dtype), scene.image)
        (gradient,) = torch.autograd.grad(value, logits, allow_unused=True)
        return value.detach(), torch.zeros_like(logits) if gradient is None else gradient

    def _loss(self, method: str, scene: Scene) -> Loss:
        key = f"{method} {scene.settings}"
        if key not in self._made:
            self._made[key] = self.kind(**scene.settings, method=method)
        return self._made[key]


def soak(kind: type[Loss], number: int, seed: int = 0, largest: float = LARGEST) -> list[str]:
    """The faults of a loss over random scenes, each with its scene."""
    found, loss = [], Soak(kind)
    for index, scene in enumerate(scenes(kind, number, seed, largest)):
        if wrong := loss.fault(scene, index):
            shape, top = list(scene.logits.shape), float(scene.logits.abs().max())
            about = f"{scene.settings} {scene.logits.dtype} {shape} to {top:.3g}"
            found.append(f"{kind.__name__} scene {index} {about}: {wrong}")
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
        start, used = time.monotonic(), time.process_time()
        found = soak(kind, options.scenes, options.seed, options.largest)
        failed += len(found)
        times = f"{time.monotonic() - start:.0f} s, {time.process_time() - used:.0f} s of CPU time"
        print(f"{kind.__name__:<16} {options.scenes:,} scenes, {len(found):,} failures, {times}", flush=True)
        for line in found[:5]:
            print(f"  {line}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
