"""torchvision's detectors, trained by ranking with their own training call."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from integration_models import CLASSES, TORCHVISION, fcos, retinanet, ssdlite
from torch import Tensor, nn
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_iou, generalized_box_iou

from rankwise.assign import ATSS, IoUThreshold
from rankwise.criterion import BoxSettings
from rankwise.data import ShapesDataset
from rankwise.evaluation import evaluate
from rankwise.integrations.softmax import log_odds
from rankwise.integrations.torchvision import use_ranking
from rankwise.losses import APELoss, FocalLoss
from rankwise.types import Assignment, Predictions, Target

Build = Callable[[], nn.Module]
every_model = pytest.mark.parametrize("build", TORCHVISION.values(), ids=TORCHVISION.keys())


def images_and_targets() -> tuple[list[Tensor], list[Target]]:
    """Two images of different size; labels from 1 on, which all models take."""
    torch.manual_seed(1)
    images = [torch.rand(3, 96, 80), torch.rand(3, 64, 96)]
    targets: list[Target] = [
        {"boxes": torch.tensor([[10.0, 12.0, 50.0, 60.0], [40.0, 30.0, 70.0, 90.0]]), "labels": torch.tensor([1, 7])},
        {"boxes": torch.tensor([[5.0, 5.0, 60.0, 50.0]]), "labels": torch.tensor([3])},
    ]
    return images, targets


def empty() -> Target:
    return {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}


class Watched(ATSS):
    """An assigner that remembers what it was asked and what it answered."""

    def __call__(self, predictions: Predictions, targets: list[Target]) -> Assignment:  # type: ignore[override]
        self.predictions, self.targets = predictions, targets
        self.assignment = super().__call__(predictions, targets)
        return self.assignment


@every_model
def test_the_training_call_returns_losses_under_the_models_own_names(build: Build) -> None:
    images, targets = images_and_targets()
    own = set(build().train()(images, targets))
    losses = use_ranking(build()).train()(images, targets)
    assert set(losses) == own
    assert losses["classification"] > 0
    assert losses["bbox_regression"] > 0


@every_model
def test_a_step_gives_every_trainable_weight_a_gradient(build: Build) -> None:
    torch.manual_seed(0)
    model = use_ranking(build()).train()
    sum(model(*images_and_targets()).values()).backward()
    trainable = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    assert [name for name, gradient in trainable.items() if gradient is None] == []
    assert all(bool(gradient.isfinite().all()) for gradient in trainable.values() if gradient is not None)
    still = [name for name, gradient in trainable.items() if gradient is not None and not bool(gradient.any())]
    assert all("regression_head" in name for name in still)  # SSD has a box head a level, and some have no positive
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert all("bbox_ctrness" in name for name in frozen)


@every_model
def test_images_without_objects_are_no_obstacle(build: Build) -> None:
    images, targets = images_and_targets()
    model = use_ranking(build()).train()
    assert all(bool(loss.isfinite()) for loss in model(images, [targets[0], empty()]).values())
    losses = model(images, [empty(), empty()])
    assert all(float(loss.detach()) == 0 for loss in losses.values())
    sum(losses.values()).backward()
    assert not any(bool(weight.grad.any()) for weight in model.parameters() if weight.grad is not None)


@every_model
def test_detections_keep_their_format(build: Build) -> None:
    images, _ = images_and_targets()
    detections = use_ranking(build()).eval()(images)
    for image, found in zip(images, detections, strict=True):
        assert set(found) == {"boxes", "scores", "labels"}
        assert len(found["boxes"]) == len(found["scores"]) == len(found["labels"]) > 0
        assert bool((found["scores"].diff() <= 0).all())
        height, width = image.shape[1:]
        assert bool((found["boxes"] >= 0).all())
        assert bool((found["boxes"] <= torch.tensor([width, height, width, height]) + 1e-3).all())


@every_model
def test_weights_serve_a_plain_model_with_the_same_detections(build: Build) -> None:
    images, targets = images_and_targets()
    model, plain = use_ranking(build()), build()
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=1e-3)
    sum(model.train()(images, targets).values()).backward()
    optimizer.step()
    plain.load_state_dict(model.state_dict(), strict=True)
    plain.score_thresh = model.score_thresh
    for ranked, expected in zip(model.eval()(images), plain.eval()(images), strict=True):
        for name in expected:
            torch.testing.assert_close(ranked[name], expected[name])


def test_retinanets_losses_are_those_of_its_own_outputs() -> None:
    torch.manual_seed(0)
    images, targets = images_and_targets()
    watched = Watched()
    model = use_ranking(retinanet(), APELoss(), watched, BoxSettings(weight=3.0)).train()
    outputs: dict[str, Tensor] = {}
    model.head.register_forward_hook(lambda head, features, made: outputs.update(made))
    losses = model(images, targets)

    levels = [96 // stride * (96 // stride) * 3 for stride in (8, 16, 32)]
    assert watched.predictions.level_sizes == tuple(levels)
    logits, codes = outputs["cls_logits"], outputs["bbox_regression"]
    anchors = watched.predictions.anchors
    labels, matched = watched.assignment.labels, watched.assignment.matched
    quality = torch.zeros(labels.shape)
    errors = []
    for number, target in enumerate(watched.targets):
        for row in (matched[number] >= 0).nonzero().flatten().tolist():
            truth = target["boxes"][matched[number, row]][None]
            box = BoxCoder((1.0, 1.0, 1.0, 1.0)).decode_single(codes[number, row][None], anchors[row][None])
            quality[number, row] = box_iou(box, truth).item()
            errors.append(1 - generalized_box_iou(box, truth).squeeze())
    assert len(errors) >= 3
    expected = APELoss(method="dense")(logits.flatten(0, 1), labels.flatten(), quality.flatten())
    torch.testing.assert_close(losses["classification"], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(losses["bbox_regression"], 3 * torch.stack(errors).mean(), rtol=1e-4, atol=1e-5)


def test_fcos_reports_the_class_score_alone() -> None:
    images, _ = images_and_targets()
    model = use_ranking(fcos()).eval()
    outputs: dict[str, Tensor] = {}
    model.head.register_forward_hook(lambda head, features, made: outputs.update(made))
    found = model(images)
    for number, detections in enumerate(found):
        best = outputs["cls_logits"][number].sigmoid().max()
        torch.testing.assert_close(detections["scores"][0], best.sqrt())


def test_fcos_finds_an_objects_positives_on_the_level_of_its_size() -> None:
    watched = Watched()
    model = use_ranking(fcos(size=256), assigner=watched).train()
    for side, level in ((64.0, 0), (128.0, 1), (250.0, 2)):
        box = torch.tensor([[128 - side / 2, 128 - side / 2, 128 + side / 2, 128 + side / 2]])
        model([torch.rand(3, 256, 256)], [{"boxes": box, "labels": torch.tensor([2])}])
        sizes = watched.predictions.level_sizes
        assert sizes == (32 * 32, 16 * 16, 8 * 8)
        positives = (watched.assignment.matched[0] >= 0).split(sizes)
        assert bool(positives[level].any())
        assert not any(bool(others.any()) for number, others in enumerate(positives) if number != level)


def test_fcos_trains_no_centerness() -> None:
    model = use_ranking(fcos()).train()
    losses = model(*images_and_targets())
    assert float(losses["bbox_ctrness"]) == 0
    assert not losses["bbox_ctrness"].requires_grad


def test_ssd_ranks_the_log_odds_of_the_scores_it_reports() -> None:
    torch.manual_seed(0)
    watched = Watched()
    model = use_ranking(ssdlite(), assigner=watched).train()
    outputs: dict[str, Tensor] = {}
    model.head.register_forward_hook(lambda head, features, made: outputs.update(made))
    images, targets = images_and_targets()
    model(images, targets)
    scores = outputs["cls_logits"].double().softmax(-1)[..., 1:]
    expected = (scores / (1 - scores)).log()
    torch.testing.assert_close(watched.predictions.logits.double(), expected, rtol=1e-4, atol=1e-4)
    assert [target["labels"].tolist() for target in watched.targets] == [[0, 6], [2]]


def test_log_odds_stay_exact_where_the_softmax_is_certain() -> None:
    torch.manual_seed(0)
    logits = torch.cat([torch.randn(200, 6) * scale for scale in (1, 10, 60)]).requires_grad_()
    for background in (0, 5):
        found = log_odds(logits, background)
        wide = logits.detach().double()
        others = torch.stack([wide[:, torch.arange(6) != k].logsumexp(-1) for k in range(6)], -1)
        expected = (wide - others)[:, torch.arange(6) != background]
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
        gradient = torch.autograd.grad(found.sum(), logits)[0]
        assert bool(gradient.isfinite().all())


def test_log_odds_of_equal_logits_have_a_gradient() -> None:
    equal = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    found = log_odds(equal, 0)
    torch.testing.assert_close(found.exp(), torch.full((2, 3), 1 / 3, dtype=torch.float64))
    gradient = torch.autograd.grad(found[0, 0], equal)[0]
    torch.testing.assert_close(gradient[0], torch.tensor([-1 / 3, 1.0, -1 / 3, -1 / 3], dtype=torch.float64))


def test_ssd_refuses_background_as_a_label() -> None:
    images, targets = images_and_targets()
    targets[1]["labels"] = torch.tensor([0])
    with pytest.raises(ValueError, match="target 1 of the batch has label 0: in SSD this is background"):
        use_ranking(ssdlite()).train()(images, targets)


def test_another_loss_and_assigner_can_follow() -> None:
    images, targets = images_and_targets()
    model = use_ranking(retinanet()).train()
    ranked = model(images, targets)["classification"].item()
    use_ranking(model, FocalLoss(), IoUThreshold())
    focal = model(images, targets)["classification"].item()
    assert focal != pytest.approx(ranked)
    use_ranking(model)
    assert model(images, targets)["classification"].item() == pytest.approx(ranked)
    assert len(model.head._forward_pre_hooks) == 1


def test_a_copied_model_trains_on_its_own() -> None:
    images, targets = images_and_targets()
    model = use_ranking(retinanet()).train()
    other = copy.deepcopy(model)
    model(images, targets)
    bigger = [torch.rand(3, 96, 96), torch.rand(3, 96, 96)]
    before = other(bigger, targets)["classification"].item()
    use_ranking(model, FocalLoss())
    assert other(bigger, targets)["classification"].item() == pytest.approx(before)


def test_the_score_threshold_is_the_callers() -> None:
    assert use_ranking(retinanet()).score_thresh == 0
    assert use_ranking(retinanet(), score_thresh=0.3).score_thresh == 0.3
    assert use_ranking(retinanet(), score_thresh=None).score_thresh == retinanet().score_thresh


def test_other_models_are_refused() -> None:
    with pytest.raises(TypeError, match="torchvision RetinaNet, FCOS or SSD, not Linear"):
        use_ranking(nn.Linear(1, 1))  # type: ignore[type-var]


@pytest.mark.slow
def test_a_ranked_retinanet_learns_eight_images_by_heart() -> None:
    torch.manual_seed(0)
    size, steps = 64, 60
    dataset = ShapesDataset("train", images=8, size=size)
    images = [image / 255 for image, _ in dataset]
    targets = [target for _, target in dataset]
    model = use_ranking(retinanet(size=size), loss=APELoss(), assigner=ATSS()).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(steps):
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        found = model.eval()(images)
    detections = {target["image_id"]: kept for target, kept in zip(targets, found, strict=True)}
    result = evaluate(dataset.ground_truth(), detections, dataset.category_ids, dataset.classes)
    assert len(dataset.classes) == CLASSES
    assert result.ap50 is not None
    assert result.ap is not None
    assert result.ap50 > 95
    assert result.ap > 75


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("loss", APELoss, r"pass APELoss\(\)"),
        ("loss", "APELoss", "got 'APELoss'"),
        ("assigner", ATSS, r"such as ATSS\(\), got <class 'rankwise"),
        ("assigner", "ATSS", "got 'ATSS'"),
        ("box", 2.0, r"BoxSettings\(weight=…, weighting=…\), got 2.0"),
    ],
)
def test_a_class_or_a_name_is_refused_at_once(name: str, value: object, message: str) -> None:
    model = retinanet()
    with pytest.raises(TypeError, match=message):
        use_ranking(model, **{name: value})  # type: ignore[arg-type]
    assert "compute_loss" not in vars(model)
