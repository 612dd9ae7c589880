"""Draws docs/images/report.jpg: the errors and images of a report that compares two runs, as a browser shows it.

Run: python tools/report_picture.py runs/focal runs/ape
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from rankwise.report import write_report

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "report.jpg"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def draw(runs: list[str], out: Path) -> None:
    """Writes a report on runs, opens it, and takes a picture of it from its errors down."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = write_report(runs, Path(folder) / "report.html")
        program = next(filter(None, map(shutil.which, BROWSERS)))
        browser = playwright.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox"])
        view = browser.new_page(viewport={"width": 1280, "height": 1330}, reduced_motion="reduce")
        view.goto(page.as_uri())
        view.locator("#images .item").first.wait_for(state="attached")
        view.evaluate("document.querySelector('#errors').scrollIntoView()")
        view.locator("nav a[aria-current]", has_text="Errors").wait_for()
        view.screenshot(path=out, type="jpeg", quality=80)
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", help="Folders of runs.")
    parser.add_argument("--out", type=Path, default=PICTURE, help="The picture.")
    arguments = parser.parse_args()
    draw(arguments.runs, arguments.out)
