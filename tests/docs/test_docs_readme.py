"""The README shows the output of the commands it names, and stays short."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def results(name: str) -> dict:
    return json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text())


def test_the_readme_shows_the_worst_ratio_at_every_size() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "loss_cost.json").read_text())
    for samples in {row["samples"] for row in rows}:
        for base in ("fused", "eager"):
            times = [row["ms"] for row in rows if row["samples"] == samples]
            worst = max(ms["APELoss"]["best"] / ms[f"{base} focal loss"]["best"] for ms in times)
            assert f"| {samples:,} | {base} | {worst:.2f} |" in README


@pytest.mark.parametrize(("row", "name"), [("built-in dataset", "shapes_long_choose"), ("photographs", "voc_choose")])
def test_the_readme_shows_each_loss_with_its_best_assigner(row: str, name: str) -> None:
    rows = results(name)["rows"]
    losses = ("Focal", "QualityFocal", "Varifocal", "IA-BCE", "MAL", "AP", "PE", "RankSort", "APE")
    cells = []
    for loss in losses:
        by_assigner = [[run["AP"] for run in runs] for name, runs in rows.items() if name.split(",")[0] == loss]
        best = max(by_assigner, key=mean)
        cells.append(f"{mean(best):.1f} ± {stdev(best):.1f}" if len(best) > 1 else f"{best[0]:.1f}")
    assert f"| {row} | {' | '.join(cells)} |" in README


def test_the_readme_shows_the_ap_for_equal_minutes() -> None:
    rows = results("shapes_speed")["rows"]
    ape, focal = (rows[name][0] for name in ("APE, ATSS", "Focal, ATSS"))
    minutes = f"({ape['minutes']:.1f} and {focal['minutes']:.1f} minutes"
    shown = " ".join(README.split())
    assert f"APE has {ape['AP']:.1f} AP and focal loss {focal['AP']:.1f} after five epochs {minutes}" in shown


def test_the_readme_shows_the_calibration_that_was_measured() -> None:
    rows = results("shapes_calibration")["rows"]
    for name, key in (("raw scores", "ECE raw"), ("calibrated scores", "ECE")):
        cells = " | ".join(f"{rows[loss][0][key]:.3f}" for loss in ("APE", "AP", "RankSort", "Focal"))
        assert f"| {name} | {cells} |" in README


def test_the_readme_shows_the_result_of_make_run() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "make_run.json").read_text())
    cells = [f"{run[name]:.1f}" for name in ("AP", "AP50", "AP75")] + [f"{run[name]:.3f}" for name in ("PCC", "ECE")]
    assert f"| {' | '.join(cells)} | {run['time']} |" in README


def test_the_readme_shows_the_numbers_of_its_picture() -> None:
    run = json.loads((ROOT / "benchmarks" / "results" / "readme_picture.json").read_text())
    assert f"{run['AP']:.1f} AP, calibration error {run['ECE']:.3f}; drawn by" in " ".join(README.split())


def test_the_readme_is_one_page() -> None:
    assert len(README.splitlines()) <= 120
