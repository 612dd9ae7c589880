"""RF-DETR of the package rfdetr, trained by ranking with its own trainer.

Its training extra pins another version of hotcoco than ours, so it has an environment of its own: `make test-rfdetr`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_images import SIZE, draw, write_coco
from PIL.Image import Image
from torch import Tensor
from torchvision.ops import box_iou

import rankwise
from rankwise.losses import APELoss, IABCELoss, Loss, PositionSupervisedLoss

rfdetr = pytest.importorskip("rfdetr", reason="rfdetr is not installed: make test-rfdetr")
pytest.importorskip("pytorch_lightning", reason="rfdetr[train] is not installed: make test-rfdetr")

from rankwise.integrations.rfdetr import use_ranking  # noqa: E402


def model() -> Any:
    torch.manual_seed(0)
    small = {"resolution": SIZE, "positional_encoding_size": SIZE // 16, "num_classes": 2, "group_detr": 2}
    return rfdetr.RFDETRNano(pretrain_weights=None, num_queries=20, num_select=20, device="cpu", **small)


def test_groups_and_layers_rank_each_by_itself(tmp_path: Path) -> None:
    from rfdetr.config import TrainConfig
    from rfdetr.training import RFDETRModelModule

    module = RFDETRModelModule(model().model_config, TrainConfig(dataset_dir=str(tmp_path), tensorboard=False))
    torch.manual_seed(0)
    targets = [{"labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.4, 0.4]])}]
    layer = {"pred_logits": torch.randn(1, 40, 3), "pred_boxes": torch.rand(1, 40, 4) * 0.4 + 0.3}
    outputs = {**layer, "aux_outputs": [dict(layer)], "enc_outputs": dict(layer)}
    own = module.criterion(outputs, targets)
    losses = use_ranking(module, APELoss()).criterion(outputs, targets)
    ranked = [name for name in losses if name.startswith("loss_ce")]
    assert ranked == ["loss_ce", "loss_ce_0", "loss_ce_enc"]
    assert all(losses[name] == own[name] for name in losses if not name.startswith("loss_ce"))
    match = module.criterion.matcher(layer, targets, group_detr=2)[0][0].tolist()
    expected = []
    for group, query in enumerate(match):
        labels, quality = torch.full((20,), 3), torch.zeros(20)
        x, y, w, h = layer["pred_boxes"][0, query]
        box = torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2])[None]
        labels[query - 20 * group] = 1
        quality[query - 20 * group] = box_iou(box, torch.tensor([[0.3, 0.3, 0.7, 0.7]])).item()
        expected.append(APELoss()(layer["pred_logits"][0, 20 * group : 20 * group + 20], labels, quality))
    torch.testing.assert_close(losses["loss_ce"], sum(expected) / 2)


@pytest.mark.parametrize(
    ("switch", "loss"), [("ia_bce_loss", IABCELoss()), ("use_position_supervised_loss", PositionSupervisedLoss())]
)
def test_its_own_classification_losses_are_those_of_rankwise(switch: str, loss: Loss, tmp_path: Path) -> None:
    from rfdetr.config import TrainConfig
    from rfdetr.training import RFDETRModelModule

    module = RFDETRModelModule(model().model_config, TrainConfig(dataset_dir=str(tmp_path), tensorboard=False))
    criterion = module.criterion.eval()
    criterion.ia_bce_loss, criterion.use_position_supervised_loss = False, False
    setattr(criterion, switch, True)
    torch.manual_seed(0)
    boxes = torch.rand(2, 3, 4) * 0.3 + 0.3
    targets = [{"labels": torch.tensor([1, 0, 1]), "boxes": objects} for objects in boxes]
    moved = boxes.repeat(1, 4, 1) + 0.1 * torch.rand(2, 12, 4)
    outputs = {"pred_logits": torch.randn(2, 12, criterion.num_classes), "pred_boxes": moved}
    own = criterion(outputs, targets)["loss_ce"]
    torch.testing.assert_close(use_ranking(criterion, loss)(outputs, targets)["loss_ce"], own, rtol=1e-5, atol=1e-6)


def best_two(trained: Any, image: Image) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes, classes and scores of the two best detections."""
    found = trained.predict(image, threshold=0.0)
    best = torch.as_tensor(found.confidence).argsort(descending=True)[:2]
    boxes, kinds, scores = (torch.as_tensor(part)[best] for part in (found.xyxy, found.class_id, found.confidence))
    return boxes, kinds, scores


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_learns_eight_images_by_its_own_trainer(tmp_path: Path) -> None:
    trained = use_ranking(model(), APELoss())
    quiet = {"use_ema": False, "multi_scale": False, "expanded_scales": False, "tensorboard": False, "num_workers": 0}
    still = {"aug_config": {}, "scale_jitter": False}  # no augmentation: what is shown is what is learnt by heart
    # Random weights: all layers learn alike.
    rates = {"lr": 3e-4, "lr_encoder": 3e-4, "lr_vit_layer_decay": 1.0, "lr_component_decay": 1.0, "warmup_epochs": 0.5}
    folders = {"dataset_dir": str(write_coco(tmp_path / "data", repeats=60)), "output_dir": str(tmp_path / "out")}
    size = {"epochs": 2, "batch_size": 8, "grad_accum_steps": 1, "device": "cpu"}
    trained.train(progress_bar=None, run_test=False, **size, **quiet, **still, **rates, **folders)
    right, truth = 0, []
    for image, objects in draw():
        boxes, kinds, _ = best_two(trained, image)
        objects_boxes = torch.tensor([[x, y, x + width, y + height] for _, (x, y, width, height) in objects]).float()
        truth.append({"boxes": objects_boxes, "labels": torch.tensor([kind for kind, _ in objects])})
        same = truth[-1]["labels"][:, None] == kinds
        right += int(((box_iou(objects_boxes, boxes.float()) > 0.5) & same).any(1).sum())
    assert right >= 14  # of 16 objects, among the two best detections of each image
    rankwise.calibrate(trained, [([image for image, _ in draw()], truth)])
    shown = sum(int((best_two(trained, image)[2] >= 0.5).sum()) for image, _ in draw())
    assert shown >= 12  # of 16 objects, at the default threshold
