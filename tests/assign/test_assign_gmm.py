"""Batched mixtures against scikit-learn."""

from __future__ import annotations

import numpy as np
import plain_paa
import pytest
import torch
from torch import Tensor

from rankwise.assign import gmm
from rankwise.assign.gmm import fit_mixtures

SETS = 500


def random_set(kind: int, rng: np.random.Generator) -> np.ndarray:
    """2 to 45 sorted values, from what assignment meets to what breaks fits."""
    count = int(rng.integers(2, 46))
    values = [
        lambda: rng.random(count) * 2,
        lambda: np.where(rng.random(count) < 0.4, rng.normal(0.3, 0.1, count), rng.normal(1.5, 0.2, count)),
        lambda: 2 - rng.beta(0.3, 0.8, count) - rng.beta(0.5, 0.5, count),
        lambda: rng.exponential(0.5, count),
        lambda: np.full(count, rng.random()),  # all equal
        lambda: rng.choice(rng.random(3), count),  # few distinct values
        lambda: np.append(np.full(count - 1, 1.0), rng.random()),  # one apart
        lambda: rng.random() + rng.random(count) * 10.0 ** -rng.integers(2, 7),  # hardly any spread
        lambda: rng.normal(0, 100, count),  # far more spread than the unit variance it starts with
        lambda: rng.random(2),
    ]
    return np.sort(values[kind % len(values)]())


def padded(sets: list[np.ndarray], fill: float = 1e300) -> tuple[Tensor, Tensor]:
    values = torch.full((len(sets), max(map(len, sets))), fill, dtype=torch.float64)
    valid = torch.zeros_like(values, dtype=torch.bool)
    for row, one in enumerate(sets):
        values[row, : len(one)] = torch.from_numpy(one)
        valid[row, : len(one)] = True
    return values, valid


@pytest.fixture(scope="module")
def sets() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [random_set(kind, rng) for kind in range(SETS)]


def test_fits_equal_scikit_learn_on_hundreds_of_sets(sets: list[np.ndarray]) -> None:
    values, valid = padded(sets)
    mixtures = fit_mixtures(values, valid)
    lower, likelihood = mixtures.assess(values)
    same = 0
    rows, expected_numbers, found_likelihood, expected_likelihood = [], [], [], []
    for row, one in enumerate(sets):
        expected = plain_paa.fitted(torch.from_numpy(one))
        members = expected.predict(one[:, None]) == 0
        same += bool((lower[row, : len(one)].numpy() == members).all())
        if expected.converged_ and mixtures.converged[row]:
            rows.append(row)
            expected_numbers.append(
                np.stack([expected.weights_, expected.means_[:, 0], expected.covariances_[:, 0, 0]])
            )
            found_likelihood.append(likelihood[row, : len(one)])
            expected_likelihood.append(expected.score_samples(one[:, None]))
    found = mixtures.parameters[..., rows].movedim(-1, 0)
    np.testing.assert_allclose(found, np.stack(expected_numbers), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(found_likelihood), np.concatenate(expected_likelihood), atol=1e-5)
    assert same >= 0.999 * SETS
    assert len(rows) >= 0.99 * SETS


def test_memberships_differ_from_scikit_learn_only_where_both_components_are_equally_likely() -> None:
    """In the middle of a symmetric set, and without any spread, rounding alone decides, in scikit-learn as here."""
    rng = np.random.default_rng(2)
    halves = [rng.integers(1, 4, int(rng.integers(1, 15))) / 4 for _ in range(50)]
    sets = [np.sort(np.concatenate([1 - half, [1.0], 1 + half])) for half in halves]
    sets += [np.sort(rng.random() + rng.random(20) * 1e-8) for _ in range(50)]
    values, valid = padded(sets)
    lower, _ = fit_mixtures(values, valid).assess(values)
    for row, one in enumerate(sets):
        expected = plain_paa.fitted(torch.from_numpy(one))
        odds = np.log(expected.predict_proba(one[:, None]) + 1e-300) @ np.array([1, -1])
        differs = lower[row, : len(one)].numpy() != (expected.predict(one[:, None]) == 0)
        assert (abs(odds[differs]) < 1e-9).all()


def test_sets_are_fitted_independently(sets: list[np.ndarray]) -> None:
    together = fit_mixtures(*padded(sets[:60]))
    for row, one in enumerate(sets[:60]):
        alone = fit_mixtures(*padded([one]))
        torch.testing.assert_close(alone.parameters[..., 0], together.parameters[..., row], rtol=1e-9, atol=1e-9)
        assert alone.converged[0] == together.converged[row]


def test_devices_without_a_kernel_fit_the_same(sets: list[np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    values, valid = padded(sets[:500])
    expected = fit_mixtures(values, valid)
    monkeypatch.setattr(gmm, "_kernel", lambda device: None)
    for often in (4, 1, 1000):  # how often the host asks which fits still go on
        monkeypatch.setattr(gmm, "ITERATIONS_BETWEEN_CHECKS", often)
        found = fit_mixtures(values, valid)
        torch.testing.assert_close(found.parameters, expected.parameters, rtol=1e-9, atol=1e-9)
        assert torch.equal(found.converged, expected.converged)


def test_a_fit_that_reaches_the_iteration_limit_is_not_converged(
    sets: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gmm, "MAX_ITERATIONS", 1)
    assert not fit_mixtures(*padded(sets[:20])).converged.any()


def test_empty_sets_give_finite_values_and_do_not_affect_the_others() -> None:
    values = torch.tensor([[0.1, 0.2, 1.0, 1.1], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    valid = torch.tensor([[True] * 4, [False] * 4])
    mixtures = fit_mixtures(values, valid)
    lower, likelihood = mixtures.assess(values)
    assert lower[0].tolist() == [True, True, False, False]
    assert mixtures.parameters.isfinite().all()
    assert not likelihood.isnan().any()


def test_zero_sets_can_be_fitted() -> None:
    mixtures = fit_mixtures(torch.zeros(0, 5), torch.zeros(0, 5, dtype=torch.bool))
    assert mixtures.parameters.shape == (3, 2, 0)
