"""A compiled detector trains as one that is not."""

import pytest
import torch

from rankwise.assign import ATSS
from rankwise.criterion import Criterion
from rankwise.losses import APELoss, FocalLoss, RankSortLoss
from rankwise.models import Detector
from rankwise.models.settings import BackboneSettings, DetectorSettings, HeadSettings, InputSettings, NeckSettings
from rankwise.training.step import PlainForward
from rankwise.types import Predictions


@pytest.mark.parametrize("loss", [APELoss, RankSortLoss, FocalLoss])
def test_a_compiled_step_gives_the_gradients_of_a_plain_one(loss):
    torch.manual_seed(0)
    settings = DetectorSettings(
        input=InputSettings(64, 64),
        backbone=BackboneSettings("resnet10t", args={"channels": [8, 8, 8, 8], "stem_width": 8}),
        neck=NeckSettings(8, extra_levels=0),
        head=HeadSettings(8, depth=1),
    )
    model = PlainForward(Detector(settings, ["a", "b"])).eval()
    criterion = Criterion(loss(), ATSS())
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8)
    target = {"boxes": torch.tensor([[5.0, 8.0, 40.0, 50.0]]), "labels": torch.tensor([1])}

    def gradients(forward) -> dict[str, torch.Tensor]:
        def step(x: torch.Tensor) -> torch.Tensor:
            return criterion(Predictions(**forward(x)), [target, target]).total

        model.zero_grad()
        step(images).backward()
        return {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}

    plain = gradients(model)
    torch.testing.assert_close(gradients(torch.compile(model, backend="eager")), plain)
    assert any(value.any() for value in plain.values())
