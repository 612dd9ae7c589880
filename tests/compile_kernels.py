"""Compiles what most tests call, once, before several processes would do so at the same time."""

import torch

from rankwise.assign import ATSS, PAA
from rankwise.losses import APELoss, APLoss, RankSortLoss
from rankwise.types import Predictions

if __name__ == "__main__":
    torch.set_num_threads(1)
    for loss in (APELoss(), APLoss(), RankSortLoss()):
        for dtype, samples in ((torch.float32, 300), (torch.float64, 300), (torch.float32, 20_000)):
            logits = torch.rand(samples, 4, dtype=dtype, requires_grad=True)
            loss(logits, torch.arange(samples) % 5, torch.rand(samples)).backward()
    boxes = torch.rand(500, 4) + torch.tensor([0.0, 0.0, 1.0, 1.0])
    for assigner in (ATSS(), PAA()):
        predictions = Predictions(torch.rand(1, 500, 2), boxes[None], boxes, (500,))
        assigner(predictions, [{"boxes": boxes[:9], "labels": torch.zeros(9, dtype=torch.int64)}])
