"""The length of a run, its evaluations, and its remaining time."""

import io
from itertools import pairwise

import pytest
from lightning_fabric import Fabric
from rich.console import Console

from rankwise.config.settings import TrainSettings
from rankwise.training import plan as plans
from rankwise.training.plan import Clock, Plan, fit_to_budget, format_duration
from rankwise.training.state import Progress
from rankwise.training.tracking import Tracker


def evaluations(plan):
    return [step for step in range(plan.steps + 1) if plan.is_due(step)]


@pytest.mark.parametrize(("steps", "every"), [(7, 0), (7, 4), (125, 1), (125, 100)])
@pytest.mark.parametrize("epochs", [1, 3, 5, 12, 300])
def test_every_run_is_evaluated_in_its_first_fifth_and_at_its_end(epochs, steps, every):
    plan = Plan.of(TrainSettings(epochs=epochs, evaluate_every=every), steps, Progress())
    due = evaluations(plan)
    assert due[-1] == plan.steps == epochs * steps
    assert due[0] <= 0.2 * plan.steps or plan.steps < 34
    assert [plan.evaluations_after(step) for step in (0, due[0])] == [len(due), len(due) - 1]
    if every == 0:
        assert len(due) <= 16


class Time:
    """A clock that stands still until it is told to go on."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(plans.time, "perf_counter", lambda: self.now)


def test_the_remaining_time_is_accurate_despite_slow_first_steps(monkeypatch):
    time = Time(monkeypatch)
    plan, clock = Plan(100, 10, 50), Clock(evaluation_guess=4)
    assert clock.left(plan, 0) is None
    for step, seconds in enumerate([30.0, 5.0, 2.0, 1.0, 1.0], start=1):
        time.now += seconds
        clock.step()
        if step <= 3:
            assert clock.left(plan, step) is None  # no number is better than one that is fourfold off
    truth = 95 * 1.0 + 4 * 6.0  # after 15, 50 and 100 steps, and the results at the end
    assert truth / 1.3 < clock.left(plan, 5) < 1.3 * truth
    time.now += 6
    clock.evaluation(6.0)
    time.now += 1
    clock.step()
    assert clock.left(plan, 6) == pytest.approx(94 + 4 * 6)
    assert [format_duration(None), format_duration(3725.4)] == ["?", "1:02:05"]


@pytest.mark.parametrize("slower", [1.0, 3.0])
def test_a_time_budget_is_kept_when_the_machine_slows_down(monkeypatch, slower):
    time, at = Time(monkeypatch), Progress()
    plan, clock = Plan.of(TrainSettings(minutes=5), 7, at), Clock(evaluation_guess=1000)
    tried = []
    while at.step < plan.steps:
        time.now += 20.0 if at.step == 0 else 0.1 * (slower if time.now > 100 else 1)
        at.step += 1
        clock.step()
        fit_to_budget(plan, clock, at, 5, lambda value: value)
        if plan.is_due(at.step):
            time.now += 2.0
            clock.evaluation(2.0)
            at.evaluated = at.step
            tried.append(time.now)
    assert 0.9 * 300 < time.now < 1.02 * 300
    assert tried[0] < 0.2 * 300
    assert len(tried) <= 20
    gaps = [after - before for before, after in pairwise(tried)]
    assert min(gaps[:-1]) > 0.4 * max(gaps)  # evenly, however often the length was corrected
    assert at.steps == plan.steps


def test_a_run_with_a_budget_that_is_too_short_stops_when_its_steps_are_timed_and_says_so(monkeypatch):
    time, at, said = Time(monkeypatch), Progress(), []
    plan, clock = Plan.of(TrainSettings(minutes=0.01), 7, at), Clock(evaluation_guess=1)
    while at.step < plan.steps:
        time.now += 1
        at.step += 1
        clock.step()
        assert clock.left(plan, at.step) is None  # the provisional length says nothing
        said.append(fit_to_budget(plan, clock, at, 0.01, lambda value: value))
    assert said == ["", "", "", "", "--minutes 0.01 is too short: the run stops after 5 steps, to be evaluated"]
    assert plan.is_due(at.step)


def test_a_resumed_run_keeps_the_length_from_its_time_budget():
    minutes = TrainSettings(minutes=5)
    assert Plan.of(minutes, 7, Progress(step=50, seconds=30, steps=900)).steps == 900
    assert Plan.of(minutes, 7, Progress(step=900, seconds=299, steps=900)).steps == 900
    assert Plan.of(TrainSettings(minutes=10), 7, Progress(step=900, seconds=300, steps=900)).steps == 1800


def test_a_line_of_the_log_fits_80_columns_and_has_epoch_time_losses_and_ap(tmp_path, monkeypatch):
    time = Time(monkeypatch)
    clock = Clock(1)
    tracker = Tracker(tmp_path, Fabric(accelerator="cpu"), Plan(300_000, 1000, 1000), clock, 50)
    tracker.console = Console(file=io.StringIO(), width=80)
    for ap in (None, 100.0):
        tracker.ap = ap
        for _ in range(4):
            time.now += 0.4
            clock.step()
        tracker.log(999, 99, 0.1, {})
    tracker._shown = {"ranking": 10.2345, "box": 11.5}
    tracker._extras = ["unmatched 12.5", "1234.5 img/s", "positives 12345"]
    tracker.console.print(tracker._line(1000, 99, 80))
    tracker.close()
    lines = tracker.console.file.getvalue().splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines), lines
    assert lines[0].startswith("epoch 100/300  33:")
    assert "left  ranking –  box –  AP –" in lines[0]
    assert "ranking 10.235  box 11.500  AP 100.0" in lines[2]
