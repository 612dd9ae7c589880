"""Length, evaluations and remaining time of a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from rankwise.config.settings import TrainSettings
from rankwise.errors import SettingsError
from rankwise.training.state import Progress

#: The first evaluation takes place within this fraction of a run.
FIRST_BY = 0.2
#: If the first regular evaluation is later, an extra one follows this fraction, unless that is only a few steps.
FIRST_AT, FIRST_STEPS = 0.15, 5
#: Number of automatic evaluations in a run, and the maximum fraction of a time budget that they take.
EVALUATIONS, EVALUATION_SHARE = 10, 0.15
#: The first steps compile code and fill caches, so they are not timed.
WARM_UP = 3
#: Steps after which a time budget is converted to steps again, in addition to those after an evaluation.
RETHINK = frozenset(5 * 2**power for power in range(12))
#: Provisional length of a run with a time budget, until the time per step is known.
PROVISIONAL = 1000
#: Approximate seconds for figures after the last evaluation.
DRAWING = 5.0


@dataclass
class Plan:
    """Length and evaluations of a run, in steps.

    Attributes:
        steps: Steps of the whole run.
        steps_per_epoch: Steps in an epoch.
        interval: Steps between evaluations.
        base: The step where intervals start: with a time budget, that of the last evaluation.
        provisional: Whether there is a time budget and no step has been timed yet.
    """

    steps: int
    steps_per_epoch: int
    interval: int
    base: int = 0
    provisional: bool = False

    @classmethod
    def of(cls, settings: TrainSettings, steps_per_epoch: int, at: Progress) -> Plan:
        """The plan for a number of epochs. With a time budget, a provisional one or that of a resumed run.

        Raises:
            SettingsError: If the progress is further in its epoch than the epoch is long.
        """
        if at.batch > steps_per_epoch:
            raise SettingsError(
                f"the checkpoint is after step {at.batch:,} of an epoch, which has {steps_per_epoch:,}: it is damaged"
            )
        if settings.minutes:
            # If the budget was raised after the run had used it up, more steps of the same duration follow.
            raised = 60 * settings.minutes > 1.2 * at.seconds > 0
            steps = int(at.step * 60 * settings.minutes / at.seconds) if raised else PROVISIONAL
            steps = at.steps if at.steps > at.step or (at.steps and not raised) else steps
            return cls(steps, steps_per_epoch, -(-steps // EVALUATIONS), at.evaluated, not at.steps)
        every = settings.evaluate_every or max(1, round(settings.epochs / EVALUATIONS))
        return cls(settings.epochs * steps_per_epoch, steps_per_epoch, every * steps_per_epoch)

    @property
    def epochs(self) -> int:
        """Number of epochs, including an incomplete last one."""
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
        """Number of evaluations after this step."""
        whole, done = self.steps - self.base, step - self.base
        later = whole // self.interval - done // self.interval
        return later + (whole % self.interval != 0 and step < self.steps) + (step < self.first)


class Clock:
    """Times steps and evaluations and estimates the remaining time.

    ``evaluation_guess`` is the duration of an evaluation in steps, until one has been timed; ``spent`` are the seconds
    of a resumed run.
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
        """Seconds per step: the median of recent steps without the slow first ones; None if unknown."""
        return median(self._steps) if self._steps else None

    @property
    def evaluation_seconds(self) -> float:
        """Seconds per evaluation: of the last one, or a guess."""
        return self._evaluations[-1] if self._evaluations else self._guess * (self.step_seconds or 0.0)

    def step(self) -> None:
        """Call after a step."""
        now = time.perf_counter()
        self._seen += 1
        if self._seen > WARM_UP:
            self._steps.append(now - self._last)
        self._last = now

    def evaluation(self, seconds: float) -> None:
        """Call after an evaluation, which does not count as part of the next step."""
        self._evaluations.append(seconds)
        self._last = time.perf_counter()

    def left(self, plan: Plan, step: int) -> float | None:
        """Seconds until the end of the run, including the last evaluation and the figures; None if unknown."""
        if self.step_seconds is None or plan.provisional:
            return None
        evaluations = plan.evaluations_after(step) + 1  # the final results are a separate evaluation
        return (plan.steps - step) * self.step_seconds + evaluations * self.evaluation_seconds

    def fit(self, plan: Plan, step: int, minutes: float) -> None:
        """Sets the length and evaluations of a plan, in place, so that the whole run takes this many minutes."""
        seconds = self.step_seconds
        if seconds is None:
            return
        evaluation = self.evaluation_seconds
        if not self._evaluations:  # an estimate must not end the run
            evaluation = min(evaluation, EVALUATION_SHARE / 2 * 60 * minutes)
        left = 60 * minutes - self.spent - evaluation - DRAWING
        share = min(EVALUATION_SHARE, EVALUATIONS * evaluation / (60 * minutes))
        plan.steps = step + max(0, int((1 - share) * left / max(seconds, 1e-6)))
        plan.interval = max(1, -(-plan.steps // EVALUATIONS), int(evaluation / EVALUATION_SHARE / max(seconds, 1e-6)))


def fit_to_budget(
    plan: Plan, clock: Clock, at: Progress, minutes: float, broadcast: Callable[[tuple[int, int]], tuple[int, int]]
) -> str:
    """With a time budget, adjusts the length of the run from time to time to the measured durations.

    The plan is modified in the same way in all processes: ``broadcast`` sends a value of rank 0 to all. Returns a
    warning if the budget is used up when the first steps have been timed.
    """
    # More often at first: after 5, 10, 20, 40, … steps, and after each evaluation.
    if minutes and (at.step in RETHINK or (at.evaluated and at.step == at.evaluated + 1)):
        clock.fit(plan, at.step, minutes)
        plan.steps, plan.interval = broadcast((plan.steps, plan.interval))
        at.steps, plan.base = plan.steps, at.evaluated
        first, plan.provisional = plan.provisional, False
        if first and plan.steps == at.step:
            return f"--minutes {minutes:g} is too short: the run stops after {at.step} steps, to be evaluated"
    return ""


def format_duration(seconds: float | None) -> str:
    """Formats seconds as hours, minutes and seconds."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
