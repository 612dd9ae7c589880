"""Some of the random scenes of `make soak`: every ranking loss equals its definition."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from soak import ranking_losses, scenes, soak


@pytest.mark.parametrize("kind", ranking_losses(), ids=lambda kind: kind.__name__)
def test_random_scenes_have_the_values_and_gradients_of_the_definition(kind):
    assert soak(kind, 40) == []


def test_scenes_are_the_same_for_the_same_seed():
    kind = ranking_losses()[0]
    one, other = (next(iter(scenes(kind, 1, seed=3))) for _ in range(2))
    assert one.settings == other.settings
    assert one.logits.equal(other.logits)
