"""Reports: reading runs, choosing images, refusing bad input, and a page that is self-contained and safe."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from made_runs import PaintedDataset, detect_around, make_run, opened, painted
from PIL import Image

from rankwise import cli
from rankwise.config.datasets import open_run
from rankwise.data import DataError
from rankwise.evaluation import sweep
from rankwise.evaluation.results import EvaluatedRun
from rankwise.evaluation.thresholds import at_scores
from rankwise.report import ReportError, numbers, report_on, write_report
from rankwise.report.error_types import ErrorType
from rankwise.report.findings import comparison, findings
from rankwise.report.page import SCRIPTS, page_data, render
from rankwise.report.runs import read_metrics, read_run, run_data, run_names
from rankwise.report.sheet import SIDE, box_rows, choose_images, image_errors, picture_rows

CLASSES = ["cat", "dog", "cow"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "ape")


def embedded(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert match
    return json.loads(match.group(1))


def test_a_report_contains_recipe_curves_and_metrics_of_the_run(run: Path) -> None:
    path = write_report([run])
    assert path == run / "report.html"
    data = embedded(path.read_text(encoding="utf-8"))
    (own,) = data["runs"]
    measured = json.loads((run / "eval.json").read_text())
    assert own["summary"]["ap"] == pytest.approx(measured["ap"], abs=0.3)
    assert own["summary"]["threshold"]["f1"] == pytest.approx(measured["thresholds"]["overall"]["f1"], abs=5e-3)
    assert own["summary"]["threshold"]["score"] == pytest.approx(measured["thresholds"]["overall"]["score"], abs=0.02)
    assert own["reliability"]["calibrated"]["ece"] == measured["reliability"]["after"]["ece"]
    assert own["reliability"]["calibrated"]["ece"] < own["reliability"]["raw"]["ece"]
    assert sum(row[2] for row in own["reliability"]["raw"]["bins"]) == sum(measured["reliability"]["before"]["count"])
    assert own["recipe"]["loss"] == "APELoss"
    assert own["recipe"]["loss.lam"] == 8.0
    assert own["curves"]["ap"] == {"x": [250.0, 500.0, 750.0, 1000.0], "y": [10.0, 20.0, 30.0, 40.0]}
    assert len(own["curves"]["ranking"]["x"]) == 40
    assert len(data["datasets"][0]["sheet"]) == len(own["boxes"]) == 30


def test_a_run_without_calibration_is_reported_with_raw_scores_and_a_damaged_calibration_is_refused(
    run: Path, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(run, tmp_path / "old"))
    values = json.loads((old / "eval.json").read_text())
    (old / "eval.json").write_text(json.dumps(values | {"calibration": {"curves": []}}))
    with pytest.raises(ReportError, match=r"eval\.json: its calibration cannot be read"):
        write_report([old])
    del values["calibration"]
    (old / "eval.json").write_text(json.dumps(values))
    (own,) = embedded(write_report([old]).read_text(encoding="utf-8"))["runs"]
    assert own["reliability"] is None
    assert "The scores are raw" in own["notes"][0]


def test_a_report_is_self_contained(run: Path) -> None:
    page = write_report([run]).read_text(encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert len(page) < 2_000_000


def test_the_content_security_policy_allows_only_the_script_of_the_template(run: Path) -> None:
    page = write_report([run]).read_text(encoding="utf-8")
    script = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)[-1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_the_scripts_never_insert_text_as_html_and_all_are_listed() -> None:
    template = resources.files("rankwise.report") / "template"
    names = {entry.name for entry in template.iterdir()}
    assert {name for name in names if name.endswith(".js")} == set(SCRIPTS)
    for name in SCRIPTS:
        text = (template / name).read_text(encoding="utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "fetch(", "http:"):
            assert word not in text.replace("http://www.w3.org/2000/svg", ""), f"{name}: {word}"


def test_names_from_the_data_cannot_close_the_script_or_title_element() -> None:
    dataset = painted(
        ["</script><script>alert(1)</script>.png", "{{script}}<!--"], ["<img src=x onerror=alert(2)>", "b"]
    )
    data = page_data([opened(dataset, {}, name="</title><script>alert(3)</script>")])
    page = render(data)
    assert page.count("<script") == 2
    assert "<img" not in page
    assert "&lt;/title&gt;" in page
    assert embedded(page) == json.loads(json.dumps(data))


def test_a_folder_name_that_is_not_valid_text_is_shown_with_question_marks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "caf\udce9", images=3)
    page = write_report([run], tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "caf?" in page


def test_the_reduced_sweep_contains_the_best_threshold_and_agrees_with_the_full_sweep(run: Path) -> None:
    data = read_run(run, "ape")
    thin, whole = numbers.threshold_sweep(data.evaluation, data.errors), sweep(data.evaluation.matches)
    assert thin["scores"] == sorted(thin["scores"])
    assert numbers.rounded_score(data.evaluation.thresholds.overall.score) in thin["scores"]
    assert max(thin["f1"]) == pytest.approx(whole.f1.max(), abs=1e-4)
    for row in range(0, len(thin["scores"]), 10):
        right, wrong = (
            thin["correct"][row],
            sum(thin[name][row] for name in ("background", "localization", "class", "both", "duplicate")),
        )
        assert thin["precision"][row] == pytest.approx(right / (right + wrong), abs=1e-4)
        assert thin["recall"][row] == pytest.approx(right / data.evaluation.objects, abs=1e-4)


def test_detected_objects_by_size_add_up_to_all_correct_detections(run: Path) -> None:
    data = read_run(run, "ape")
    thin = numbers.threshold_sweep(data.evaluation, data.errors)
    sizes = thin["sizes"]
    area = np.concatenate([record.area for record in data.dataset.records])
    below = [int((area < 32**2).sum()), int((area < 96**2).sum())]
    assert [sum(sizes["objects"][:2]), sum(sizes["objects"][:4])] == below
    assert np.sum(sizes["found"], axis=0).tolist() == thin["correct"]


def test_precision_recall_curves_are_those_of_the_evaluation(run: Path) -> None:
    evaluation = read_run(run, "ape").evaluation
    curves = numbers.precision_recall(evaluation)
    assert curves["recall"][-1] == 1.0
    for index, iou in enumerate(curves["ious"]):
        expected = 1000 * evaluation.curves.at(iou)[::2]
        assert np.abs(np.asarray(curves["classes"])[:, index].T - expected).max() <= 0.5
        assert np.abs(np.asarray(curves["mean"][index]) - expected.mean(axis=1)).max() <= 0.5


def test_the_density_counts_every_well_localized_detection_once(run: Path) -> None:
    evaluation = read_run(run, "ape").evaluation
    density = numbers.score_density(evaluation)
    assert sum(cell[2] for cell in density["cells"]) == evaluation.correlation.n > 0
    assert all(low <= middle <= high for _, low, middle, high in density["quartiles"])


def test_a_recipe_is_flattened_with_classes_by_name() -> None:
    recipe = {
        "loss": {"class_path": "rankwise.losses.APELoss", "init_args": {"lam": 8.0}},
        "model": {"neck": {"norm": "bn"}, "anchors": {"scales": [1.0, 2.0]}, "args": {}},
    }
    assert numbers.flat_recipe(recipe) == {
        "loss": "APELoss",
        "loss.lam": 8.0,
        "model.neck.norm": "bn",
        "model.anchors.scales": [1.0, 2.0],
        "model.args": {},
    }


def test_curves_use_the_later_line_of_a_step_and_skip_values_that_are_not_finite_numbers() -> None:
    lines = [
        {"kind": "train", "step": 2, "ranking": 0.4, "seconds": {"wait": 1}},
        {"kind": "train", "step": 1, "ranking": 0.5, "box": float("nan")},
        {"kind": "skipped", "step": 3, "ranking": 9.0},
        {"kind": "train", "step": 2, "ranking": 0.3},
        {"kind": "eval", "step": 2, "ap": None, "seconds": 2.0},
    ]
    assert numbers.training_curves(lines) == {"ranking": {"x": [1.0, 2.0], "y": [0.5, 0.3]}}


def test_a_long_curve_is_averaged_in_blocks() -> None:
    lines = [{"kind": "train", "step": step, "ranking": step % 2} for step in range(10_000)]
    curve = numbers.training_curves(lines)["ranking"]
    assert len(curve["x"]) == numbers.POINTS
    assert np.allclose(curve["y"], 0.5, atol=0.03)


def test_the_images_with_the_most_errors_over_all_runs_come_first() -> None:
    dataset = painted([f"{number}.png" for number in range(4)], CLASSES)
    perfect = {record.image_id: record for record in dataset.records}

    def seen(wrong: dict[int, int]) -> dict[int, dict[str, torch.Tensor]]:
        found = {}
        for image, record in perfect.items():
            extra = torch.tensor([[70.0, 70 + 3.0 * k, 90, 72 + 3.0 * k] for k in range(wrong.get(image, 0))]).reshape(
                -1, 4
            )
            found[image] = {
                "boxes": torch.cat([torch.from_numpy(record.boxes), extra]),
                "scores": torch.full((len(record.boxes) + len(extra),), 0.9),
                "labels": torch.cat([torch.from_numpy(record.labels), torch.zeros(len(extra), dtype=torch.int64)]),
            }
        return found

    first, second = opened(dataset, seen({2: 3, 3: 1})), opened(dataset, seen({3: 4}))
    assert image_errors(first).tolist() == [0, 3, 1, 0]
    assert choose_images([first], 2) == [1, 2]
    assert choose_images([first, second], 3) == [2, 1, 0]


def test_the_boxes_of_an_image_have_their_error_types_and_objects() -> None:
    dataset = painted(["a.png", "b.png"], CLASSES)
    record = dataset.records[1]
    found = {
        2: {
            "boxes": torch.cat([torch.from_numpy(record.boxes[:1]), torch.tensor([[70.0, 70, 90, 90]])]),
            "scores": torch.tensor([0.5, 0.25]),
            "labels": torch.tensor([int(record.labels[0]), 0]),
        }
    }
    rows = box_rows(opened(dataset, found).errors, 2)
    assert rows["objects"] == [[0.5, None], [None, None]]
    assert rows["detections"][0][4:] == [0.5, int(record.labels[0]), ErrorType.CORRECT, 1.0, 0]
    assert rows["detections"][1] == [70.0, 70.0, 90.0, 90.0, 0.25, 0, ErrorType.BACKGROUND, 0.0, -1]
    assert box_rows(opened(dataset, found).errors, 1) == {"detections": [], "objects": [[None, None], [None, None]]}


def test_images_are_reduced_in_size_and_stop_at_the_budget() -> None:
    dataset = painted([f"{number}.png" for number in range(5)], CLASSES, side=1500)
    rows = picture_rows(dataset, [3, 1, 0], budget=10_000_000)
    assert [row["name"] for row in rows] == ["3.png", "1.png", "0.png"]
    picture = Image.open(io.BytesIO(base64.b64decode(rows[0]["src"].partition(",")[2])))
    assert (picture.format, picture.size) == ("JPEG", (SIDE, SIDE))
    assert (rows[0]["width"], rows[0]["height"]) == (1500, 1500)
    size = len(base64.b64decode(rows[0]["src"].partition(",")[2]))
    assert len(picture_rows(dataset, [0, 1, 2], budget=int(2.5 * size))) == 2
    assert len(picture_rows(dataset, [0, 1, 2], budget=1)) == 1


def test_an_unreadable_image_is_replaced_by_the_error_and_keeps_its_boxes() -> None:
    class Gone(PaintedDataset):
        def load(self, index: int) -> Any:
            raise DataError("a.png: there is no such file")

    dataset = painted(["a.png"], CLASSES)
    (row,) = picture_rows(Gone(dataset.records, dataset.classes, dataset.category_ids), [0])
    assert (row["src"], row["fault"]) == (None, "a.png: there is no such file")
    assert len(row["objects"]) == 2


def test_findings_name_the_best_threshold_the_costliest_errors_and_the_class_with_the_lowest_ap(run: Path) -> None:
    data = read_run(run, "ape")
    metrics, threshold, _, errors, classes = findings(data)
    best, per_class = data.evaluation.thresholds.overall, data.evaluation.per_class
    assert metrics.startswith(f"AP {data.evaluation.ap:.1f} (AP50 ")
    assert metrics.endswith(f" on 30 images with {data.evaluation.objects} objects of 8 classes.")
    assert threshold.startswith(f"The best F1 is {100 * best.f1:.0f} %, at threshold {best.score:.3g}")
    assert threshold.endswith(f"a precision of {100 * best.precision:.0f} % and a recall of {100 * best.recall:.0f} %.")
    costliest, second = sorted(data.gains, key=data.gains.__getitem__, reverse=True)[:2]
    assert errors.lower().startswith(costliest.name.lower())
    assert f": {data.gains[costliest]:.1f} AP50, followed by {second.name.lower()}" in errors
    lowest, highest = min(per_class.values()), max(per_class.values())
    names = {ap: name for name, ap in per_class.items()}
    assert classes == f"Lowest AP: {names[lowest]} ({lowest:.1f}). Highest AP: {names[highest]} ({highest:.1f})."


def test_a_run_without_objects_or_without_a_correct_detection_says_so() -> None:
    nothing = painted(["a.png"], CLASSES, objects=0)
    assert "no objects" in findings(opened(nothing, {}))[0]
    assert "No detection is correct" in findings(opened(painted(["a.png"], CLASSES), {}))[1]


def test_comparisons_state_the_difference_in_ap_unless_the_images_differ() -> None:
    dataset = painted([f"{number}.png" for number in range(6)], CLASSES)
    good, poor = opened(dataset, detect_around(dataset, 0, 0.01), "good"), opened(dataset, {}, "poor")
    (sentence,) = comparison([poor, good])
    assert sentence.startswith(f"good is {good.evaluation.ap:.1f} AP above poor; it gains most for")
    assert comparison([poor, opened(dataset, {}, "twin")]) == ["twin and poor have the same AP, 0.0."]
    (sentence,) = comparison([good, opened(dataset, {}, "far", dataset_key="other")])
    assert sentence == "far and good were evaluated on different images: their metrics are not comparable."


def test_runs_on_different_images_have_separate_images() -> None:
    first, second = painted(["a.png"], CLASSES), painted(["b.png", "c.png"], ["cow"])
    data = page_data([opened(first, {}), opened(second, {}, dataset_key="other")])
    assert [[row["name"] for row in dataset["sheet"]] for dataset in data["datasets"]] == [
        ["a.png"],
        ["b.png", "c.png"],
    ]
    assert [len(run["boxes"]) for run in data["runs"]] == [1, 2]


def test_runs_with_the_same_name_are_distinguished_by_their_parent_folders(tmp_path: Path) -> None:
    assert run_names([tmp_path / "a/run", tmp_path / "b/run", tmp_path / "c"]) == ["a/run", "b/run", "c"]


def test_a_run_without_results_is_evaluated_first(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rankwise.evaluation import inference

    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / "recipe.yaml").write_bytes((run / "recipe.yaml").read_bytes())
    (fresh / "best.safetensors").touch()
    asked = []

    def evaluate_run(folder: Path, **options: Any) -> EvaluatedRun:
        asked.append((folder, options))
        return measured(run, folder)

    monkeypatch.setattr(inference, "evaluate_run", evaluate_run)
    data = read_run(fresh, "fresh", device="cpu")
    assert asked == [(fresh, {"data": None, "device": "cpu", "split": None, "out": fresh})]
    assert data.notes == ["There is no metrics.jsonl, so there are no training curves."]


def measured(run: Path, folder: Path) -> EvaluatedRun:
    """The result of evaluating a made-up run into a folder."""
    settings, dataset = open_run(run)
    for name in ("recipe.yaml", "eval.json"):
        (folder / name).write_bytes((run / name).read_bytes())
    return EvaluatedRun(folder, folder, settings, None, dataset, read_run(run, "ape").evaluation)


def test_after_an_evaluation_the_report_is_next_to_the_results_with_the_same_metrics(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = measured(run, tmp_path)
    assert report_on(done, "try again") == tmp_path / "report.html"
    assert capsys.readouterr().out == f"report    {tmp_path}/report.html\n"
    data = embedded((tmp_path / "report.html").read_text())
    assert data["runs"][0]["summary"]["ap"] == done.evaluation.ap
    assert data["runs"][0]["name"] == tmp_path.name
    assert report_on(None, "") is None  # on other ranks


def test_a_report_that_cannot_be_written_prints_a_message(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.html").mkdir()
    assert report_on(measured(run, tmp_path), f"rankwise report {tmp_path}") is None
    said = capsys.readouterr()
    assert "report.html: could not be written (Is a directory)" in said.err
    assert f"All results are saved; to write the report, run: rankwise report {tmp_path}" in said.err
    assert said.out == ""


def test_on_other_images_the_report_has_their_best_thresholds_and_says_so(run: Path, tmp_path: Path) -> None:
    done = measured(run, tmp_path)
    best = done.evaluation.thresholds
    own = at_scores(done.evaluation.matches, list(done.evaluation.per_class), dict.fromkeys(best.per_class, 0.9))
    evaluation = replace(done.evaluation, thresholds=own, given_thresholds=True)
    (tmp_path / "eval.json").write_text(json.dumps(evaluation.to_dict()))
    data = run_data(replace(done, evaluation=evaluation), "run")
    assert data.evaluation.thresholds == best
    assert any("which were chosen on its validation images, are in eval.json" in note for note in data.notes)


def test_an_incomplete_last_line_of_metrics_is_skipped(tmp_path: Path) -> None:
    lines = [{"kind": "train", "step": 10, "ranking": 1.5}, {"kind": "eval", "step": 20, "ap": None}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"kind": "tra')
    assert read_metrics(tmp_path / "metrics.jsonl") == lines


def test_a_report_warns_if_its_ap_differs_from_eval_json(run: Path, tmp_path: Path) -> None:
    changed = make_run(tmp_path / "changed", images=4)
    values = json.loads((changed / "eval.json").read_text())
    (changed / "eval.json").write_text(json.dumps(values | {"ap": 99.0}))
    (note,) = read_run(changed, "changed").notes
    assert note.startswith("AP is 99.0 in eval.json but ")
    assert read_run(run, "ape").notes == []


def test_input_that_cannot_be_reported_is_refused_with_advice(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"no recipe\.yaml"):
        write_report([tmp_path])
    with pytest.raises(ReportError, match="given twice"):
        write_report([run, run / "."])
    with pytest.raises(ReportError, match="no run given"):
        write_report([])
    with pytest.raises(ReportError, match="--images -1"):
        write_report([run], images=-1)
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "recipe.yaml").write_bytes((run / "recipe.yaml").read_bytes())
    with pytest.raises(ReportError, match="--resume"):
        write_report([begun])
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    recipe["data"]["shapes"]["val_images"] = 2
    for name in ("eval.json", "detections.json"):
        (begun / name).write_bytes((run / name).read_bytes())
    (begun / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ReportError, match=r"does not match the dataset.*rankwise eval"):
        write_report([begun])


def test_the_command_writes_a_report_and_prints_its_path(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["report", str(run), "--out", str(tmp_path / "page.html"), "--images", "3"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert len(embedded((tmp_path / "page.html").read_text())["datasets"][0]["sheet"]) == 3


def test_the_command_prints_a_message_for_a_folder_that_is_not_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", str(tmp_path / "nowhere")])
    assert stopped.value.code == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
