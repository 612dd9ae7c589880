"""The README shows what the benchmark of the losses wrote."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_shows_the_worst_ratio_at_every_size() -> None:
    text = (ROOT / "README.md").read_text()
    rows = json.loads((ROOT / "benchmarks" / "results" / "loss_cost.json").read_text())
    for samples in {row["samples"] for row in rows}:
        for base in ("fused", "eager"):
            times = [row["ms"] for row in rows if row["samples"] == samples]
            worst = max(ms["APELoss"]["best"] / ms[f"{base} focal loss"]["best"] for ms in times)
            assert f"| {samples:,} | {base} | {worst:.2f} |" in text


def test_the_readme_shows_the_contributions_that_were_measured() -> None:
    readme = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("|") and " ± " in line]
    page = (ROOT / "docs" / "results" / "shapes.md").read_text()
    start = page.index("### What each part contributes")
    measured = [
        line
        for line in page[start : page.index("The paper's claim", start)].splitlines()
        if line.startswith("|") and " ± " in line
    ]
    assert len(readme) == 4
    for mine, table in zip(readme, measured, strict=True):
        assert mine.split(" | ")[1:] == _ours(table)


def _ours(line: str) -> list[str]:
    """AP, AP50 and AP75 without the paper's numbers beside them, as the README ends its lines."""
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return [cells[1], cells[3], f"{cells[5]} |"]
