"""The COCO page shows the results of the benchmark."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def test_the_page_shows_the_table_of_the_benchmark() -> None:
    table = (RESULTS / "coco_step.md").read_text()
    assert table in (ROOT / "docs" / "coco.md").read_text()
    for case in json.loads((RESULTS / "coco_step.json").read_text())["cases"].values():
        assert f"| {case['seconds']:.1f} |" in table
