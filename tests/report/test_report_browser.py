"""The report in a real browser: clicks, pointer, keyboard, touch and themes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import make_run, opened, painted

from rankwise.report import write_report
from rankwise.report.page import page_data, render

api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e '.[dev]'")
# The first one has no window and always paints; the others may consider theirs hidden and stop painting.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason=f"none of {', '.join(NAMES)} on the path: apt-get install {NAMES[0]}"
)

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
#: Waits until the page was painted twice, for at most two seconds: a browser may not paint a page that does not change.
TWO_FRAMES = """() => new Promise(done => {
    setTimeout(done, 2000);
    requestAnimationFrame(() => requestAnimationFrame(done));
})"""
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as playwright:  # each launch has a new folder for the user's data
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    ape, focal = make_run(folder / "ape"), make_run(folder / "focal", seed=2, noise=0.08, loss="FocalLoss")
    return {
        "one": write_report([ape], folder / "one.html"),
        "two": write_report([focal, ape], folder / "two.html"),
    }


class Visit:
    """An open page, with its console messages, errors and network requests."""

    def __init__(self, context: Any, path: Path) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(30_000)
        self.messages: list[str] = []
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("dialog", lambda dialog: (self.messages.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self.note)
        self.page.goto(path.as_uri())

    def note(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.messages.append(f"request: {request.url}")

    def show(self, locator: Any) -> dict[str, float]:
        """Scrolls to an element, waits until that has hidden the tooltip, and returns its bounding box."""
        locator.scroll_into_view_if_needed()
        self.page.evaluate(TWO_FRAMES)
        return locator.bounding_box()

    def tip(self) -> str:
        return self.page.locator("#tip.shown").inner_text()

    def numbers(self, selector: str) -> list[float]:
        return [float(re.sub("[^0-9.]", "", text)) for text in self.page.locator(selector).all_inner_texts()]


@pytest.fixture(scope="module")
def desktop(browser: Any) -> Any:
    return browser.new_context(viewport=DESKTOP, reduced_motion="reduce")


@pytest.fixture
def visit(browser: Any, desktop: Any) -> Iterator[Any]:
    """Opens a report on a desktop, or with other options; afterwards, no page may have logged anything."""
    contexts, visits = [], []

    def open_page(path: Path, **options: Any) -> Visit:
        if options:
            contexts.append(browser.new_context(**({"viewport": DESKTOP, "reduced_motion": "reduce"} | options)))
        visits.append(Visit(contexts[-1] if options else desktop, path))
        return visits[-1]

    yield open_page
    messages = [message for one in visits for message in one.messages]
    for one in visits:
        one.page.close()
    for context in contexts:
        context.close()
    assert messages == []


def test_the_report_of_a_run_fills_every_section(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["one"]).page
    for place in ("#scores .cell", "#errors tr[data-type]", "#images .item"):  # sections are drawn one after the other
        page.locator(place).first.wait_for(state="attached")
    assert page.locator("h1").inner_text() == "ape"
    assert page.locator("#overview .said li").count() == 5
    assert page.locator("#overview .tile").count() == 10
    assert page.locator("#overview .classes tbody tr").count() == 8
    assert page.locator("#training .grid").first.locator("svg.plot").count() == 4
    assert page.locator("#precision svg.plot").count() == 3
    assert page.locator("#reliability svg.plot").count() == 1
    assert "Calibration error" in page.locator("#reliability .readout").inner_text()
    assert page.locator("#scores .cell").count() > 20
    assert page.locator("#errors tbody tr[data-type]").count() == 6
    assert "IoU below 0.1" in page.locator("#errors tr[data-type=background]").inner_text()
    assert page.locator("#images .item").count() == 12


def test_links_lead_to_their_sections_and_the_recipe_opens(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["one"]).page
    page.get_by_role("link", name="Errors").click()
    page.locator("nav a[aria-current]", has_text="Errors").wait_for()
    assert page.locator("#errors h2").bounding_box()["y"] < 300
    assert not page.locator("#whole-recipe code", has_text="resnet10t").is_visible()
    page.get_by_text("All 13 settings").click()
    page.locator("#whole-recipe code", has_text="resnet10t").wait_for()


def test_pointer_and_arrow_keys_show_the_values_of_a_curve(visit: Any, reports: dict[str, Path]) -> None:
    one = visit(reports["one"])
    chart = one.page.locator("#training figure", has_text="AP on the validation images").locator("svg.plot")
    box = one.show(chart)
    chart.hover(position={"x": box["width"] - 16, "y": 50})
    assert one.tip().split("\n") == ["step 1,000", "AP 40"]
    one.page.mouse.move(0, 0)
    assert one.page.locator("#tip.shown").count() == 0
    chart.focus()
    one.page.keyboard.press("ArrowRight")
    one.page.keyboard.press("ArrowRight")
    assert one.tip().split("\n") == ["step 500", "AP 20"]
    one.page.keyboard.press("Escape")
    assert one.page.locator("#tip.shown").count() == 0


def test_a_legend_hides_and_shows_a_line_in_all_precision_curves(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["one"]).page
    assert page.locator("#precision polyline").count() == 27
    button = page.locator("#precision .legend button", has_text="star")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator("#precision polyline").count() == 24
    button.click()
    assert page.locator("#precision polyline").count() == 27
    page.locator("#precision select").select_option("ring")
    assert page.locator("#precision polyline.wide").count() == 3


def test_a_cell_of_score_against_iou_shows_its_count(visit: Any, reports: dict[str, Path]) -> None:
    one = visit(reports["one"])
    cell = one.page.locator("#scores .cell").nth(10)
    one.show(cell)
    cell.hover(force=True)  # the hover outline covers it
    assert re.search(r"[1-9]\d* detections\nIoU 0\.\d\d to \d\.\d\d\nscore ", one.tip())


def test_the_threshold_slider_updates_metrics_errors_and_boxes(visit: Any, reports: dict[str, Path]) -> None:
    one = visit(reports["one"])
    page = one.page
    slider, readout = page.locator("#threshold input[type=range]"), page.locator("#threshold .readout")
    chosen, boxes = readout.inner_text(), page.locator("#images .detection").count()
    missed, found = one.numbers("#errors tr[data-type=missed] .meter b")[0], one.numbers("#threshold .sizes td")
    slider.focus()
    page.keyboard.press("End")
    page.wait_for_function("before => document.querySelectorAll('#images .detection').length < before", arg=boxes)
    assert readout.inner_text() != chosen
    assert one.numbers("#errors tr[data-type=missed] .meter b")[0] > missed
    fewer = one.numbers("#threshold .sizes td")
    assert fewer[::2] == found[::2]  # objects of each size
    assert sum(fewer[1::2]) < sum(found[1::2])  # and their recall
    assert page.locator("#images .threshold .readout").inner_text() == readout.inner_text()
    assert "precision" in slider.get_attribute("aria-valuetext")
    page.keyboard.press("Home")
    page.wait_for_function("before => document.querySelectorAll('#images .detection').length > before", arg=boxes)
    page.locator("#images").get_by_role("button", name="best F1").click()
    page.wait_for_function("text => document.querySelector('#threshold .readout').innerText === text", arg=chosen)
    assert page.locator("#images .detection").count() == boxes


def test_dragging_in_the_chart_sets_the_threshold(visit: Any, reports: dict[str, Path]) -> None:
    one = visit(reports["one"])
    page = one.page
    chart, readout = page.locator("#threshold svg.plot"), page.locator("#threshold .readout")
    before = readout.inner_text()
    box = one.show(chart)
    page.mouse.move(box["x"] + 300, box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 90, steps=4)
    page.mouse.up()
    page.wait_for_function("text => document.querySelector('#threshold .readout').innerText !== text", arg=before)
    assert page.locator("#threshold .mark-text").all_text_contents()[-1].startswith("selected ")


def test_the_images_with_the_most_errors_come_first_and_can_be_sorted_and_paged(
    visit: Any, reports: dict[str, Path]
) -> None:
    page = visit(reports["one"]).page

    def errors() -> list[int]:
        tallies = page.locator("#images .item .chips").all_inner_texts()
        return [
            sum(map(int, re.findall(r"\d+", tally)[1:])) for tally in tallies
        ]  # the first one counts correct detections

    worst = errors()
    assert worst == sorted(worst, reverse=True)
    assert worst[0] > worst[-1]
    page.locator("#images").get_by_role("button", name="Next").click()
    assert max(errors()) <= worst[-1]
    page.locator("#images").get_by_role("button", name="Next").click()
    assert page.locator("#images .pager").inner_text().count("3 / 3") == 1
    assert page.locator("#images").get_by_role("button", name="Next").is_disabled()
    page.get_by_label("Order").select_option("name")
    names = page.locator("#images .item h3").all_inner_texts()
    assert names == sorted(names)
    assert len(names) == 12


def test_filters_keep_matching_images_and_dim_other_boxes(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["one"]).page
    page.get_by_label("Error", exact=True).select_option("duplicate")
    assert page.locator("#images .item").count() > 0
    for item in page.locator("#images .item").all():
        assert item.locator(".box.duplicate:not(.dim)").count() > 0
        assert item.locator(".box:not(.duplicate):not(.dim)").count() == 0
    page.get_by_label("Error", exact=True).select_option("missed")
    page.get_by_label("Class", exact=True).select_option("star")
    for item in page.locator("#images .item").all():
        assert item.locator(".box.missed:not(.dim)").count() > 0
    page.get_by_label("Error", exact=True).select_option("all")
    page.get_by_label("Class", exact=True).select_option("")
    page.get_by_label("correct boxes").uncheck()
    assert page.locator("#images .box.correct").count() == 0
    page.get_by_label("errors", exact=True).uncheck()
    assert page.locator("#images .detection").count() == 0
    page.get_by_label("objects", exact=True).uncheck()
    assert page.locator("#images .box").count() == 0


def test_pointing_at_a_box_shows_its_class_score_and_error_type(visit: Any, tmp_path: Path) -> None:
    dataset = painted(["a.png"], ["cat", "dog"])
    found = {
        1: {
            "boxes": torch.cat([torch.tensor([[70.0, 70, 90, 90]]), torch.from_numpy(dataset.records[0].boxes[:1])]),
            "scores": torch.tensor([0.75, 0.5]),
            "labels": torch.tensor([0, int(dataset.records[0].labels[0])]),
        }
    }
    path = tmp_path / "page.html"
    path.write_text(render(page_data([opened(dataset, found)])), encoding="utf-8")
    one = visit(path)
    picture = one.page.locator("#images .picture")
    side = one.show(picture)["width"]
    picture.hover(position={"x": 0.8 * side, "y": 0.8 * side})
    assert one.tip().split("\n")[:2] == ["B cat 0.75", "background, IoU 0.00"]
    picture.hover(position={"x": 0.1 * side, "y": 0.4 * side})
    assert one.tip().split("\n") == ["✓ dog 0.5", "correct, IoU 1.00 with dog"]
    picture.hover(position={"x": 0.6 * side, "y": 0.4 * side})
    assert one.tip().split("\n") == ["cat (annotated)", "missed"]
    picture.hover(position={"x": 0.4 * side, "y": 0.9 * side})
    assert one.page.locator("#tip.shown").count() == 0


def test_the_viewer_goes_from_image_to_image_and_highlights_boxes(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["one"]).page
    names = page.locator("#images .item h3").all_inner_texts()
    page.locator("#images .picture").first.click()
    title = page.locator("#viewer-name")
    assert title.inner_text() == names[0]
    page.get_by_role("button", name="Next image").click()
    assert title.inner_text() == names[1]
    page.keyboard.press("ArrowRight")
    assert title.inner_text() == names[2]
    page.keyboard.press("ArrowLeft")
    assert title.inner_text() == names[1]
    page.locator("#viewer .boxes tbody tr").first.focus()
    assert page.locator("#viewer .box.highlighted").count() == 1
    page.keyboard.press("Escape")
    assert not page.locator("#viewer").is_visible()


def settled(page: Any, expression: str, wanted: str) -> str:
    """The value of an expression as soon as it is the wanted one, or after five seconds."""
    for _ in range(100):
        if page.evaluate(expression) == wanted:
            break
        page.wait_for_timeout(50)
    return page.evaluate(expression)


def test_light_and_dark_follow_the_system_until_the_reader_chooses(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["one"], color_scheme="dark").page
    background = "getComputedStyle(document.documentElement).backgroundColor"
    dark = page.evaluate(background)
    page.locator("#theme").click()
    light = page.evaluate(background)
    assert brightness(dark) < 60 < 200 < brightness(light)
    assert page.evaluate("localStorage.getItem('rankwise-theme')") == "light"  # for the next visit
    page.locator("#theme").click()
    assert settled(page, background, dark) == dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == dark


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_with_its_background(visit: Any, reports: dict[str, Path], scheme: str) -> None:
    page = visit(reports["two"], color_scheme=scheme).page
    pairs = page.evaluate(
        """() => { const probe = document.body.appendChild(document.createElement('i'));
        const rgb = name => { probe.style.color = `var(--${name})`; return getComputedStyle(probe).color; };
        return ['ink', 'muted', 'good', 'bad', 'accent', 'run0', 'run1', 'run2', 'run3', 'run4', 'run5'].flatMap(
            name => ['bg', 'surface'].map(back => [name, back, rgb(name), rgb(back)])); }"""
    )
    for name, back, color, behind in pairs:
        least = 3.0 if name.startswith("run") else 4.5  # required by WCAG for lines and for text
        assert contrast(color, behind) >= least, f"{name} on {back}"


def test_two_runs_are_shown_side_by_side_with_their_differences_marked(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["two"]).page
    assert page.locator("h1").inner_text().split() == ["focal", "and", "ape"]
    assert re.search(r"ape is \d+\.\d AP above focal", page.locator("#overview .lead").inner_text())
    ap = page.locator("#overview .coco tbody tr").first
    assert re.search(r"▲\s*\+\d+\.\d", ap.locator(".delta.good").inner_text())
    for kind, arrow in (("good", "▲"), ("bad", "▼")):  # fewer errors are better too
        changes = page.locator(f".coco .delta.{kind}, #errors .delta.{kind}").all_inner_texts()
        assert changes
        assert all(change.startswith(arrow) for change in changes)
    changed = page.locator("#recipe .recipe").first.locator("tr.changed")
    assert changed.first.locator("th").inner_text() == "≠ loss"
    assert changed.first.locator("code").all_inner_texts() == ["FocalLoss", "APELoss"]
    assert page.locator("#threshold input[type=range]").count() == 2
    assert page.locator("#errors tr[data-type=missed] td").first.locator(".meter").count() == 2
    assert page.locator("#images .item").first.locator(".picture").count() == 2
    assert page.locator("#images .item .tag", has_text="≠").count() > 0
    page.get_by_label("Order").select_option("gap")
    assert page.locator("#images .item").first.locator(".delta.good").inner_text() == "▲ better"


def test_each_run_has_its_own_threshold(visit: Any, reports: dict[str, Path]) -> None:
    page = visit(reports["two"]).page
    first, second = (page.locator("#threshold .readout").nth(place) for place in (0, 1))
    before = first.inner_text(), second.inner_text()
    page.locator("#threshold input[type=range]").nth(1).focus()
    page.keyboard.press("Home")
    page.wait_for_function(
        "text => document.querySelectorAll('#threshold .readout')[1].innerText !== text", arg=before[1]
    )
    assert first.inner_text() == before[0]


def test_the_class_table_can_be_sorted_and_show_another_metric(visit: Any, reports: dict[str, Path]) -> None:
    one, two = visit(reports["one"]), visit(reports["two"])
    assert (counts := one.numbers("#overview .classes tbody td:nth-child(2)")) == sorted(counts)  # rare classes first
    one.page.locator("#overview .sort", has_text="AP").click()
    assert (values := one.numbers("#overview .classes tbody td:nth-child(3)")) == sorted(values, reverse=True)
    one.page.locator("#overview .sort", has_text="AP").click()
    assert one.numbers("#overview .classes tbody td:nth-child(3)") == values[::-1]
    before = two.page.locator("#overview .classes").inner_text()
    two.page.get_by_label("Show").select_option("recall")
    assert two.page.locator("#overview .classes").inner_text() != before


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_phone_shows_everything_without_scrolling_sideways(visit: Any, reports: dict[str, Path], name: str) -> None:
    one = visit(reports[name], viewport=PHONE, has_touch=True, is_mobile=True)
    page = one.page
    for summary in page.locator("summary").all():
        if summary.is_visible():
            summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    chart = page.locator("#training svg.plot").first
    one.show(chart)
    chart.tap(position={"x": 150, "y": 60})
    assert one.tip().startswith("step ")  # and stays after the tap
    page.locator("#images .picture").first.tap()
    picture = page.locator("#viewer .picture").first
    picture.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("document.querySelector('#viewer').scrollWidth") <= 390
    box = one.show(picture.locator(".detection").first)
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert "IoU" in one.tip() or "annotated" in one.tip()


def test_malicious_names_are_shown_as_text_and_not_executed(visit: Any, tmp_path: Path) -> None:
    image, kind = "<img src=x onerror=alert(1)>.png", "</script><script>alert(2)</script>"
    dataset = painted([image, "b.png"], [kind, "<b>bold</b>", "'\"&amp;"])
    found = {
        1: {
            "boxes": torch.tensor([[70.0, 70, 90, 90]]),
            "scores": torch.tensor([0.5]),
            "labels": torch.tensor([0]),
        }
    }
    runs = [
        opened(dataset, found, name="<script>alert(3)</script>", recipe={"loss": "<i>x</i>"}, notes=["<u>note</u>"]),
        opened(dataset, {}, name="javascript:alert(4)"),
    ]
    path = tmp_path / "page.html"
    path.write_text(render(page_data(runs)), encoding="utf-8")
    page = visit(path).page
    assert page.title() == "<script>alert(3)</script> and javascript:alert(4) · rankwise report"
    assert kind in page.locator("#overview .classes").inner_text()
    page.locator("#images .item", has_text=image).locator(".link").click()
    assert page.locator("#viewer-name").inner_text() == image
    assert page.locator("b, i, u", has_text=re.compile("^(bold|x|note)$")).count() == 0
    assert page.locator("script").count() == 2


def test_runs_without_detections_or_objects_have_a_report(visit: Any, tmp_path: Path) -> None:
    empty = painted(["a.png"], ["cat"], objects=0)
    pages = {
        "no detections": [opened(painted(["a.png"], ["cat", "dog"]), {})],
        "no objects": [opened(empty, {})],
        "other images": [
            opened(empty, {}, name="a"),
            opened(painted(["b.png"], ["dog"]), {}, name="b", dataset_key="x"),
        ],
    }
    for name, runs in pages.items():
        path = tmp_path / f"{name}.html"
        path.write_text(render(page_data(runs)), encoding="utf-8")
        page = visit(path).page
        assert page.locator("#images .item").count() == len(runs), name
        assert "No training log" in page.locator("#training").inner_text()


def brightness(color: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 3


def contrast(one: str, other: str) -> float:
    """The contrast ratio defined by WCAG."""

    def luminance(color: str) -> float:
        parts = [float(part) / 255 for part in re.findall(r"[\d.]+", color)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
