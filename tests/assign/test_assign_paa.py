"""PAA against a reference loop with scikit-learn, and special cases of single objects."""

from __future__ import annotations

from dataclasses import replace

import plain_paa
import pytest
import torch
from layouts import grid, layout
from torch import Tensor

from rankwise.assign import PAA
from rankwise.assign.objects import Objects
from rankwise.types import Predictions, Target

VARIANTS = [("scores", True), ("scores", False), ("ranking", True), ("localization", True), ("losses", False)]


@pytest.mark.parametrize(("clustering", "normalize"), VARIANTS)
def test_paa_equals_a_loop_over_objects_with_scikit_learn(clustering: str, normalize: bool) -> None:
    first = 40 * VARIANTS.index((clustering, normalize))  # other layouts for each variant
    for seed in range(first, first + 40):
        k = (9, 2)[seed % 2]
        predictions, targets = layout(seed)
        found = PAA(k, 0.1, clustering, normalize)(predictions, targets)
        expected = plain_paa.paa(predictions, targets, k, 0.1, clustering, normalize)
        assert torch.equal(found.matched, expected.matched), seed
        assert torch.equal(found.labels, expected.labels)
        assert int(found.unmatched) == int(expected.unmatched)


def row_of_anchors(shares: list[float], scores: list[float], overlaps: list[float]) -> Predictions:
    """Anchors that cover given shares of the object [0, 0, 10, 10], with given ranking scores and predicted IoUs."""
    anchors = torch.tensor([[0.0, 0.0, 10.0, 10.0 * share] for share in shares])
    boxes = torch.tensor([[[0.0, 0.0, 10.0, 10.0 * overlap] for overlap in overlaps]])
    return Predictions(torch.tensor(scores).logit().reshape(1, -1, 1), boxes, anchors, (len(shares),))


def objects(*boxes: list[float]) -> Target:
    return {"boxes": torch.tensor(boxes), "labels": torch.zeros(len(boxes), dtype=torch.int64)}


SQUARE = [0.0, 0.0, 10.0, 10.0]


def positives(found: Tensor, thing: int = 0) -> list[int]:
    return (found[0] == thing).nonzero().flatten().tolist()


def test_an_object_with_one_candidate_keeps_it() -> None:
    predictions = row_of_anchors([0.05, 0.09, 0.5], [0.9, 0.9, 0.1], [0.9, 0.9, 0.1])
    found = PAA()(predictions, [objects(SQUARE)])
    assert positives(found.matched) == [2]


def test_an_object_with_two_candidates_keeps_both() -> None:
    predictions = row_of_anchors([0.05, 0.2, 0.5], [0.9, 0.9, 0.1], [0.9, 0.9, 0.1])
    assert positives(PAA()(predictions, [objects(SQUARE)]).matched) == [1, 2]


def test_an_object_that_no_anchor_overlaps_enough_keeps_its_best_anchor() -> None:
    predictions = row_of_anchors([0.05, 0.09, 0.02], [0.9, 0.1, 0.9], [0.9, 0.1, 0.9])
    assert positives(PAA()(predictions, [objects(SQUARE)]).matched) == [1]


def test_the_better_cluster_is_positive_up_to_its_most_likely_member() -> None:
    scores = [0.9, 0.88, 0.86, 0.87, 0.1, 0.12, 0.08, 0.11]
    predictions = row_of_anchors([0.5] * 8, scores, scores)
    # The mean of the better four is 0.8775: the second best is nearest to it.
    assert positives(PAA()(predictions, [objects(SQUARE)]).matched) == [0, 1]


@pytest.mark.parametrize("clustering", ["scores", "ranking", "localization", "losses"])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_first_of_equal_candidates_is_positive(clustering: str, normalize: bool) -> None:
    predictions = row_of_anchors([0.5] * 7, [0.3] * 7, [0.4] * 7)
    found = PAA(clustering=clustering, normalize=normalize)(predictions, [objects(SQUARE)])
    assert positives(found.matched) == [0]
    assert int(found.unmatched) == 0


def test_an_object_whose_lower_cluster_is_empty_keeps_its_best_candidate() -> None:
    generator = torch.Generator().manual_seed(0)
    empty = 0
    for _ in range(40):
        scores = 0.01 + 1e-4 * torch.rand(20, generator=generator, dtype=torch.float64)
        predictions = row_of_anchors([0.5] * 20, scores.tolist(), [0.5] * 20)
        assigner = PAA(k=20, clustering="ranking", normalize=False)
        clusters = assigner.clusters(predictions, Objects.of([objects(SQUARE)], 1, predictions.logits.device))
        if not clusters.lower.any():
            empty += 1
            found = assigner(predictions, [objects(SQUARE)])
            assert positives(found.matched) == [int(predictions.logits.argmax())]
    assert empty > 5


def test_an_anchor_claimed_twice_goes_to_the_higher_iou() -> None:
    predictions = row_of_anchors([0.8], [0.5], [0.5])
    worse, better = [0.0, 0.0, 10.0, 16.0], SQUARE
    found = PAA()(predictions, [objects(worse, better)])
    assert found.matched.tolist() == [[1]]
    assert int(found.unmatched) == 1


def test_the_first_of_two_equal_objects_gets_the_anchor() -> None:
    found = PAA()(row_of_anchors([0.8], [0.5], [0.5]), [objects(SQUARE, SQUARE)])
    assert found.matched.tolist() == [[0]]
    assert int(found.unmatched) == 1


def test_an_object_gets_its_best_anchor_if_a_better_overlapping_object_does_not_claim_it() -> None:
    """The first anchor overlaps the big object best; that one has better predictions elsewhere and leaves it."""
    big, small = SQUARE, [0.0, 0.0, 10.0, 3.0]
    shares = [0.6, 0.9, 0.91, 0.92, 0.93, 0.94]
    scores = [0.01, 0.9, 0.9, 0.9, 0.9, 0.9]
    found = PAA()(row_of_anchors(shares, scores, scores), [objects(big, small)])
    assert positives(found.matched, 1) == [0]
    assert int(found.unmatched) == 0


def test_no_level_gives_an_object_more_than_k_positives() -> None:
    anchors, sizes = grid(64, (8, 16), (4.0,))
    generator = torch.Generator().manual_seed(0)
    most = [0, 0]
    for _ in range(20):
        logits = torch.randn(1, len(anchors), 1, generator=generator)
        predictions = Predictions(logits, anchors[None] + 1, anchors, sizes)
        for k, seen in ((3, None), (9, most)):
            found = PAA(k=k)(predictions, [objects([10.0, 10.0, 50.0, 50.0])])
            counts = [int((level >= 0).sum()) for level in found.matched[0].split(sizes)]
            assert max(counts) <= k
            if seen is not None:
                seen[:] = map(max, seen, counts)
    assert min(most) > 3  # so that a lower k limits both levels


def test_normalized_scores_do_not_depend_on_the_scale_of_ranking_scores() -> None:
    for seed in range(20):
        predictions, targets = layout(seed)
        smaller = replace(predictions, logits=(predictions.logits.double().sigmoid() / 16).logit())
        expected = PAA()(replace(predictions, logits=predictions.logits.double()), targets)
        assert torch.equal(PAA()(smaller, targets).matched, expected.matched)


def test_the_default_is_paa_star_of_the_paper() -> None:
    default = PAA()
    assert (default.k, default.candidate_iou, default.clustering, default.normalize) == (9, 0.1, "scores", True)
