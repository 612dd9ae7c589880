"""Compares post-processing on an emulated GPU with a CPU; run by test_models_postprocess.py."""

from __future__ import annotations

import torch
from gpu_counting import CountGPUWork, on_gpu, on_host
from test_models_postprocess import ORIGINALS, SIZES, VARIANTS, scene

from rankwise.models.postprocess import postprocess
from rankwise.types import Predictions

if __name__ == "__main__":
    for name in ("voting", "few an image", "across classes", "high threshold"):
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
        print(name, work.launches, "launches", work.syncs.total(), "syncs", sum(len(one["scores"]) for one in found))
