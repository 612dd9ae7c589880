"""The moving average of the weights is that of timm, computed faster."""

import torch
from timm.utils.model_ema import ModelEmaV3

from rankwise.models import Detector, DetectorSettings
from rankwise.training.average import MovingAverage

SETTINGS = DetectorSettings.from_dict(
    {"backbone": {"name": "resnet10t"}, "neck": {"channels": 8, "norm": "bn"}, "head": {"channels": 8, "norm": "bn"}}
)


def test_weights_and_statistics_are_averaged_as_by_timm():
    detector = Detector(SETTINGS, ["a"])
    average, expected = MovingAverage(detector, 0.9), ModelEmaV3(detector, decay=0.9, use_warmup=True)
    for step in range(40):  # the decay rises to 0.9 within the first 32
        with torch.no_grad():
            for tensor in detector.state_dict().values():
                tensor.add_(torch.randint_like(tensor, 5))
        average.update(step)
        expected.update(detector, step=step)
    assert not torch.equal(average.module.head.class_output.weight, detector.head.class_output.weight)
    for name, value in average.module.state_dict().items():
        assert torch.equal(value, expected.module.state_dict()[name]), name


def test_the_average_of_a_restored_run_is_updated_too():
    detector = Detector(SETTINGS, ["a"])
    average = MovingAverage(detector, 0.9)
    saved = {name: value + 1 for name, value in average.module.state_dict().items()}
    average.module.load_state_dict(saved)
    average.update(step=1000)
    weight = "head.class_output.weight"
    torch.testing.assert_close(average.module.state_dict()[weight], saved[weight] - 0.1)
