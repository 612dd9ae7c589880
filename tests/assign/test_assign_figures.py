"""The data behind the PAA figures, and the figures themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from layouts import layout
from PIL import Image

from rankwise.assign import PAA
from rankwise.evaluation.figures import save_figure
from rankwise.evaluation.paa_figures import CandidateScores, candidate_scores, object_clusters, score_distributions


@pytest.fixture(scope="module")
def scores() -> CandidateScores:
    return candidate_scores(layout(seed) for seed in range(20))


def test_candidates_of_all_batches_are_kept_apart_by_object(scores: CandidateScores) -> None:
    one_by_one = [candidate_scores([layout(seed)]) for seed in range(20)]
    assert len(scores.object) == sum(len(one.object) for one in one_by_one)
    assert len(np.unique(scores.object)) == sum(len(np.unique(one.object)) for one in one_by_one)


def test_positives_in_the_figure_are_those_of_paa(scores: CandidateScores) -> None:
    wanted = 0
    for seed in range(20):
        predictions, targets = layout(seed)
        # Objects compete for anchors afterwards, so that an assignment has at most as many.
        wanted += int((PAA()(predictions, targets).matched >= 0).sum())
    assert 0.8 * scores.positive.sum() < wanted <= scores.positive.sum()


def test_normalised_scores_reach_the_ends_of_their_range_and_raw_ones_do_not(scores: CandidateScores) -> None:
    for normalized in (scores.normalized_ranking, scores.normalized_localization):
        assert normalized.min() == 0
        assert normalized.max() == 1
    assert scores.ranking.min() > 0
    assert scores.ranking.max() < 1


def test_figures_are_drawn(scores: CandidateScores, tmp_path: Path) -> None:
    for name, figure in (("a.png", score_distributions(scores)), ("b.png", object_clusters(scores))):
        save_figure(figure, tmp_path / name)
        assert (np.asarray(Image.open(tmp_path / name).convert("L")) < 128).mean() > 0.002, name


def test_the_object_that_is_shown_has_two_clusters(scores: CandidateScores) -> None:
    title = object_clusters(scores).axes[0].get_title(loc="left")
    count = int(title.split()[0])
    assert count == max(
        len(mine.lower)
        for mine in (scores.of(number) for number in np.unique(scores.object))
        if mine.lower.any() and not mine.lower.all()
    )


def test_without_objects_the_figures_are_empty_but_drawn(tmp_path: Path) -> None:
    predictions, targets = layout(0)
    nothing = [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)} for _ in targets]
    empty = candidate_scores([(predictions, nothing)])
    assert len(empty.object) == 0
    for name, figure in (("a.png", score_distributions(empty)), ("b.png", object_clusters(empty))):
        for panel in figure.axes:
            assert [text.get_text() for text in panel.texts] == ["nothing to show"]
            assert not panel.patches
            assert not panel.collections
        save_figure(figure, tmp_path / name)
        assert (np.asarray(Image.open(tmp_path / name).convert("L")) < 128).mean() > 0.002, name
