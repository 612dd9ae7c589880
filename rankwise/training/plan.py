"""How long a run is, when it is evaluated, and how much time it has left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from rankwise.config.settings import TrainSettings
from rankwise.training.state import Progress

#: The first evaluation comes within this share of a run.
FIRST_BY = 0.2
#: Where the regular one is later, an extra evaluation is made after this share, unless that is only a few steps.
FIRST_AT, FIRST_STEPS = 0.15, 5
#: Automatic evaluations in a run, and the largest share of a time budget that they take.
EVALUATIONS, EVALUATION_SHARE = 10, 0.15
#: The first steps compile code and fill caches: they say nothing about the others.
WARM_UP = 3
#: Steps after which a time budget is turned into steps again, beside those that follow an evaluation.
RETHINK = frozenset(5 * 2**power for power in range(12))
#: Steps that a run with a time budget has until it knows how long a step takes.
PROVISIONAL = 1000
#: Seconds that figures and pictures take after the last evaluation, roughly.
DRAWING = 5.0


@dataclass
class Plan:
    """The length of a run and its evaluations, in steps.

    Attributes:
        steps: Steps of the whole run.
        steps_per_epoch: Steps in an epoch.
        interval: Steps between evaluations.
        base: The step from which intervals count: with a time budget that of the last evaluation.
    """

    steps: int
    steps_per_epoch: int
    interval: int
    base: int = 0

    @classmethod
    def of(cls, settings: TrainSettings, steps_per_epoch: int, at: Progress) -> Plan:
        """The plan for a number of epochs; with a time budget a provisional one, or that of a run that is resumed.

        Args:
            settings: The recipe's section.
            steps_per_epoch: Steps in an epoch.
            at: Where the run is.
        """
        if settings.minutes:
            # A budget that was raised after the run had used it up gives more steps of the same length.
            raised = 60 * settings.minutes > 1.2 * at.seconds > 0
            steps = int(at.step * 60 * settings.minutes / at.seconds) if raised else PROVISIONAL
            steps = at.steps if at.steps > at.step or (at.steps and not raised) else steps
            return cls(steps, steps_per_epoch, -(-steps // EVALUATIONS), at.evaluated)
        every = settings.evaluate_every or max(1, round(settings.epochs / EVALUATIONS))
        return cls(settings.epochs * steps_per_epoch, steps_per_epoch, every * steps_per_epoch)

    @property
    def epochs(self) -> int:
        """Epochs that the run begins."""
        return -(-self.steps // self.steps_per_epoch)

    @property
    def first(self) -> int:
        """The step of the extra evaluation early in the run; 0 if none is needed."""
        early = int(FIRST_AT * self.steps)
        needed = not self.base and self.interval > FIRST_BY * self.steps
        return early if needed and early >= FIRST_STEPS else 0

    def is_due(self, step: int) -> bool:
        """Whether the detector is evaluated after this step."""
        if not 0 < step <= self.steps:
            return False
        return step in (self.steps, self.first) or (step > self.base and (step - self.base) % self.interval == 0)

    def evaluations_after(self, step: int) -> int:
        """How many evaluations are left after this step."""
        whole, done = self.steps - self.base, step - self.base
        later = whole // self.interval - done // self.interval
        return later + (whole % self.interval != 0 and step < self.steps) + (step < self.first)


class Clock:
    """Measures steps and evaluations, and says how long the rest takes.

    Args:
        evaluation_guess: How many steps one evaluation takes, until one has been measured.
        spent: Seconds that the run took before it was resumed.
    """

    def __init__(self, evaluation_guess: float, spent: float = 0.0) -> None:
        self._start = self._last = time.perf_counter()
        self._spent = spent
        self._guess = evaluation_guess
        self._steps: deque[float] = deque(maxlen=50)
        self._seen = 0
        self._evaluations: list[float] = []

    @property
    def spent(self) -> float:
        """Seconds of the run so far."""
        return self._spent + time.perf_counter() - self._start

    @property
    def step_seconds(self) -> float | None:
        """Seconds that a step takes: the median of the last ones, without the slow first ones; None if unknown."""
        return median(self._steps) if self._steps else None

    @property
    def evaluation_seconds(self) -> float:
        """Seconds that an evaluation takes: the last one's, or a guess."""
        return self._evaluations[-1] if self._evaluations else self._guess * (self.step_seconds or 0.0)

    def step(self) -> None:
        """A step has just ended."""
        now = time.perf_counter()
        self._seen += 1
        if self._seen > WARM_UP:
            self._steps.append(now - self._last)
        self._last = now

    def evaluation(self, seconds: float) -> None:
        """An evaluation has just ended; it does not count as part of the next step."""
        self._evaluations.append(seconds)
        self.pause()

    def pause(self) -> None:
        """What has happened since the last step is not part of the next one."""
        self._last = time.perf_counter()

    def left(self, plan: Plan, step: int) -> float | None:
        """Seconds until the run has ended, the evaluation and the drawing at its end included; None if unknown."""
        if self.step_seconds is None:
            return None
        evaluations = plan.evaluations_after(step) + 1  # the results at the end are measured on their own
        return (plan.steps - step) * self.step_seconds + evaluations * self.evaluation_seconds

    def fit(self, plan: Plan, step: int, minutes: float) -> None:
        """Sets length and evaluations of a plan so that the run ends with the time budget.

        Args:
            plan: The plan, which is changed.
            step: Steps taken so far.
            minutes: The budget for the whole run.
        """
        seconds = self.step_seconds
        if seconds is None:
            return
        evaluation = self.evaluation_seconds
        if not self._evaluations:  # a guess must not end a run
            evaluation = min(evaluation, EVALUATION_SHARE / 2 * 60 * minutes)
        left = 60 * minutes - self.spent - evaluation - DRAWING
        share = min(EVALUATION_SHARE, EVALUATIONS * evaluation / (60 * minutes))
        plan.steps = max(step + 1, step + int((1 - share) * left / max(seconds, 1e-6)))
        plan.interval = max(1, -(-plan.steps // EVALUATIONS), int(evaluation / EVALUATION_SHARE / max(seconds, 1e-6)))


def fit_to_budget(
    plan: Plan, clock: Clock, at: Progress, minutes: float, broadcast: Callable[[tuple[int, int]], tuple[int, int]]
) -> None:
    """With a time budget: sets the length of the run, now and then, by how long steps and evaluations take.

    Args:
        plan: The plan, which is changed, on all processes alike.
        clock: What was measured.
        at: Where the run is.
        minutes: The budget; 0 is none.
        broadcast: Gives all processes what the first one has.
    """
    # Often at first, when little is known: after 5, 10, 20, 40, … steps, and after each evaluation.
    if minutes and (at.step in RETHINK or (at.evaluated and at.step == at.evaluated + 1)):
        clock.fit(plan, at.step, minutes)
        plan.steps, plan.interval = broadcast((plan.steps, plan.interval))
        at.steps, plan.base = plan.steps, at.evaluated


def shown(seconds: float | None) -> str:
    """Seconds as hours, minutes and seconds."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
