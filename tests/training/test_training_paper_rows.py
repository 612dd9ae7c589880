"""Every row of the paper's tables is a recipe with the settings of the paper, and every detector of them trains."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from data_folders import write_coco_folder
from jsonargparse import ArgumentParser
from lightning_fabric import Fabric

from rankwise.cli import main
from rankwise.config.datasets import open_datasets
from rankwise.config.recipe import Recipe, add_recipe_arguments, expand, parse_recipe, recipe_from
from rankwise.models.settings import DetectorSettings
from rankwise.reproduce.rows import Row
from rankwise.reproduce.tables import TABLES, paper_row
from rankwise.training.loop import Run
from rankwise.training.signals import StopFlag

ROWS = [(name, row) for name, table in TABLES.items() for row in table.rows]
BACKBONES = {"ResNet-101": "resnet101", "ResNeXt-101": "resnext101_64x4d", "Res2Net-101": "res2net101d"}
#: The same network, but thin, shallow, without weights and on small images.
TINY = [
    "--model.input.short_side=64",
    "--model.input.max_side=96",
    "--model.backbone.pretrained=false",
    "--model.backbone.args={'channels': [16, 16, 16, 16], 'layers': [1, 1, 1, 1], 'zero_init_last': false}",
    "--data.train=train",
    "--data.val=val",
    "--data.workers=0",
    "--data.augment.square=null",
    "--data.augment.short_range=null",
    "--batch_size=2",
]


@pytest.fixture(scope="module")
def recipes() -> dict[tuple[str, tuple[str, ...]], Recipe]:
    """The recipe of every row on COCO; one parser for all, since making it is what takes its time."""
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_recipe_arguments(parser)
    kinds = {(row.recipe, row.coco) for _, row in ROWS}
    return {
        kind: recipe_from(parser, parser.parse_args(expand(parser, ["--config", kind[0], *kind[1]]))) for kind in kinds
    }


def test_every_row_parses_and_has_the_common_settings_of_the_paper(recipes):
    assert len(ROWS) > 60
    for table, row in ROWS:
        recipe = recipes[row.recipe, row.coco]
        assert recipe.schedule.warmup_steps == 500, row.name
        assert (recipe.schedule.decay, recipe.optimizer.name) == ("step", "SGD"), row.name
        assert len(recipe.schedule.milestones) == 2, row.name
        assert recipe.schedule.milestones[-1] < recipe.train.epochs, row.name
        assert recipe.model.backbone.pretrained is True, row.name
        if not re.match("aLRP", row.name):  # whose own paper has 32
            assert recipe.train.batch_size == 16, row.name
        if re.match("A?PE", row.name) and table not in ("losses", "assigners"):
            post = recipe.model.postprocess
            assert (post.score_threshold, post.nms_threshold, recipe.box.weight) == (0.15, 0.6, 2.0), row.name


def test_rows_have_the_epochs_sizes_and_backbones_of_the_paper(recipes):
    rows = [(table, row, paper_row(table, row)) for table, row in ROWS if row.paper is not None]
    assert len([row for table, row, _ in rows if table == "state_of_the_art"]) == 23
    for table, row, paper in rows:
        recipe = recipes[row.recipe, row.coco]
        model, augment = recipe.model, recipe.data.augment
        if "epochs" in paper:
            assert recipe.train.epochs == paper["epochs"], row.name
        if "lr" in paper:
            assert recipe.optimizer.lr == paper["lr"], row.name
        method = str(paper.get("method", paper.get("detector", f"({paper.get('size', '')})")))
        size = re.search(r"\((\d+)\)", method)
        if size and size[1] == "512":
            assert augment.square == 512, row.name
            assert (model.input.short_side, model.input.max_side, model.input.keep_ratio) == (500, 833, True), row.name
        elif size:
            longest = {"500": 833, "800": 1333}[size[1]]
            assert (model.input.short_side, model.input.max_side) == (int(size[1]), longest), row.name
            assert augment.square is None, row.name
        if "aug" in paper or table in ("contributions", "sampling"):
            assert augment.ssd == paper.get("aug", True), row.name
        if table == "state_of_the_art":
            assert augment.short_range == ((480, 960) if paper.get("multi_scale_train") else None), row.name
            assert (model.test.flip and len(model.test.short_sides) > 1) == bool(paper.get("multi_scale_test")), (
                row.name
            )
            backbone, _, _ = paper.get("backbone", "ResNet-50").partition("-DCN")
            deformable = (3, 4, 5) if "DCN" in paper.get("backbone", "") else ()
            assert model.backbone.deformable_stages == deformable, row.name
            assert model.backbone.name.partition(".")[0] == BACKBONES.get(backbone, "resnet50"), row.name
            assert type(recipe.loss).__name__ == f"{_loss_name(paper['loss'])}Loss", row.name
            kind = {"RetinaNet": "IoUThreshold", "ATSS": "ATSS", "PAA": "PAA", "PAA*": "PAA"}[method.partition("(")[0]]
            assert type(recipe.assign).__name__ == kind, row.name
            if method.startswith("PAA"):
                assert recipe.assign.clustering == ("scores" if method.startswith("PAA*") else "losses"), row.name
                assert model.postprocess.score_voting, row.name


def _loss_name(paper: str) -> str:
    return {"aLRP": "ALRP", "RankDetNet": "RankDet"}.get(paper, paper)


def _architecture(settings: DetectorSettings) -> tuple:
    """What decides the network: neither sizes of images nor what becomes of its output."""
    return settings.backbone.name, settings.backbone.deformable_stages, settings.neck, settings.head, settings.anchors


def test_every_detector_loss_and_assigner_of_the_tables_trains_two_steps(recipes, tmp_path):
    folder = write_coco_folder(tmp_path / "data", train=4, val=1)
    seen: set = set()
    chosen: list[Row] = []  # each has something that those before it have not
    for _, row in reversed(ROWS):
        recipe = recipes[row.recipe, row.coco]
        new = {_architecture(recipe.model), type(recipe.loss), type(recipe.assign)} - seen
        seen |= new
        chosen += [row] if new else []
    assert len([part for part in seen if isinstance(part, tuple)]) >= 9
    fabric = Fabric(accelerator="cpu", devices=1)
    tiny = parse_recipe([*["--config", "coco_atss800"], *TINY, f"--data.path={folder}"])
    for number, row in enumerate(chosen):
        recipe = recipes[row.recipe, row.coco]
        small = replace(recipe.model.backbone, pretrained=False, args=tiny.model.backbone.args)
        thin = {"neck": replace(recipe.model.neck, channels=32), "head": replace(recipe.model.head, channels=32)}
        model = replace(recipe.model, input=tiny.model.input, backbone=small, **thin)
        recipe = replace(recipe, data=tiny.data, model=model, train=replace(tiny.train, epochs=recipe.train.epochs))
        run = Run(recipe, tmp_path / str(number), fabric, *open_datasets(recipe.data, model.input))
        before = {name: weight.clone() for name, weight in run.detector.named_parameters() if weight.requires_grad}
        run.train_epoch(StopFlag())
        run.tracker.close()
        assert (run.progress.step, run.progress.skipped) == (2, 0), row.name
        after = dict(run.detector.named_parameters())
        assert all(after[name].isfinite().all() for name in before), row.name
        assert not torch.equal(before["head.class_output.weight"], after["head.class_output.weight"]), row.name


@pytest.fixture(scope="module")
def multi_scale_run(tmp_path_factory) -> Path:
    """The row that is tested at several sizes, trained for a moment."""
    folder = tmp_path_factory.mktemp("tta")
    data = write_coco_folder(folder / "data", train=4, val=3)
    row = next(row for _, row in ROWS if "ResNet-101, multi-scale test" in row.name)
    tta = ["--model.test.short_sides=[48,64]", "--model.test.max_side=96"]
    flags = [*row.coco, *TINY, *tta, "--epochs=1", "--model.postprocess.score_threshold=0"]
    main(["train", row.recipe, "--data", str(data), "--run", str(folder / "run"), *flags])
    return folder / "run"


def detections(path: Path) -> list[dict]:
    return json.loads((path / "detections.json").read_text())


def test_a_run_is_evaluated_with_the_tta_of_its_recipe_and_eval_can_change_it(multi_scale_run, capsys):
    own = detections(multi_scale_run)
    main(["eval", str(multi_scale_run), "--scales", "[48, 64]", "--max_side", "96", "--flip", "true"])
    assert detections(multi_scale_run / "tta") == own
    main(["eval", str(multi_scale_run), "--scales", "[]"])  # the plain way
    assert detections(multi_scale_run / "tta") != own
    assert detections(multi_scale_run) == own  # what the run itself measured stays
    with pytest.raises(SystemExit):
        main(["eval", str(multi_scale_run), "--max_side", "128"])
    assert "add --scales" in capsys.readouterr().err


def test_images_without_annotations_get_a_results_file(multi_scale_run):
    """As for test-dev2017, whose images lie in test2017, and whose objects nobody but the server knows."""
    data = multi_scale_run.parent / "data"
    content = json.loads(next((data / "annotations").glob("*val*.json")).read_text())
    del content["annotations"]
    (data / "annotations" / "image_info_test-dev2017.json").write_text(json.dumps(content))
    (data / "test2017").symlink_to(data / "val", target_is_directory=True)
    main(["eval", str(multi_scale_run), "--split", "test-dev2017", "--out", str(multi_scale_run / "dev")])
    assert detections(multi_scale_run / "dev") == detections(multi_scale_run)
    assert json.loads((multi_scale_run / "dev" / "eval.json").read_text())["ap"] is None
