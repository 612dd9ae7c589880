"""An RT-DETR v2 of Hugging Face transformers trained by ranking on the built-in dataset, in a few minutes on two cores.

Run: pip install transformers; python examples/transformers_rtdetr.py [--steps 600]
"""

import argparse

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert
from transformers import RTDetrImageProcessor, RTDetrResNetConfig, RTDetrV2Config, RTDetrV2ForObjectDetection

from rankwise.data import ShapesDataset
from rankwise.evaluation import Evaluation, evaluate
from rankwise.integrations.transformers import use_ranking
from rankwise.losses import APELoss


def build(classes: int, width: int = 32, queries: int = 50) -> RTDetrV2ForObjectDetection:
    """An RT-DETR v2 from a config, narrow, with random weights: nothing is fetched."""
    backbone = RTDetrResNetConfig(
        embedding_size=width,
        hidden_sizes=[width, 2 * width, 4 * width, 8 * width],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = RTDetrV2Config(
        backbone_config=backbone,
        freeze_backbone_batch_norms=False,  # frozen statistics only suit pretrained weights
        encoder_in_channels=[2 * width, 4 * width, 8 * width],
        encoder_hidden_dim=4 * width,
        encoder_ffn_dim=8 * width,
        decoder_in_channels=[4 * width] * 3,
        d_model=4 * width,
        decoder_ffn_dim=8 * width,
        decoder_layers=2,
        num_queries=queries,
        num_denoising=queries,
        num_labels=classes,
    )
    return RTDetrV2ForObjectDetection(config)


def label(target: dict[str, Tensor], size: int) -> dict[str, Tensor]:
    """A target as transformers wants it: centre, width and height as shares of the image."""
    return {"class_labels": target["labels"], "boxes": box_convert(target["boxes"], "xyxy", "cxcywh") / size}


@torch.no_grad()
def measure(model: RTDetrV2ForObjectDetection, dataset: ShapesDataset) -> Evaluation:
    """COCO's numbers of the detections that transformers' own post-processing makes."""
    processor = RTDetrImageProcessor()
    model.eval()
    detections: dict[int, dict[str, Tensor]] = {}
    for image, target in dataset:
        outputs = model(pixel_values=image[None] / 255)
        sizes = [(dataset.size, dataset.size)]
        # A ranking orders detections and leaves their scores where they are: no threshold.
        found = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)[0]
        detections[target["image_id"]] = found
    return evaluate(dataset.ground_truth(), detections, dataset.category_ids, dataset.classes)


def main(steps: int, images: int, size: int = 128, batch: int = 16) -> None:
    torch.manual_seed(0)
    train, val = ShapesDataset("train", images=images, size=size), ShapesDataset("val", images=images // 8, size=size)
    model = build(len(train.classes))
    use_ranking(model, loss=APELoss(scope="batch"))  # the one line that makes it train by ranking
    print(f"before: AP {measure(model, val).ap:.1f}")

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps, pct_start=0.1)
    model.train()
    for step in range(steps):
        picked = [train[index] for index in torch.randint(len(train), (batch,)).tolist()]
        pixels = torch.stack([image for image, _ in picked]) / 255
        outputs = model(pixel_values=pixels, labels=[label(target, size) for _, target in picked])
        optimizer.zero_grad()
        outputs.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            parts = {"ranking": "loss_vfl", "box": "loss_bbox", "giou": "loss_giou"}
            shown = ", ".join(f"{name} {outputs.loss_dict[part].item():.3f}" for name, part in parts.items())
            print(f"step {step}: loss {outputs.loss.item():.2f}, last layer's {shown}", flush=True)

    result = measure(model, val)
    print(f"after: AP {result.ap:.1f}, AP50 {result.ap50:.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600, help="training steps of 16 images")
    parser.add_argument("--images", type=int, default=1600, help="images to draw for training")
    main(**vars(parser.parse_args()))
