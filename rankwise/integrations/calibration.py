"""Shifts the class biases of a model trained by ranking, so that its default threshold works."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert

from rankwise.evaluation import best_thresholds, detection_table, match, object_table

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class _Framework:
    """How to calibrate the models of a framework.

    Attributes:
        detect: All detections and the ground truth of each image of a batch from the loader.
        biases: The biases of its class scores.
        threshold: The default threshold of the framework.
        power: The reported score is the sigmoid of the class to this power.
    """

    detect: Callable[[Any], Iterator[tuple[Tensors, Tensors]]]
    biases: list[nn.Parameter]
    threshold: float
    power: float = 1.0


@torch.no_grad()
def calibrate(model: Any, loader: Iterable[Any], threshold: float | None = None) -> float:
    """Shifts all class scores of a model so that its default threshold has the best F1; returns the shift.

    A ranking loss decides which of two detections is better, not how likely each is. One constant is added to the
    biases of all classes. The order of the detections and AP do not change, and the detections above the threshold are
    those worth showing. Save the model afterwards: the shift is part of its weights.

    Args:
        model: A torchvision RetinaNet or FCOS, a detector of transformers with sigmoid scores, an ultralytics YOLO, or
            a model of rfdetr; trained with ``use_ranking``.
        loader: Batches of held-out images with their objects: for torchvision ``(images, targets)`` as for its
            training; for transformers dicts with ``pixel_values`` and ``labels``; for ultralytics and rfdetr ``(images,
            targets)`` with images as ``model.predict`` takes them, and targets with ``boxes`` in pixels, xyxy, and
            ``labels``.
        threshold: The threshold for showing detections; by default 0.25 for ultralytics and 0.5 for the others.

    Raises:
        TypeError: If the model is not supported.
        ValueError: If the model has softmax scores, or has no correct detection in these images.
    """
    framework = _framework(model)
    threshold = framework.threshold if threshold is None else threshold
    if not 0 < threshold < 1:
        raise ValueError(f"threshold must be between 0 and 1, got {threshold}")
    detections: dict[int, Tensors] = {}
    annotations: list[dict[str, Any]] = []
    labels = 0
    for found, truth in (pair for batch in loader for pair in framework.detect(batch)):
        number = len(detections)
        detections[number] = {name: found[name].cpu() for name in ("boxes", "scores", "labels")}
        boxes = box_convert(truth["boxes"].cpu(), "xyxy", "xywh").tolist()
        for box, label in zip(boxes, truth["labels"].tolist(), strict=True):
            labels = max(labels, label + 1)
            annotations.append({"image_id": number, "category_id": label, "bbox": box})
    if not annotations:
        raise ValueError("no image of the loader has objects, so a threshold cannot be chosen")
    ground_truth = {"images": [{"id": number} for number in detections], "annotations": annotations}
    matches = match(detection_table(detections), object_table(ground_truth, list(range(labels))))
    best = best_thresholds(matches, [str(label) for label in range(labels)]).overall
    if not best.f1:
        raise ValueError("the model has no correct detection in these images at any threshold; train it first")
    shift = _logit(threshold ** (1 / framework.power)) - _logit(best.score ** (1 / framework.power))
    for bias in framework.biases:
        bias.add_(shift)
    return shift


def _logit(score: float) -> float:
    score = min(max(score, 1e-12), 1 - 1e-7)
    return math.log(score / (1 - score))


def _framework(model: Any) -> _Framework:
    package = type(model).__module__.partition(".")[0]
    frameworks = {
        "torchvision": _torchvision,
        "transformers": _transformers,
        "ultralytics": _ultralytics,
        "rfdetr": _rfdetr,
    }
    if package not in frameworks:
        raise TypeError(
            f"calibrate supports detectors of {', '.join(frameworks)}, not {type(model).__name__}; for a run of "
            f"rankwise train, use the command rankwise eval"
        )
    return frameworks[package](model)


def _torchvision(model: Any) -> _Framework:
    from torchvision.models.detection import FCOS, RetinaNet

    if not isinstance(model, RetinaNet | FCOS):
        raise ValueError(f"{type(model).__name__} has softmax scores, which a constant does not shift equally")
    if isinstance(model, FCOS) and bool(model.head.regression_head.bbox_ctrness.weight.any()):
        raise ValueError("this FCOS multiplies its scores by centerness; train it with use_ranking, which removes it")

    def detect(batch: Any) -> Iterator[tuple[Tensors, Tensors]]:
        kept, training = model.score_thresh, model.training
        model.eval().score_thresh = 0.0
        try:
            device = next(model.parameters()).device
            yield from zip(model([image.to(device) for image in batch[0]]), batch[1], strict=True)
        finally:
            model.train(training).score_thresh = kept

    biases = [model.head.classification_head.cls_logits.bias]
    return _Framework(detect, biases, 0.5, 0.5 if isinstance(model, FCOS) else 1.0)


def _transformers(model: Any) -> _Framework:
    names = {"class_embed", "class_labels_classifier"}
    heads = [module for name, module in model.named_modules() if names & {*name.split(".")}]
    layers = [layer for head in heads for layer in head.modules() if isinstance(layer, nn.Linear)]
    biases = list(
        {id(layer.bias): layer.bias for layer in layers if layer.out_features == model.config.num_labels}.values()
    )
    if not biases:
        raise ValueError(f"{type(model).__name__} has no sigmoid scores of fixed classes to shift")

    def detect(batch: Any) -> Iterator[tuple[Tensors, Tensors]]:
        training = model.training
        model.eval()
        outputs = model(pixel_values=batch["pixel_values"].to(model.device))
        model.train(training)
        classes = outputs.logits.shape[-1]
        flat = outputs.logits.sigmoid().flatten(1)
        scores, where = flat.topk(min(100, flat.shape[1]))
        boxes = box_convert(outputs.pred_boxes, "cxcywh", "xyxy")
        for image, truth in enumerate(batch["labels"]):
            found = {"boxes": boxes[image][where[image] // classes], "scores": scores[image]}
            objects = {"boxes": box_convert(truth["boxes"], "cxcywh", "xyxy"), "labels": truth["class_labels"]}
            yield found | {"labels": where[image] % classes}, objects

    return _Framework(detect, biases, 0.5)


def _ultralytics(model: Any) -> _Framework:
    head = model.model.model[-1]
    branches = [getattr(head, name, None) for name in ("cv3", "one2one_cv3")]
    biases = [level[-1].bias for branch in branches if branch is not None for level in branch]

    def detect(batch: Any) -> Iterator[tuple[Tensors, Tensors]]:
        for image, truth in zip(*batch, strict=True):
            found = model.predict(image, conf=1e-9, verbose=False, max_det=100)[0]
            boxes = found.boxes if found.obb is None else found.obb  # of oriented boxes, the upright ones around them
            yield {"boxes": boxes.xyxy, "scores": boxes.conf, "labels": boxes.cls.long()}, truth
        model.predictor = None  # it keeps a copy of the weights

    return _Framework(detect, biases, 0.25)


def _rfdetr(model: Any) -> _Framework:
    def detect(batch: Any) -> Iterator[tuple[Tensors, Tensors]]:
        for image, truth in zip(*batch, strict=True):
            found = model.predict(image, threshold=0.0)
            parts = {"boxes": found.xyxy, "scores": found.confidence, "labels": found.class_id}
            yield {name: torch.as_tensor(part) for name, part in parts.items()}, truth

    return _Framework(detect, [model.model.model.class_embed.bias], 0.5)
