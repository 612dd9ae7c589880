"""A multi-label classifier with a long tail: PE loss beside binary cross entropy, in seconds.

Run: python examples/multi_label.py [--steps 400]
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rankwise.losses import PELoss

CLASSES, FEATURES = 20, 32


def draw(images: int, seed: int) -> tuple[Tensor, Tensor]:
    """Features and labels: the first classes are in every third image, the last in one of a hundred."""
    rule = torch.Generator().manual_seed(0)
    directions = torch.randn(FEATURES, CLASSES, generator=rule)
    shares = torch.logspace(-0.5, -2, CLASSES)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(images, FEATURES, generator=generator)
    scores = features @ directions / FEATURES**0.5 + 0.7 * torch.randn(images, CLASSES, generator=generator)
    return features, (scores > scores.quantile(1 - shares, dim=0).diagonal()).float()


def average_precision(scores: Tensor, labels: Tensor) -> Tensor:
    """Of each class, [C]."""
    hits = labels.gather(0, scores.argsort(0, descending=True))
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)[:, None]
    return (precision * hits).sum(0) / hits.sum(0)


def main(steps: int) -> None:
    features, labels = draw(2000, seed=1)
    others, truth = draw(5000, seed=2)
    ranking = PELoss()
    for name, loss in {"cross entropy": F.binary_cross_entropy_with_logits, "PE loss": ranking.dense}.items():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
        for _ in range(steps):
            picked = torch.randint(len(features), (128,))
            optimizer.zero_grad()
            loss(model(features[picked]), labels[picked]).backward()
            optimizer.step()
        with torch.no_grad():
            found = 100 * average_precision(model(others), truth)
        print(
            f"{name}: mAP {found.mean():.1f}, frequent half {found[:10].mean():.1f}, rare half {found[10:].mean():.1f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="training steps of 128 images")
    main(**vars(parser.parse_args()))
