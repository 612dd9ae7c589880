"""Every detector of transformers that the docs list: a training step, saving and loading; compiling, and `Trainer`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from integration_models import CLASSES, TRANSFORMERS, d_fine, deformable_detr, detr, rt_detr_v2
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.multiprocessing.spawn import start_processes
from torchvision.ops import box_convert, box_iou
from transformers import (
    GroundingDinoForObjectDetection,
    MMGroundingDinoForObjectDetection,
    OwlViTForObjectDetection,
    Trainer,
    TrainingArguments,
)
from transformers.loss.loss_grounding_dino import GroundingDinoHungarianMatcher
from transformers.loss.loss_lw_detr import LwDetrHungarianMatcher
from transformers.models.auto import modeling_auto
from transformers_models import GROUPS, MORE, SEGMENTATION, grounding_dino, lw_detr, yolos

from rankwise.integrations.transformers import use_ranking
from rankwise.losses import APELoss, FocalLoss

CLASSIFICATION = ("loss_vfl", "loss_ce", "loss_mal")


def images() -> Tensor:
    return torch.rand(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))


def objects() -> list[dict[str, Tensor]]:
    boxes = torch.tensor([[0.3, 0.3, 0.2, 0.4], [0.6, 0.5, 0.3, 0.2], [0.7, 0.8, 0.2, 0.3], [0.5, 0.4, 0.6, 0.5]])
    return [
        {"class_labels": torch.tensor([1, 7, 1]), "boxes": boxes[:3]},
        {"class_labels": torch.tensor([3]), "boxes": boxes[3:]},
    ]


def nothing() -> dict[str, Tensor]:
    return {"class_labels": torch.zeros(0, dtype=torch.int64), "boxes": torch.zeros(0, 4)}


def built(build: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return build().train()


def called(model: Any, labels: list[dict[str, Tensor]] | None = None) -> Any:
    torch.manual_seed(2)  # denoising draws its noise, dropout its zeros
    return model(pixel_values=images(), labels=objects() if labels is None else labels)


@pytest.mark.parametrize("build", MORE.values(), ids=MORE.keys())
def test_a_training_step_changes_the_classification_loss_alone(build: Callable[[], Any], tmp_path: Path) -> None:
    model = built(build)
    own = called(model)
    own.loss.backward()
    trained = {name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()}
    model.zero_grad()
    ranked = called(use_ranking(model))
    ranked.loss.backward()
    assert trained == {
        name for name, weight in model.named_parameters() if weight.grad is not None and weight.grad.any()
    }
    assert set(ranked.loss_dict) == set(own.loss_dict)
    for name, value in own.loss_dict.items():
        if name.startswith(CLASSIFICATION):
            assert 0 < ranked.loss_dict[name].item() != pytest.approx(value.item(), rel=1e-3)
        else:
            torch.testing.assert_close(ranked.loss_dict[name], value)
    empty = called(model, [nothing(), nothing()])
    assert {value.item() for name, value in empty.loss_dict.items() if name.startswith(CLASSIFICATION)} == {0}
    assert_reloads(model, tmp_path)


def assert_reloads(model: Any, folder: Path) -> None:
    """A saved model is loaded with the same weights and its own loss."""
    model.save_pretrained(folder)
    again = type(model).from_pretrained(folder)
    assert type(again.loss_function) is type(lambda: None)
    assert again.loss_function.__module__.startswith("transformers.")
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(images()).logits, model.eval()(images()).logits)


@pytest.mark.parametrize("build", [d_fine, deformable_detr, detr])
def test_the_others_are_saved_and_loaded_too(build: Callable[[], Any], tmp_path: Path) -> None:
    assert_reloads(use_ranking(built(build)), tmp_path)


@pytest.mark.parametrize("kind", [GroundingDinoForObjectDetection, MMGroundingDinoForObjectDetection])
def test_grounding_dino_ranks_the_tokens_of_its_classes(kind: Any) -> None:
    model = built(lambda: grounding_dino(kind))
    text = {"input_ids": torch.tensor([[101, 7, 8, 1012, 9, 1012, 102]] * 2)}  # two classes: of two tokens, and of one
    labels = [
        {"class_labels": torch.tensor([0, 1, 0]), "boxes": objects()[0]["boxes"]},
        {"class_labels": torch.tensor([1]), "boxes": objects()[1]["boxes"]},
    ]
    torch.manual_seed(2)
    own = model(pixel_values=images(), labels=labels, **text)
    torch.manual_seed(2)
    ranked = use_ranking(model)(pixel_values=images(), labels=labels, **text)
    ranked.loss.backward()
    assert ranked.loss_dict["loss_ce"].item() != pytest.approx(own.loss_dict["loss_ce"].item(), rel=1e-3)
    torch.testing.assert_close(ranked.loss_dict["loss_giou"], own.loss_dict["loss_giou"])
    assert all(weight.grad.isfinite().all() for weight in model.parameters() if weight.grad is not None)
    matcher = GroundingDinoHungarianMatcher(class_cost=1, bbox_cost=5, giou_cost=2)
    boxes, maps = ranked.pred_boxes.detach(), torch.tensor([[0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0]])
    padded = torch.nn.functional.pad(maps, (0, ranked.logits.shape[-1] - 7))
    outputs = {"logits": ranked.logits, "pred_boxes": boxes, "label_maps": (padded, padded)}
    targets, mask = torch.zeros_like(ranked.logits), torch.zeros_like(ranked.logits, dtype=torch.bool)
    mask[..., :7] = True
    for number, (queries, matched) in enumerate(matcher(outputs, labels)):
        pairs = (boxes[number, queries], labels[number]["boxes"][matched])
        quality = box_iou(*(box_convert(part, "cxcywh", "xyxy") for part in pairs)).diag().clamp(min=1e-6)
        targets[number, queries] = padded[labels[number]["class_labels"][matched]] * quality[:, None]
    assert int((targets > 0).sum()) == 6
    expected = APELoss(method="dense").dense(ranked.logits, targets, mask=mask)
    torch.testing.assert_close(ranked.loss_dict["loss_ce"], expected, rtol=1e-4, atol=1e-6)


def test_its_own_loss_can_be_kept_beside() -> None:
    model = built(yolos)
    own, ranked, both = (
        called(change(model)).loss_dict["loss_ce"].item()
        for change in (lambda m: m, use_ranking, lambda m: use_ranking(m, keep=0.5))
    )
    assert both == pytest.approx(ranked + 0.5 * own, rel=1e-4)


def test_query_groups_rank_each_by_itself() -> None:
    outputs = called(use_ranking(built(lw_detr)))
    logits, boxes, labels = outputs.logits, outputs.pred_boxes.detach(), objects()
    matcher = LwDetrHungarianMatcher(class_cost=2, bbox_cost=5, giou_cost=2)
    matches = matcher({"logits": logits, "pred_boxes": boxes}, labels, GROUPS)
    kinds, quality = torch.full(logits.shape[:2], CLASSES), torch.zeros(logits.shape[:2])
    for number, (queries, matched) in enumerate(matches):
        kinds[number, queries] = labels[number]["class_labels"][matched]
        pairs = (boxes[number, queries], labels[number]["boxes"][matched])
        quality[number, queries] = box_iou(*(box_convert(part, "cxcywh", "xyxy") for part in pairs)).diag()
    size = logits.shape[1] // GROUPS
    parts = [slice(group * size, (group + 1) * size) for group in range(GROUPS)]
    expected = [
        APELoss(method="dense")(logits[:, part].flatten(0, 1), kinds[:, part].flatten(), quality[:, part].flatten())
        for part in parts
    ]
    torch.testing.assert_close(outputs.loss_dict["loss_ce"], torch.stack(expected).mean(), rtol=1e-4, atol=1e-6)
    assert all(int((kinds[:, part] < CLASSES).sum()) == 4 for part in parts)


def test_a_compiled_model_trains_more_than_one_step() -> None:
    model = use_ranking(built(yolos))
    expected = called(model).loss
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        loss = called(compiled).loss
        loss.backward()
        torch.testing.assert_close(loss, expected)


def test_the_trainer_of_transformers_trains_it(tmp_path: Path) -> None:
    model = use_ranking(built(rt_detr_v2))
    data = [{"pixel_values": images()[0], "labels": label} for label in (*objects(), nothing(), nothing())]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=2, use_cpu=True, report_to=[], logging_steps=1
    )

    def collate(batch: list[dict[str, Any]]) -> dict[str, Any]:
        pixels = torch.stack([item["pixel_values"] for item in batch])
        return {"pixel_values": pixels, "labels": [item["labels"] for item in batch]}

    trainer = Trainer(model, arguments, train_dataset=data, data_collator=collate)
    before = model.class_embed[-1].weight.detach().clone()
    trainer.train()
    losses = [step["loss"] for step in trainer.state.log_history if "loss" in step]
    assert len(losses) == 3
    assert 0 < sum(losses) < float("inf")
    assert not torch.equal(before, model.class_embed[-1].weight)
    trainer.save_model(str(tmp_path / "saved"))
    again = type(model).from_pretrained(tmp_path / "saved")
    assert list(again.state_dict()) == list(model.state_dict())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value)


@pytest.mark.parametrize("build", SEGMENTATION.values(), ids=SEGMENTATION.keys())
def test_models_with_masks_change_the_classification_loss_alone(build: Callable[[], Any]) -> None:
    model, labels = built(build), objects()
    for label in labels:
        label["masks"] = torch.ones(len(label["boxes"]), 96, 96)
    own, ranked = called(model, labels).loss_dict, called(use_ranking(model), labels).loss_dict
    assert any("mask" in name for name in own)
    for name, value in own.items():
        if name.startswith(CLASSIFICATION):
            assert 0 < ranked[name].item() != pytest.approx(value.item(), rel=1e-3)
        elif name.startswith("loss_mask"):
            assert ranked[name].isfinite()  # rf-detr compares random points
        else:
            torch.testing.assert_close(ranked[name], value)


#: The detectors of this file, by class.
TESTED = {build.__annotations__["return"] for build in (*TRANSFORMERS.values(), *MORE.values())}
TESTED |= {"GroundingDinoForObjectDetection", "MMGroundingDinoForObjectDetection"}
ALL = {
    *modeling_auto.MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES.values(),
    *modeling_auto.MODEL_FOR_ZERO_SHOT_OBJECT_DETECTION_MAPPING_NAMES.values(),
}


@pytest.mark.parametrize("name", sorted(ALL - TESTED))
def test_every_other_detector_of_transformers_is_refused_at_once(name: str) -> None:
    kind = getattr(transformers, name)
    model = kind.__new__(kind)  # some have no default configuration
    nn.Module.__init__(model)
    model.loss_type = "ForObjectDetection"  # which they all inherit
    with pytest.raises(TypeError, match=f"use_ranking takes a detector .* not a {name}"):
        use_ranking(model)


def test_the_tested_detectors_are_those_of_transformers_with_a_loss() -> None:
    assert TESTED <= ALL
    with torch.device("meta"), pytest.raises(TypeError, match="not a OwlViTForObjectDetection"):
        use_ranking(OwlViTForObjectDetection(OwlViTForObjectDetection.config_class()))


class Wrapped(nn.Module):
    """Passes on what it does not have itself, as PEFT does: a loss function set here has no effect on the model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("model"), name)


def test_a_compiled_model_is_changed_and_another_wrapper_is_refused() -> None:
    model = built(yolos)
    own = called(model).loss_dict["loss_ce"].item()
    with pytest.raises(TypeError, match="not a Wrapped"):
        use_ranking(Wrapped(model))
    assert called(model).loss_dict["loss_ce"].item() == pytest.approx(own)
    compiled = torch.compile(model, backend="eager")
    assert use_ranking(compiled) is compiled
    assert called(model).loss_dict["loss_ce"].item() != pytest.approx(own, rel=1e-3)


def process(rank: int, folder: str) -> None:
    """A step of one of two processes, of which the second's batch has no object."""
    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    values = []
    for loss in (APELoss(scope="world"), FocalLoss()):
        outputs = called(use_ranking(built(rt_detr_v2), loss), objects() if rank == 0 else [nothing(), nothing()])
        outputs.loss.backward()
        values.append({name: value.detach() for name, value in outputs.loss_dict.items()})
    torch.save(values, f"{folder}/{rank}.pt")
    destroy_process_group()


def test_a_process_without_objects_does_not_make_the_others_wait(tmp_path: Path) -> None:
    start_processes(process, (str(tmp_path),), nprocs=2, start_method="fork")  # which needs no imports
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for mine, other in zip(first, second, strict=True):
        assert any("_dn_" in name for name in mine)
        assert not any("_dn_" in name for name in other)
    # the last layers of both processes rank together, the denoising queries of each by themselves
    torch.testing.assert_close(first[0]["loss_vfl"], second[0]["loss_vfl"])
    alone = called(use_ranking(built(rt_detr_v2))).loss_dict
    torch.testing.assert_close(first[0]["loss_vfl_dn_1"], alone["loss_vfl_dn_1"])
    assert first[0]["loss_vfl"].item() != pytest.approx(alone["loss_vfl"].item(), rel=1e-3)


@pytest.mark.parametrize(
    ("loss", "message"),
    [(APELoss, r"pass APELoss\(\)"), ("APELoss", r"such as APELoss\(\), got 'APELoss'"), (0.5, "got 0.5")],
)
def test_what_is_not_a_loss_is_refused_at_once(loss: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        use_ranking(built(yolos), loss=loss)


@pytest.mark.parametrize(("name", "value"), [("weight", "2"), ("keep", -1.0), ("weight", math.inf)])
def test_factors_that_are_not_finite_numbers_are_refused_at_once(name: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name} must be"):
        use_ranking(built(yolos), **{name: value})
