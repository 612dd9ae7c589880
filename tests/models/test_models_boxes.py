"""Box coders: round trips, gradients, and finite values for extreme input."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankwise.models.box_coding import BoxCoder, DeltaCoder, DistanceCoder, IntegralCoder, box_coder, distances
from rankwise.models.settings import HeadSettings

CODERS: list[BoxCoder] = [DeltaCoder(), DeltaCoder((1.0, 1.0, 1.0, 1.0)), DistanceCoder(), IntegralCoder(16)]


def scene(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes that hold the centre of their anchor, anchors and strides."""
    random = torch.Generator().manual_seed(0)
    strides = 2.0 ** torch.randint(3, 8, (500,), generator=random)
    centres = torch.rand(500, 2, generator=random, dtype=torch.float64) * 1000
    half = strides[:, None] * (2 + 4 * torch.rand(500, 2, generator=random))
    away = strides[:, None] * (0.1 + 15.8 * torch.rand(500, 4, generator=random))
    anchors = torch.cat([centres - half, centres + half], dim=1)
    boxes = torch.cat([centres - away[:, :2], centres + away[:, 2:]], dim=1)
    return boxes.to(dtype), anchors.to(dtype), strides.to(dtype)


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-4), (torch.float32, 0.01)])
def test_decode_inverts_encode(coder: BoxCoder, dtype: torch.dtype, tolerance: float) -> None:
    boxes, anchors, strides = scene(dtype)
    codes = coder.encode(boxes, anchors, strides)
    assert codes.shape == (500, coder.size)
    torch.testing.assert_close(coder.decode(codes, anchors, strides), boxes, atol=tolerance, rtol=0)


@pytest.mark.parametrize("coder", CODERS)
def test_gradients_flow_through_decode(coder: BoxCoder) -> None:
    _, anchors, strides = (value[:5] for value in scene())
    codes = torch.randn(2, 5, coder.size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradcheck(lambda value: coder.decode(value, anchors, strides), codes.requires_grad_())


@pytest.mark.parametrize("coder", CODERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_boxes_and_gradients_are_finite_for_extreme_codes(coder: BoxCoder, dtype: torch.dtype) -> None:
    _, anchors, strides = (value[:3] for value in scene(torch.float32))
    codes = torch.tensor([-6e4, 0.0, 6e4])[:, None].expand(3, coder.size).to(dtype).requires_grad_()
    boxes = coder.decode(codes, anchors, strides)
    assert boxes.dtype == torch.float32
    assert boxes.isfinite().all()
    boxes.sum().backward()
    assert codes.grad is not None
    assert codes.grad.isfinite().all()


def test_delta_codes_match_their_definition() -> None:
    anchors, boxes = torch.tensor([[0.0, 0.0, 10.0, 20.0]]), torch.tensor([[5.0, 5.0, 25.0, 45.0]])
    codes = DeltaCoder((0.1, 0.1, 0.2, 0.2)).encode(boxes, anchors, torch.tensor([8.0]))
    log2 = torch.tensor(2.0).log().item()
    torch.testing.assert_close(codes, torch.tensor([[10.0, 7.5, log2 / 0.2, log2 / 0.2]]))


def test_distances_are_from_the_center_in_strides() -> None:
    anchors, boxes = torch.tensor([[0.0, 0.0, 16.0, 16.0]]), torch.tensor([[4.0, 10.0, 24.0, 40.0]])
    torch.testing.assert_close(distances(boxes, anchors, torch.tensor([8.0])), torch.tensor([[0.5, -0.25, 2.0, 4.0]]))


def test_a_distribution_decodes_to_its_mean() -> None:
    coder = IntegralCoder(4)
    codes = torch.tensor([0.1, 0.2, 0.3, 0.2, 0.2]).log().repeat(4)[None]
    box = coder.decode(codes, torch.tensor([[0.0, 0.0, 8.0, 8.0]]), torch.tensor([8.0]))
    mean = (0.2 + 0.6 + 0.6 + 0.8) * 8
    torch.testing.assert_close(box, torch.tensor([[4 - mean, 4 - mean, 4 + mean, 4 + mean]]))


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (HeadSettings(), DeltaCoder),
        (HeadSettings(coding="ltrb"), DistanceCoder),
        (HeadSettings(coding="ltrb", bins=16), IntegralCoder),
    ],
)
def test_the_settings_choose_the_coder(settings: HeadSettings, kind: type) -> None:
    assert isinstance(box_coder(settings), kind)
