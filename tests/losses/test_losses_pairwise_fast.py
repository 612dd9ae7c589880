"""Fast pairwise error against every pair, on generated scenes and for every combination of options."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pairwise_scenes import Scene, make_scene

from rankwise.losses import (
    AdaptivePairs,
    PairwiseError,
    PositiveVsNegative,
    Rank,
    Sigmoid,
    SigmoidCrossEntropy,
    Step,
    ValidNegatives,
)
from rankwise.pairsums.engines.torch import direct, many, sigmoid, step

DTYPES = [torch.float32, torch.float64]

scenes = st.builds(
    make_scene,
    rows=st.integers(1, 80),
    classes=st.integers(1, 3),
    positives=st.integers(1, 50),
    spread=st.sampled_from([0.0, 1e-3, 0.3, 1.0, 4.0, 60.0, 4000.0]),
    gap=st.sampled_from([-2.0, 0.0, 1.0, 3.0]),
    ignored=st.integers(0, 10),
    ties=st.booleans(),
    images=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
distances = st.sampled_from(
    [
        Step(),
        Step(0.04),
        Step(30.0),
        Sigmoid(),
        Sigmoid(0.6, cut=4.0),
        SigmoidCrossEntropy(),
        SigmoidCrossEntropy(3.0),
        SigmoidCrossEntropy(cut=4.0),
        SigmoidCrossEntropy(1.3, cut=0.5),
    ]
)
options = st.fixed_dictionaries(
    {
        "distance": distances,
        "balance": st.sampled_from([Rank(), Rank(own=1.0), ValidNegatives(), ValidNegatives(0.0), ValidNegatives(2.5)]),
        "pairs": st.sampled_from([PositiveVsNegative(), AdaptivePairs()]),
        "weight_by_quality": st.booleans(),
        "interpolated": st.booleans(),
        "max_negatives": st.sampled_from([None, None, 1, 7]),
        "scope": st.sampled_from(["batch", "image", "class"]),
    }
)


def possible(options: dict) -> dict:
    """The options, without interpolation where there is no precision to interpolate."""
    precision = (
        not isinstance(options["distance"], SigmoidCrossEntropy)
        and isinstance(options["balance"], Rank)
        and isinstance(options["pairs"], PositiveVsNegative)
    )
    return options | {"interpolated": options["interpolated"] and precision}


def compare(scene: Scene, options: dict, dtype: torch.dtype, method: str) -> None:
    """A fast engine in this precision against dense in float64, as near as is promised: each sample by itself."""
    value, gradient = scene.run(PairwiseError(**options, method=method), dtype)
    expected, wanted = scene.run(PairwiseError(**options, method="dense"))
    loss_tolerance, gradient_tolerance, least = (1e-6, 1e-5, 1e-36) if dtype == torch.float32 else (1e-9, 1e-8, 1e-290)
    assert value.dtype == dtype
    assert abs(value.double() - expected) <= loss_tolerance * expected + least
    allowed = (gradient_tolerance * wanted.abs()).clamp(min=1e-9 * float(wanted.abs().max()) + least)
    assert ((gradient.double() - wanted).abs() <= allowed).all()


@pytest.mark.parametrize("method", ["fast", "torch"])
@pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])
@settings(max_examples=120, deadline=None, derandomize=True)
@given(scene=scenes, options=options.map(possible))
def test_fast_is_dense_for_every_combination_of_options(dtype, method, scene, options):
    compare(scene, options, dtype, method)


@settings(max_examples=100, deadline=None, derandomize=True)
@pytest.mark.parametrize("entries", [0, 1 << 21])
@given(scene=scenes, options=options.map(possible), block=st.integers(1, 20), dtype=st.sampled_from(DTYPES))
def test_torch_is_dense_with_tables_among_the_positives(scene, options, block, dtype, entries):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "MAX_ENTRIES", 0)
        patch.setattr(many, "MAX_ENTRIES", entries)
        patch.setattr(many, "MIN_BLOCK", block)
        patch.setattr(many, "POINTS_PER_POSITIVE", 1 << 20)
        patch.setattr(sigmoid, "MAX_PAIRWISE", 0)
        patch.setattr(sigmoid, "POSITIVES_PER_BLOCK", block)
        patch.setattr(sigmoid, "MAX_ENTRIES", 1 << 14)
        patch.setattr(step, "MAX_PAIRWISE", 0)
        patch.setattr(step, "MAX_PAIRWISE_ON_CPU", 0)
        compare(scene, options, dtype, "torch")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(scene=scenes, options=options.map(possible))
def test_gradients_sum_to_zero_and_only_positives_are_raised(scene, options):
    _, gradient = scene.run(PairwiseError(**options))
    assert abs(gradient.sum()) <= 1e-9 * gradient.abs().sum()
    kept = (scene.labels >= 0)[:, None]
    positive = scene.labels[:, None] == torch.arange(scene.logits.shape[1])
    assert (gradient[kept & ~positive] >= -1e-12).all()
    assert not gradient[~kept.expand_as(gradient)].any()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(scene=scenes.filter(lambda scene: scene.logits.abs().max() < 100), options=options.map(possible))
def test_a_common_shift_of_all_logits_changes_nothing(scene, options):
    value, gradient = scene.run(PairwiseError(**options))
    moved = Scene(scene.logits.double() + 0.75, scene.labels, scene.quality, scene.image)
    other, other_gradient = moved.run(PairwiseError(**options))
    torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-290)
    assert (other_gradient - gradient).norm() <= 1e-8 * gradient.norm() + 1e-290


@settings(max_examples=40, deadline=None, derandomize=True)
@given(scene=scenes, options=options.map(possible), seed=st.integers(0, 100))
def test_the_order_of_the_samples_changes_nothing(scene, options, seed):
    if options["max_negatives"] and scene.logits.unique().numel() < scene.logits.numel():
        return  # of equal negatives at the end of the row any may be taken
    order = torch.randperm(len(scene.labels), generator=torch.Generator().manual_seed(seed))
    mixed = Scene(scene.logits[order], scene.labels[order], scene.quality[order], scene.image[order])
    value, gradient = scene.run(PairwiseError(**options))
    other, other_gradient = mixed.run(PairwiseError(**options))
    torch.testing.assert_close(other, value, rtol=1e-9, atol=1e-290)
    assert (other_gradient - gradient[order]).norm() <= 1e-8 * gradient.norm() + 1e-290
