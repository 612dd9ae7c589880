"""One ranking loss in your own loop: a tiny dense detector in plain torch. Run: python examples/your_own_loop.py"""

import torch
from torch import Tensor, nn

from rankwise.data import ShapesDataset
from rankwise.losses import APELoss

size, stride, classes = 96, 8, 8
torch.manual_seed(0)
dataset = ShapesDataset("train", images=256, size=size)
shapes = [(3, 24, 2, 1), (24, 48, 2, 1), (48, 96, 2, 1), (96, 96, 1, 2), (96, 96, 1, 4)]  # in, out, stride, dilation
layers = [(nn.Conv2d(i, o, 3, s, d, d), nn.BatchNorm2d(o), nn.ReLU()) for i, o, s, d in shapes]
model = nn.Sequential(*sum(layers, ()), nn.Conv2d(96, classes + 4, 1))
optimizer, ranking = torch.optim.AdamW(model.parameters(), lr=2e-3), APELoss()
axis = torch.arange(stride / 2, size, stride)
points = torch.cartesian_prod(axis, axis).flip(1)  # [A, 2], x and y of each cell's centre


def iou(a: Tensor, b: Tensor) -> Tensor:
    shared = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    return shared / ((a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - shared)


for step in range(301):
    images, targets = zip(*(dataset[index] for index in torch.randint(len(dataset), (16,)).tolist()), strict=True)
    output = model(torch.stack(images) / 255).flatten(2).transpose(1, 2).flatten(0, 1)  # [B · A, C + 4]
    labels, truth = torch.full((len(output),), classes), torch.zeros(len(output), 4)
    for image, target in enumerate(targets):  # positive: a cell in the middle of an object
        for box, label in zip(target["boxes"], target["labels"], strict=True):
            inside = ((points - (box[:2] + box[2:]) / 2).abs() < (box[2:] - box[:2]) / 4).all(1)
            rows = inside.nonzero().squeeze(1) + image * len(points)
            labels[rows], truth[rows] = label, box
    centres, sides = points.repeat(len(images), 1), output[:, classes:].exp() * stride
    quality = iou(torch.cat([centres - sides[:, :2], centres + sides[:, 2:]], 1), truth)
    loss = ranking(output[:, :classes], labels, quality) + (1 - quality[labels < classes]).mean()
    optimizer.zero_grad(), loss.backward(), optimizer.step()
    if step % 50 == 0:
        print(f"step {step:3}  loss {loss.item():.3f}  mean IoU {quality[labels < classes].mean().item():.2f}")
