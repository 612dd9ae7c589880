"""Figures and annotated images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from rankwise.evaluation import Seen, contact_sheet, draw_detections, evaluate, figures
from rankwise.evaluation.colors import class_color, text_color
from rankwise.evaluation.drawing import to_pil


def figures_of(scene, seed=0, **options):
    result = evaluate(*scene(seed, **options).parts)
    cloud, (panel,) = figures.new_panels(1, width=5.6, height=4.4)
    figures.draw_score_against_iou(cloud, panel, result.matches)
    return result, {"iou": cloud, "sweep": figures.threshold_sweep(result)}


def test_figures_without_data_say_so():
    truth = {"images": [{"id": 1}], "annotations": []}
    result = evaluate(truth, {}, [1], ["a"])
    cloud, (panel,) = figures.new_panels(1, width=5.6, height=4.4)
    figures.draw_score_against_iou(cloud, panel, result.matches)
    for figure in (cloud, figures.threshold_sweep(result)):
        assert "nothing to show" in [text.get_text() for text in figure.axes[0].texts]


def test_figures_with_many_classes_have_no_legend_and_those_with_many_points_are_densities(scene, tmp_path):
    _, few = figures_of(scene)
    assert len(few["sweep"].axes[1].get_legend().get_texts()) == 3
    assert len(few["iou"].axes) == 1  # points
    _, many = figures_of(scene, images=250, category_ids=tuple(range(30)), detections=60)
    assert many["sweep"].axes[1].get_legend() is None
    assert many["iou"].axes[1].get_ylabel() == "detections"  # a density with its scale
    figures.save_figure(many["iou"], tmp_path / "iou.png")
    assert (np.asarray(Image.open(tmp_path / "iou.png").convert("L")) < 128).mean() > 0.002


def test_figures_contain_the_correlation_and_the_best_threshold(scene):
    result, drawn = figures_of(scene, 1)
    title = drawn["iou"].axes[0].get_title(loc="left")
    assert f"PCC {result.correlation.pcc:.3f}" in title
    assert f"{result.correlation.n:,} detections" in title
    best = result.thresholds.overall
    assert [text.get_text() for text in drawn["sweep"].axes[0].texts] == [f"{best.f1:.2f} at {best.score:.3f}"]


def test_figures_do_not_use_pyplot(scene):
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figures_of(scene)
    assert plt.get_fignums() == before


def found(boxes, scores, labels):
    return {"boxes": torch.tensor(boxes).float(), "scores": torch.tensor(scores), "labels": torch.tensor(labels)}


GRAY = torch.full((3, 120, 160), 128, dtype=torch.uint8)


def test_a_small_image_is_enlarged_before_drawing_and_a_large_one_kept():
    nothing = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0), "labels": torch.zeros(0, dtype=torch.int64)}
    assert draw_detections(GRAY, nothing, ["a"]).size == (640, 480)
    assert draw_detections(Image.new("RGB", (1000, 700)), nothing, ["a"]).size == (1000, 700)


def test_boxes_are_drawn_at_their_position_in_the_color_of_their_class():
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


def test_boxes_outside_the_image_and_empty_boxes_can_be_drawn():
    boxes = [[-50.0, -50, 500, 500], [20, 20, 20, 20], [159, 119, 159.5, 119.5], [200, 200, 300, 300]]
    names = ["a", "b", "a very long name of a class" * 3]
    picture = draw_detections(GRAY, found(boxes, [0.9, 0.8, 0.7, 0.6], [0, 1, 2, 0]), names)
    assert picture.size == (640, 480)
    drawn = {color for _, color in picture.getcolors(10**6)}
    assert {class_color(0), class_color(1), class_color(2)} <= drawn


@pytest.mark.parametrize("shape", [(3, 20, 30), (1, 20, 30)])
def test_images_may_be_tensors_arrays_or_pil_images(shape):
    tensor = torch.randint(0, 256, shape, dtype=torch.uint8)
    expected = to_pil(tensor).tobytes()
    array = tensor.permute(1, 2, 0).numpy()
    assert to_pil(array).tobytes() == to_pil(Image.fromarray(array.squeeze())).tobytes() == expected
    assert to_pil(tensor / 255).tobytes() == expected
    assert to_pil(tensor).size == (30, 20)


def test_an_invalid_image_is_refused_with_its_shape():
    with pytest.raises(ValueError, match=r"\[20, 30, 3\]"):
        to_pil(torch.zeros(20, 30, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"float64 \[20, 30, 3\]"):
        to_pil(np.zeros((20, 30, 3)))


def test_drawing_does_not_modify_the_given_image():
    image, array = Image.new("RGB", (700, 700)), np.zeros((700, 700, 3), dtype=np.uint8)
    for given in (image, array):
        draw_detections(given, found([[10, 10, 600, 600]], [0.9], [0]), ["a"])
    assert image.getbbox() is None
    assert not array.any()


def test_missed_objects_are_dashed_and_detected_ones_are_not():
    target = {"boxes": torch.tensor([[10.0, 10, 60, 60], [80, 40, 140, 110]]), "labels": torch.tensor([0, 1])}
    none = found([[10, 10, 60, 60]], [0.9], [0])
    every = found([[10, 10, 60, 60], [80, 40, 140, 110]], [0.9, 0.8], [0, 1])
    missed, complete = (
        np.asarray(contact_sheet([Seen(GRAY, seen, target)], ["a", "b"], cell=320)) for seen in (none, every)
    )
    color = np.asarray(class_color(1))
    # On the right, the dashed box has about half the colored pixels of a solid one, and no caption.
    assert 0.2 < (missed == color).all(-1)[:, 340:].sum() / (complete == color).all(-1)[:, 340:].sum() < 0.6


def test_a_contact_sheet_has_images_of_any_shape_with_and_without_ground_truth():
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


def test_crowd_regions_are_dashed():
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


def test_class_colors_are_distinct_and_their_text_is_readable():
    colors = [class_color(label) for label in range(80)]
    assert len(set(colors)) == 80
    nearest = min(np.abs(np.subtract(a, b)).sum() for i, a in enumerate(colors[:20]) for b in colors[:i])
    assert nearest > 60

    def luminance(color):
        return np.dot([0.2126, 0.7152, 0.0722], (np.asarray(color) / 255) ** 2.2)

    for color in colors:  # the text color has at least the contrast of the other one
        brightness, of_text = luminance(color), luminance(text_color(color))
        contrast = (max(brightness, of_text) + 0.05) / (min(brightness, of_text) + 0.05)
        assert contrast > 4.4, color
