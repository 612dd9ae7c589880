"""Loads the compiled functions of a step once, for all processes forked from the one that imports this."""

import torch

from rankwise.assign import ATSS
from rankwise.losses import APELoss
from rankwise.types import Predictions

torch.set_num_threads(1)
_anchors = torch.rand(20, 4) + torch.tensor([0.0, 0.0, 1.0, 1.0])
_logits = torch.rand(1, 20, 2, requires_grad=True)
_predictions = Predictions(_logits.detach(), _anchors[None], _anchors, (20,))
_labels = ATSS()(_predictions, [{"boxes": _anchors[:1], "labels": torch.zeros(1, dtype=torch.int64)}]).labels
_labels[0, 0] = 0
APELoss()(_logits[0], _labels[0], torch.rand(20)).backward()
