"""Post-processing on an emulated GPU: the same detections as on a CPU, with few launches and three host syncs."""

from __future__ import annotations

import pytest
import torch
from gpu_counting import CountGPUWork, on_gpu, on_host
from test_models_postprocess import ORIGINALS, SIZES, VARIANTS, scene

from rankwise.models.postprocess import postprocess
from rankwise.types import Predictions


@pytest.mark.parametrize("name", ["voting", "few an image", "across classes", "high threshold"])
def test_gpu_post_processing_equals_cpu_with_few_launches_and_three_syncs(name: str) -> None:
    predictions = scene(1)
    expected = postprocess(predictions, SIZES, ORIGINALS, VARIANTS[name])
    with CountGPUWork() as work:
        tensors = map(on_gpu, (predictions.logits, predictions.boxes, predictions.anchors))
        found = postprocess(Predictions(*tensors, predictions.level_sizes), SIZES, ORIGINALS, VARIANTS[name])
    for one, other in zip(found, expected, strict=True):
        for key, value in other.items():
            torch.testing.assert_close(on_host(one[key]), value, rtol=1e-5, atol=1e-4)
    assert work.syncs.total() <= 3, work.report()
    assert work.launches <= 80, work.report()
