"""Figures and annotated pictures."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.evaluation import Seen, contact_sheet, draw_detections, evaluate, figures
from rankwise.evaluation.colors import class_color, text_color
from rankwise.evaluation.drawing import to_pil

METRICS = [
    {"kind": "train", "step": 10, "epoch": 0, "ranking": 1.5, "box": 1.0, "lr": 0.001},
    {"kind": "train", "step": 20, "epoch": 0, "ranking": None, "box": 0.9, "lr": 0.002},
    {"kind": "skipped", "step": 21, "why": "not finite"},
    {"kind": "eval", "step": 20, "epoch": 0, "ap": 12.0, "ap50": 30.0, "ap75": None},
]


def figures_of(scene, seed=0, **options):
    given = scene(seed, **options)
    result = evaluate(*given.parts)
    return {
        "pr": figures.precision_recall(result.curves, given.classes),
        "iou": figures.score_against_iou(result.matches),
        "sweep": figures.threshold_sweep(result),
        "sizes": figures.box_sizes(result),
        "training": figures.training_curves(METRICS),
    }


def test_every_figure_is_written_and_not_blank(scene, tmp_path):
    for name, figure in figures_of(scene).items():
        figures.save_figure(figure, tmp_path / f"{name}.png")
        pixels = np.asarray(Image.open(tmp_path / f"{name}.png").convert("L"))
        assert (pixels < 128).mean() > 0.002, name


def test_figures_of_nothing_say_so(tmp_path):
    truth = {"images": [{"id": 1}], "annotations": []}
    result = evaluate(truth, {}, [1], ["a"])
    for name, figure in {
        "pr": figures.precision_recall(result.curves, ["a"]),
        "iou": figures.score_against_iou(result.matches),
        "sweep": figures.threshold_sweep(result),
        "sizes": figures.box_sizes(result),
        "training": figures.training_curves([]),
    }.items():
        figures.save_figure(figure, tmp_path / f"{name}.png")
        assert any("nothing to show" in text.get_text() for panel in figure.axes for text in panel.texts), name


def test_many_classes_and_many_detections_are_drawn_without_a_name_each(scene, tmp_path):
    drawn = figures_of(scene, images=150, category_ids=tuple(range(30)), detections=60)
    for name in ("pr", "iou", "sweep"):
        figures.save_figure(drawn[name], tmp_path / f"{name}.png")
    legend = drawn["pr"].axes[0].get_legend()
    assert [text.get_text().split()[0] for text in legend.get_texts()] == ["mean"]


def test_the_score_figure_states_the_correlation(scene):
    given = scene(1)
    result = evaluate(*given.parts)
    title = figures.score_against_iou(result.matches).axes[0].get_title(loc="left")
    assert f"PCC {result.correlation.pcc:.3f}" in title
    assert f"{result.correlation.n:,} detections" in title


def test_the_size_figure_counts_what_is_found_at_the_threshold(scene):
    given = scene(1)
    result = evaluate(*given.parts)
    legend = figures.box_sizes(result).axes[0].get_legend()
    found = round(result.thresholds.overall.recall * result.objects)
    assert [text.get_text() for text in legend.get_texts()] == [f"objects ({result.objects:,})", f"found ({found:,})"]


def test_figures_leave_pyplot_alone(scene):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figures_of(scene)
    assert plt.get_fignums() == before


def test_metrics_cut_off_by_a_kill_are_read_up_to_there(tmp_path):
    lines = [json.dumps(row) for row in METRICS]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"kind": "tra')
    assert figures.read_metrics(tmp_path / "metrics.jsonl") == METRICS


def test_training_curves_draw_what_is_there(scene):
    losses, quality, rate = figures.training_curves(METRICS).axes
    assert [text.get_text() for text in losses.get_legend().get_texts()] == ["ranking", "box"]
    assert [text.get_text() for text in quality.get_legend().get_texts()] == ["AP", "AP50"]
    assert rate.lines[0].get_xdata().tolist() == [10, 20]


def found(boxes, scores, labels):
    return {"boxes": torch.tensor(boxes).float(), "scores": torch.tensor(scores), "labels": torch.tensor(labels)}


GRAY = torch.full((3, 120, 160), 128, dtype=torch.uint8)


def test_a_small_image_is_enlarged_before_drawing_and_a_large_one_kept():
    nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    assert draw_detections(GRAY, nothing, ["a"]).size == (640, 480)
    assert draw_detections(Image.new("RGB", (1000, 700)), nothing, ["a"]).size == (1000, 700)


def test_boxes_are_drawn_where_they_are_in_the_colour_of_their_class():
    picture = np.asarray(draw_detections(GRAY, found([[40, 30, 120, 90]], [0.9], [1]), ["a", "b"]))
    assert tuple(picture[242, 161]) == class_color(1)  # left side: x 40 at a scale of 4
    assert tuple(picture[359, 300]) == class_color(1)  # bottom: y 90
    assert tuple(picture[240, 320]) == (128, 128, 128)


def test_detections_below_the_threshold_are_left_out():
    seen = found([[10, 10, 50, 50], [80, 60, 120, 100]], [0.9, 0.3], [0, 1])
    one = draw_detections(GRAY, seen, ["a", "b"], threshold=0.5)
    assert one.tobytes() == draw_detections(GRAY, found([[10, 10, 50, 50]], [0.9], [0]), ["a", "b"]).tobytes()
    both = draw_detections(GRAY, seen, ["a", "b"], threshold=[0.5, 0.25])
    assert both.tobytes() == draw_detections(GRAY, seen, ["a", "b"]).tobytes() != one.tobytes()


def test_boxes_beyond_the_image_and_of_no_size_are_drawn_without_complaint():
    boxes = [[-50.0, -50, 500, 500], [20, 20, 20, 20], [159, 119, 159.5, 119.5], [200, 200, 300, 300]]
    draw_detections(
        GRAY, found(boxes, [0.9, 0.8, 0.7, 0.6], [0, 1, 2, 0]), ["a", "b", "a very long name of a class" * 3]
    )


@pytest.mark.parametrize("shape", [(3, 20, 30), (1, 20, 30)])
def test_pictures_are_taken_as_tensor_array_or_pil(shape):
    tensor = torch.randint(0, 256, shape, dtype=torch.uint8)
    expected = to_pil(tensor).tobytes()
    array = tensor.permute(1, 2, 0).numpy()
    assert to_pil(array).tobytes() == to_pil(Image.fromarray(array.squeeze())).tobytes() == expected
    assert to_pil(tensor / 255).tobytes() == expected
    assert to_pil(tensor).size == (30, 20)


def test_what_is_no_picture_is_an_error_that_says_its_shape():
    with pytest.raises(ValueError, match=r"\[20, 30, 3\]"):
        to_pil(torch.zeros(20, 30, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"float64 \[20, 30, 3\]"):
        to_pil(np.zeros((20, 30, 3)))


def test_the_given_image_is_not_drawn_on():
    image, array = Image.new("RGB", (700, 700)), np.zeros((700, 700, 3), dtype=np.uint8)
    for given in (image, array):
        draw_detections(given, found([[10, 10, 600, 600]], [0.9], [0]), ["a"])
    assert image.getbbox() is None
    assert not array.any()


def test_missed_objects_are_dashed_and_found_ones_are_not():
    target = {"boxes": torch.tensor([[10.0, 10, 60, 60], [80, 40, 140, 110]]), "labels": torch.tensor([0, 1])}
    none = found([[10, 10, 60, 60]], [0.9], [0])
    every = found([[10, 10, 60, 60], [80, 40, 140, 110]], [0.9, 0.8], [0, 1])
    missed, complete = (
        np.asarray(contact_sheet([Seen(GRAY, seen, target)], ["a", "b"], cell=320)) for seen in (none, every)
    )
    color = np.asarray(class_color(1))
    # Left pictures agree; on the right the second object is half as much in its colour, and has no caption.
    assert 0.2 < (missed == color).all(-1)[:, 340:].sum() / (complete == color).all(-1)[:, 340:].sum() < 0.6


def test_a_sheet_holds_images_of_any_shape_with_and_without_truth():
    target = {"boxes": torch.tensor([[1.0, 1, 30, 30]]), "labels": torch.tensor([0]), "iscrowd": torch.tensor([True])}
    seen = found([[1, 1, 30, 30]], [0.5], [0])
    items = [
        Seen(torch.zeros(3, 50, 200, dtype=torch.uint8), seen, target, "wide.jpg"),
        Seen(torch.zeros(3, 200, 50, dtype=torch.uint8), seen, target, "a/very/long/path/" * 9 + "tall.jpg"),
        Seen(torch.zeros(3, 40, 40, dtype=torch.uint8), seen),
    ]
    sheet = contact_sheet(items, ["a"], threshold=0.1, columns=2, cell=200)
    assert 2 * 200 + 2 * 50 < sheet.width < 600
    assert contact_sheet([], ["a"]).width > 0


def test_truth_is_drawn_with_crowds_dashed():
    boxes = torch.tensor([[20.0, 20, 140, 100]])
    plain = {"boxes": boxes, "labels": torch.tensor([0]), "iscrowd": torch.tensor([False])}
    nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}

    def left(target: dict) -> np.ndarray:
        sheet = np.asarray(contact_sheet([Seen(GRAY, nothing, target)], ["a"], cell=640))
        return (sheet[:, :640] == class_color(0)).all(-1)

    solid, dashed = left(plain), left(plain | {"iscrowd": torch.tensor([True])})
    row = solid.sum(1).nonzero()[0].max()  # the lower side
    sides = solid[row].nonzero()[0]
    assert solid[row, sides.min() : sides.max()].all()
    assert 0.3 < dashed[row, sides.min() : sides.max()].mean() < 0.7


def test_class_colours_are_distinct_and_their_text_readable():
    colors = [class_color(label) for label in range(80)]
    assert len(set(colors)) == 80
    nearest = min(np.abs(np.subtract(a, b)).sum() for i, a in enumerate(colors[:20]) for b in colors[:i])
    assert nearest > 60
    assert {text_color(color) for color in colors} == {(0, 0, 0), (255, 255, 255)}
