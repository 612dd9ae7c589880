"""Some of the random scenes of `make soak`: every ranking loss equals its definition."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

import soak as tool
from soak import ranking_losses, scenes, soak

from rankwise.losses import APLoss


@pytest.mark.parametrize("kind", ranking_losses(), ids=lambda kind: kind.__name__)
def test_random_scenes_have_the_values_and_gradients_of_the_definition(kind):
    assert soak(kind, 40) == []


def test_scenes_are_the_same_for_the_same_seed():
    kind = ranking_losses()[0]
    one, other = (next(iter(scenes(kind, 1, seed=3))) for _ in range(2))
    assert one.settings == other.settings
    assert one.logits.equal(other.logits)


@pytest.mark.parametrize("part", [0, 1])
def test_a_loss_that_differs_from_its_definition_is_found(monkeypatch, part):
    right = tool.definition

    def wrong(*arguments):
        found = list(right(*arguments))
        found[part] = found[part] * 1.05
        return tuple(found)

    monkeypatch.setattr(tool, "definition", wrong)
    assert soak(APLoss, 20, largest=10)
