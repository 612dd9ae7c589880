"""The tables of the paper: rows, claims, figures and pages, and trainings that can be stopped and resumed."""

import hashlib
import io
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
from data_folders import write_coco_folder
from jsonargparse import ArgumentParser
from rich.console import Console

from rankwise.cli import main
from rankwise.config.recipe import add_recipe_arguments, expand, parse_recipe, recipe_from
from rankwise.models import Detector, DetectorSettings
from rankwise.models.backbone import Backbone
from rankwise.reproduce import TABLES, Plan, ReproduceError, plans, write_summary
from rankwise.reproduce.claims import Above, Alike, Best
from rankwise.reproduce.figures import ap_against_minutes
from rankwise.reproduce.rows import WITHOUT_PAA_STAR
from rankwise.reproduce.run import METRICS, read_run
from rankwise.reproduce.tables import paper_row, paper_tables
from rankwise.reproduce.text import Results, markdown, on_screen, verdicts_on_screen
from rankwise.training import signals

TINY = """
data: {workers: 0}
model:
  input: {short_side: 64, max_side: 64, divisor: 32}
  backbone: {name: resnet10t, args: {channels: [8, 8, 16, 16], stem_width: 8}}
  neck: {channels: 16, extra_levels: 0}
  head: {channels: 16, depth: 1}
  anchors: {base: 4.0}
  postprocess: {score_threshold: 0.0}
optimizer: {name: SGD, lr: 0.01}
schedule: {warmup_steps: 1, decay: step, milestones: [2, 4]}
train: {epochs: 4, batch_size: 2, log_every: 1}
"""


def test_every_table_has_the_rows_of_the_paper_in_the_same_order():
    for name, content in paper_tables().items():
        if name != "about":
            assert [row.paper for row in TABLES[name].rows] == list(range(len(content["rows"]))), name


def test_rows_are_compared_with_the_numbers_of_the_same_setting_in_the_paper():
    for row in TABLES["state_of_the_art"].rows:
        paper = paper_row("state_of_the_art", row)
        assert row.name.startswith(f"{paper['loss']}, {paper['method']}"), row.name
    for table, key in (("delta", "delta"), ("lambda", "lam"), ("margin", "margin"), ("max_negatives", "q")):
        for row in TABLES[table].rows:
            assert float(row.name.replace(",", "")) == paper_row(table, row)[key]


def test_every_row_parses_on_small_data():
    parser = ArgumentParser(exit_on_error=False)
    add_recipe_arguments(parser)
    flags = {row.small for table in TABLES.values() for row in table.rows}
    parsed = {
        row: recipe_from(parser, parser.parse_args(expand(parser, ["--config", "shapes", *row]))) for row in flags
    }
    by_name = {row.name: parsed[row.small] for row in TABLES["clustering"].rows}
    assert by_name["focal + GIoU losses"].assign.clustering == "losses"
    assert not by_name["ranking + localization"].assign.normalize


def runs(*values: float) -> list[dict[str, float | None]]:
    return [{"AP": value} for value in values]


@pytest.mark.parametrize(
    ("claim", "held"),
    [
        (Above("", "a", "b"), "yes"),
        (Above("", "b", "a"), "no"),
        (Above("", "a", "c"), "unclear"),
        (Above("", "a", "d"), "not measured"),
        (Best("", "a"), "unclear"),
        (Best("", "b"), "no"),
        (Alike(""), "no"),
    ],
)
def test_a_claim_is_unclear_if_the_seeds_vary_more_than_the_difference(claim, held):
    measured = {"a": runs(30, 34, 38), "b": runs(28, 32.5, 35.9), "c": runs(34, 33, 32), "d": []}
    assert claim.verdict(measured).held == held


def test_only_runs_with_the_same_seed_are_compared():
    measured = {"a": [{}, {"AP": 30.0}, {"AP": 31.0}], "b": [{"AP": 10.0}, {"AP": 29.0}, {}]}
    assert Above("", "a", "b").verdict(measured).found == "+1.0 AP, one seed"


def test_rows_within_one_ap_count_as_equal():
    assert Alike("").verdict({"a": runs(30.0), "b": runs(30.9)}).held == "yes"
    assert Alike("").verdict({"a": runs(30.0), "b": runs(31.1)}).held == "no"


def test_a_table_shows_mean_standard_deviation_and_the_value_of_the_paper():
    measured = {"PE": [{"PCC": 0.4, "SCC": 0.5, "KCC": 0.3}, {"PCC": 0.5, "SCC": 0.5, "KCC": 0.3}], "APE": []}
    text = markdown(Results("correlation", measured, "rankwise reproduce correlation"))
    assert "| PE | 0.450 ± 0.071 | 0.374 |" in text
    assert "| APE | – | 0.494 |" in text
    assert "| APE raises Pearson's | not measured | – |" in text


@pytest.mark.parametrize("width", [80, 200])
def test_no_number_is_truncated_in_the_terminal(width):
    columns = TABLES["sampling"].columns
    measured = {row.name: [dict.fromkeys(columns, 10.0 + seed) for seed in range(3)] for row in TABLES["sampling"].rows}
    console = Console(width=width, file=io.StringIO())
    console.print(on_screen(Results("sampling", measured, "typed"), console))
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("± 1.0") == 12
    assert "IoU threshold" in text
    assert "39.2" in text
    assert ("(39.2)" in text) == ("in parentheses" in text) == (width == 80)


def test_a_table_that_is_not_of_the_paper_promises_no_values_of_it():
    measured = {row.name: [dict.fromkeys(TABLES["choose"].columns, 10.0)] for row in TABLES["choose"].rows}
    results = Results("choose", measured, "typed")
    table = on_screen(results, Console(width=40, file=io.StringIO()))
    assert table.row_count == len(measured)
    assert table.caption is None
    assert verdicts_on_screen(results).title == "claims"


def test_a_budget_scales_epochs_and_milestones_and_equal_rows_share_a_run(tmp_path):
    coco = Plan(tmp_path, "COCO", None, budget=0.25)
    contributions, detectors = TABLES["contributions"].rows, TABLES["detectors"].rows
    flags = coco.command(contributions[3], 1, tmp_path)
    assert "--train.epochs=12" in flags
    assert "--schedule.milestones=[8.0, 11.0]" in flags
    assert "--train.seed=1" in flags
    assert coco.run_of(contributions[3], 0) == coco.run_of(detectors[0], 0)
    assert len({coco.run_of(row, 0) for row in contributions}) == 4
    assert coco.run_of(contributions[0], 0) != Plan(tmp_path, "COCO", None).run_of(contributions[0], 0)
    shapes = Plan(tmp_path, "shapes", "shapes")
    slow = shapes.command(TABLES["schedule"].rows[0], 0, tmp_path)
    assert "--train.epochs=2" in slow
    assert "--optimizer.lr=0.000375" in slow
    large = shapes.command(detectors[1], 0, tmp_path)
    assert {"--model.input.short_side=192", "--model.input.max_side=192"} <= set(large)


def test_a_backbone_can_be_loaded_from_a_trained_detector(tmp_path):
    settings = DetectorSettings.from_dict({"backbone": {"name": "resnet10t", "args": {"channels": [8, 8, 16, 16]}}})
    detector = Detector(settings, ["thing"])
    detector.save(tmp_path / "run.safetensors")
    path = str(tmp_path / "run.safetensors")
    plain = settings.to_dict()["backbone"] | {"pretrained": path}
    loaded = Backbone(DetectorSettings.from_dict({"backbone": plain}).backbone)
    saved = safetensors.torch.load_file(path)
    assert all((tensor == saved[f"backbone.net.{name}"]).all() for name, tensor in loaded.net.state_dict().items())


@pytest.mark.slow
def test_a_table_is_trained_row_by_row_and_finished_rows_are_kept(tmp_path, capsys):
    data = write_coco_folder(tmp_path / "data", train=4, val=2)
    (tmp_path / "tiny.yaml").write_text(TINY)
    words = ["reproduce", "correlation", "--data", str(data), "--recipe", str(tmp_path / "tiny.yaml")]
    words += ["--out", str(tmp_path / "out"), "--budget", "0.5"]
    main([*words, "--train", "false"])
    assert "not measured" in capsys.readouterr().out
    content = json.loads((tmp_path / "out" / "correlation" / "correlation.json").read_text())
    assert content["command"].endswith("--budget 0.5")
    main(words)
    said = capsys.readouterr().out
    assert said.count("training …") == 2
    assert "claims of the paper" in said
    content = json.loads((tmp_path / "out" / "correlation" / "correlation.json").read_text())
    assert [[bool(run) for run in seeds] for seeds in content["rows"].values()] == [[True], [True]]
    assert (tmp_path / "out" / "correlation" / "score_against_iou.png").stat().st_size > 5000
    main(words)
    assert capsys.readouterr().out.count("done before") == 2
    main([*words, "--rows", '["APE"]'])
    said = capsys.readouterr().out
    assert said.count("done before") == 1
    assert "not measured" not in said, "claims about rows that were not chosen"
    assert list(json.loads((tmp_path / "out" / "correlation" / "correlation.json").read_text())["rows"]) == ["APE"]
    main([*words, "--train", "false"])
    main(["reproduce", "summary", "--out", str(tmp_path / "out"), "--page", str(tmp_path / "results.md")])
    summary, page = (tmp_path / "results.md").read_text(), (tmp_path / "results" / "out.md").read_text()
    assert "## [On out](results/out.md)" in summary
    assert "| PE |" in page
    assert "(out_score_against_iou.png)" in page
    assert (tmp_path / "results" / "out_score_against_iou.png").is_file()
    note = page.replace("<!-- notes: out -->", "<!-- notes: out -->\nLook here.")
    (tmp_path / "results" / "out.md").write_text(note)
    main(["reproduce", "summary", "--out", str(tmp_path / "out"), "--page", str(tmp_path / "results.md")])
    assert (tmp_path / "results" / "out.md").read_text() == note


def test_the_results_pages_of_the_docs_equal_the_output_of_the_command(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    (tmp_path / "results").mkdir()
    for file in ("results.md", *(f"results/{path.name}" for path in (docs / "results").glob("*.[jm][sd]*"))):
        (tmp_path / file).write_text((docs / file).read_text())
    write_summary([], tmp_path / "results.md")
    for file in ("results.md", "results/shapes.md", "results/voc.md", "results/long.md"):
        assert (tmp_path / file).read_text() == (docs / file).read_text(), file
    for page in tmp_path.glob("results/*.md"):
        figures = re.findall(r"\]\(([^)]+\.png)\)", page.read_text())
        assert figures
        assert all((docs / "results" / figure).is_file() for figure in figures)


@pytest.mark.parametrize(("command", "kept"), [("x --data voc", True), ("x --data voc --budget 4", False)])
def test_seeds_that_another_machine_ran_by_the_same_command_stay_in_the_summary(tmp_path, command, kept):
    def write(rows, command):
        rows = {row.name: rows.get(row.name, [{}]) for row in TABLES["focal"].rows}
        (tmp_path / "out" / "focal").mkdir(parents=True, exist_ok=True)
        content = json.dumps(Results("focal", rows, command).to_dict())
        (tmp_path / "out" / "focal" / "focal.json").write_text(content)
        (tmp_path / "out" / "focal" / "focal.png").touch()
        write_summary([tmp_path / "out"], tmp_path / "results.md")
        return json.loads((tmp_path / "results" / "out_focal.json").read_text())

    write({"Focal, ATSS": [{"AP": 1.0}, {"AP": 2.0}], "APE, ATSS": [{"AP": 9.0}]}, "x --data voc --seeds 2")
    content = write({"Focal, ATSS": [{"AP": 3.0}], "APE, ATSS": [{"AP": 4.0}]}, command)
    assert content["rows"]["Focal, ATSS"] == ([{"AP": 3.0}, {"AP": 2.0}] if kept else [{"AP": 3.0}])
    assert content["rows"]["APE, ATSS"][0] == {"AP": 4.0}
    assert content["command"] == ("x --data voc --seeds 2" if kept else command)
    assert bool((tmp_path / "results" / "out_focal.png").stat().st_size) == kept, "drawn again with all seeds"


def test_ap_is_drawn_against_the_minutes_of_the_training_steps():
    seconds = {"wait": 0.1, "forward": 0.5}
    log = [{"kind": "train", "step": 100, "seconds": seconds}, {"kind": "eval", "step": 120, "ap": 10.0}]
    log += [{"kind": "train", "step": 200, "seconds": seconds}, {"kind": "eval", "step": 240, "ap": 20.0}]
    (line,) = ap_against_minutes({"APE": [log], "not run": []}).axes[0].lines
    assert line.get_xdata().tolist() == pytest.approx([1.2, 2.4])
    assert line.get_ydata().tolist() == [10.0, 20.0]


def digest(data, recipe, *flags):
    return hashlib.sha256(json.dumps([data, recipe, *flags]).encode()).hexdigest()[:8]


def test_a_run_is_found_for_any_spelling_of_its_data_path(tmp_path, monkeypatch):
    (tmp_path / "voc").mkdir()
    monkeypatch.chdir(tmp_path)
    row = TABLES["losses"].rows[0]

    def run_of(data):
        return Plan(tmp_path / "out", data, "small_scratch").run_of(row, 0)

    spellings = ["voc", "voc/", "./voc", "voc/../voc", str(tmp_path / "voc"), f"{tmp_path}/voc/"]
    assert run_of("voc").parent.name.endswith(digest("voc", "small_scratch", *WITHOUT_PAA_STAR, *row.small))
    assert len({run_of(data) for data in spellings[:4]}) == 1
    for first in spellings:
        made = run_of(first)
        made.mkdir(parents=True)
        assert {run_of(data) for data in spellings} == {made}
        made.rmdir()


def test_a_folder_named_shapes_is_not_the_built_in_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = TABLES["losses"].rows[0]
    built_in = Plan(tmp_path, "shapes", "small_scratch").run_of(row, 0)
    assert built_in.parent.name.endswith(digest("shapes", "small_scratch", *WITHOUT_PAA_STAR, *row.small))
    built_in.mkdir(parents=True)
    for data in ("./shapes", "shapes/", str(tmp_path / "shapes")):
        assert Plan(tmp_path, data, "small_scratch").run_of(row, 0) != built_in


@pytest.mark.parametrize("recipe", ["photos_mobilenet", "own_data", "small_scratch", "shapes_paa"])
def test_rows_do_not_depend_on_loss_assigner_and_voting_of_the_base_recipe(tmp_path, recipe):
    def effect(base, row):
        _, name, *words = Plan(tmp_path, "voc", base).command(row, 0, tmp_path)
        found = parse_recipe(["--config", name, *words[2:]])
        assigner = {key: value for key, value in vars(found.assign).items() if key != "_handle"}
        return repr(found.loss), type(found.assign), assigner, found.box, found.model.postprocess.score_voting

    for name in ("choose", "distance", "schedule"):
        for row in TABLES[name].rows:
            assert effect(recipe, row) == effect("shapes", row)


def test_an_interrupted_generation_of_images_can_be_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "train_once", lambda *_: None)
    plan, calls = Plan(tmp_path, "shapes", "shapes"), []

    def draw(arguments, log):
        folder = Path(arguments[2])
        assert not folder.exists()  # the command refuses one with something in it
        (folder / "annotations").mkdir(parents=True)
        (folder / "annotations" / "instances_train.json").touch()
        calls.append(folder)
        if len(calls) == 1:
            raise KeyboardInterrupt
        (folder / "annotations" / "instances_val.json").touch()

    monkeypatch.setattr(plans, "call", draw)
    with pytest.raises(KeyboardInterrupt):
        plan.prepare(lambda _: None)
    plan.prepare(lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["shapes"]
    assert (tmp_path / "shapes" / "annotations" / "instances_val.json").is_file()
    plan.prepare(lambda _: None)
    assert len(calls) == 2


def test_an_existing_folder_is_not_overwritten_by_generated_images(tmp_path):
    (tmp_path / "shapes").mkdir()
    (tmp_path / "shapes" / "mine.txt").touch()
    with pytest.raises(ReproduceError, match="shapes: already exists"):
        Plan(tmp_path, "shapes", "shapes").prepare(lambda _: None)
    assert [path.name for path in (tmp_path / "shapes").iterdir()] == ["mine.txt"]


#: Simulates a training that takes a while to save after a signal.
SLOW = """#!{python}
import signal, sys, time
from pathlib import Path

def save(number, frame):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Path("told").write_text(str(number))
    time.sleep({seconds})
    Path("saved").touch()
    sys.exit(128 + number)

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, save)
Path("ready").touch()
time.sleep(600)
"""


def call_slow(folder):
    """Runs the simulated training in place of ``rankwise``, both in a new process group, as in a terminal."""
    os.setsid()
    os.chdir(folder)
    signals.SAME_SECONDS = 0.1
    sys.executable = str(folder / "slow")
    try:
        plans.call(["train"], Path("log"))
    except KeyboardInterrupt:
        sys.exit(130)


class Called:
    """A process that waits for the slow one; forked, because importing everything would take seconds."""

    def __init__(self, folder, seconds):
        self.folder = folder
        (folder / "slow").write_text(SLOW.format(python=sys.executable, seconds=seconds))
        (folder / "slow").chmod(0o755)
        self.process = multiprocessing.get_context("fork").Process(target=call_slow, args=(folder,))
        self.process.start()

    def wait_for(self, name):
        while not (self.folder / name).exists():  # pytest-timeout ends a test that hangs
            assert self.process.is_alive(), name
            time.sleep(0.02)

    def exit_code(self):
        self.process.join()
        return self.process.exitcode


@pytest.mark.parametrize(
    ("number", "send", "code"),
    [(signal.SIGINT, os.killpg, 130), (signal.SIGINT, os.kill, 130), (signal.SIGTERM, os.kill, 143)],
    ids=["Ctrl-C", "SIGINT", "SIGTERM"],
)
def test_a_stopped_training_has_time_to_save(tmp_path, number, send, code):
    called = Called(tmp_path, seconds=1)
    called.wait_for("ready")
    send(called.process.pid, number)
    assert called.exit_code() == code
    assert (tmp_path / "saved").exists()


def test_a_second_ctrl_c_ends_the_training_at_once(tmp_path):
    called = Called(tmp_path, seconds=600)
    called.wait_for("ready")
    os.killpg(called.process.pid, signal.SIGINT)
    called.wait_for("told")
    time.sleep(0.3)
    os.killpg(called.process.pid, signal.SIGINT)
    assert called.exit_code() == 130
    assert not (tmp_path / "saved").exists()
    with pytest.raises(ProcessLookupError):
        os.killpg(called.process.pid, 0)


def test_the_step_times_of_a_resumed_run_are_those_since_it_was_resumed(tmp_path):
    result = dict.fromkeys(METRICS.values()) | {"correlation": dict.fromkeys(("pcc", "scc", "kcc"))}
    (tmp_path / "eval.json").write_text(json.dumps(result))

    def write(*steps):
        lines = [{"kind": "train", "step": at, "seconds": {"loss": took, "assign": 0.001}} for at, took in steps]
        lines.append({"kind": "eval", "step": 100})
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return read_run(tmp_path)

    # Two times 50 steps of 4 ms, each starting with a step of 400 ms for the compilation.
    assert write((1, 0.4), (25, 0.004), (50, 0.004), (51, 0.4), (75, 0.004), (100, 0.004))["loss ms"] == 4.0
    assert write((1, 0.4), (2, 0.2))["loss ms"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["losses", "--data", "nowhere"], "no such folder"),
        (["losses", "--data", "."], "is not COCO 2017"),
        (["losses", "--recipe", "nothing"], "recipe 'nothing' not found"),
        (["losses", "--seeds", "0"], "--seeds must be from 1 to 1000"),
        (["choose", "--rows", '["APE"]'], "no row 'APE'; its rows are: Focal, ATSS; "),
        (["all", "--rows", '["APE, ATSS"]'], "--rows chooses rows of one table, not of all"),
        (["summary", "--out", "."], "no tables found"),
        (["losses", "--data", ".", "--recipe", "shapes", "--set", '["--nothing=1"]'], "nothing"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *words])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
