"""A torchvision RetinaNet trained by ranking on the built-in dataset, in a few minutes on two cores.

Run: python examples/torchvision_retinanet.py [--steps 400]
"""

import argparse
from functools import partial

import torch
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.models.detection import RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.retinanet import RetinaNetHead

from rankwise.assign import ATSS
from rankwise.data import ShapesDataset
from rankwise.evaluation import Evaluation, evaluate
from rankwise.integrations.torchvision import use_ranking
from rankwise.losses import APELoss


def build(classes: int, size: int, channels: int = 64) -> RetinaNet:
    """A RetinaNet as its users build it, on ResNet-18 and narrow, with random weights."""
    layers = {"layer2": "0", "layer3": "1", "layer4": "2"}
    backbone = BackboneWithFPN(resnet18(weights=None), layers, [128, 256, 512], channels)
    anchors = AnchorGenerator(((24,), (48,), (72,), (96,)), ((0.5, 1.0, 2.0),) * 4)
    head = RetinaNetHead(channels, 3, classes, norm_layer=partial(nn.GroupNorm, 16))
    return RetinaNet(backbone, classes, anchor_generator=anchors, head=head, min_size=size, max_size=size)


@torch.no_grad()
def measure(model: RetinaNet, dataset: ShapesDataset) -> Evaluation:
    """COCO's numbers of the model's own detections."""
    model.eval()
    detections: dict[int, dict[str, Tensor]] = {}
    for image, target in dataset:
        detections[target["image_id"]] = model([image / 255])[0]
    return evaluate(dataset.ground_truth(), detections, dataset.category_ids, dataset.classes)


def main(steps: int, images: int, size: int = 128, batch: int = 16) -> None:
    torch.manual_seed(0)
    train, val = ShapesDataset("train", images=images, size=size), ShapesDataset("val", images=images // 8, size=size)
    model = build(len(train.classes), size)
    use_ranking(model, loss=APELoss(), assigner=ATSS())  # the one line that makes it train by ranking
    print(f"before: AP {measure(model, val).ap:.1f}")

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=steps, pct_start=0.2)
    model.train()
    for step in range(steps):
        picked = [train[index] for index in torch.randint(len(train), (batch,)).tolist()]
        losses = model([image / 255 for image, _ in picked], [target for _, target in picked])
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(
                f"step {step}: " + ", ".join(f"{name} {loss.item():.3f}" for name, loss in losses.items()), flush=True
            )

    result = measure(model, val)
    print(f"after: AP {result.ap:.1f}, AP50 {result.ap50:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="training steps of 16 images")
    parser.add_argument("--images", type=int, default=1600, help="images to draw for training")
    main(**vars(parser.parse_args()))
