"""One-dimensional Gaussian mixtures of two components, fitted to thousands of small sets at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from rankwise.assign import numba_loops

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

#: A fit has converged when an iteration changes its mean log likelihood by less than this (scikit-learn's ``tol``).
TOLERANCE = 1e-3

#: Added to every variance, so that no component collapses (scikit-learn's ``reg_covar``).
VARIANCE_FLOOR = 1e-6

#: Maximum number of iterations (scikit-learn's ``max_iter``).
MAX_ITERATIONS = 100

#: Iterations between checks of convergence. A check waits for the device; the result does not depend on it.
ITERATIONS_BETWEEN_CHECKS = 4


@dataclass(frozen=True)
class Mixtures:
    """One fitted mixture per set. The first component is the lower one: it started at the smallest value.

    Attributes:
        parameters: Weights, means and variances of the two components, float64 [3, 2, T].
        converged: Whether the fit converged before the last iteration, bool [T].
    """

    parameters: Tensor
    converged: Tensor

    def assess(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each of the values [T, N], one set per row, is at least as likely to be of the lower component as of
        the upper, and its log likelihood under the mixture, float64."""
        lower, upper = _log_joint(values.double(), self.parameters)
        return lower >= upper, torch.logaddexp(lower, upper)


def fit_mixtures(values: Tensor, valid: Tensor) -> Mixtures:
    """Fits a mixture of two Gaussians to every row [T, N], all rows at once, in float64 on the device of the values.

    Expectation maximization starts at the smallest and the largest value with equal weights and unit variances. It
    equals scikit-learn's ``GaussianMixture(2, weights_init=[0.5, 0.5], means_init=[[min], [max]],
    precisions_init=[[[1]], [[1]]])`` with everything else at its defaults. Each row stops at its own convergence.
    Values are finite where ``valid``; the mixture of a row without valid values is meaningless.
    """
    fit = _kernel(values.device)
    if fit is None:
        return Mixtures(*_fit(values, valid))
    return Mixtures(*fit(values.double().contiguous(), valid, TOLERANCE, VARIANCE_FLOOR, MAX_ITERATIONS))


def _kernel(device: torch.device) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """A fit in one kernel, by Triton on a GPU and by numba on a CPU, if the device has one."""
    if device.type == "cpu":
        return numba_loops.fit
    if device.type == "cuda" and find_spec("triton") is not None:  # AMD GPUs are "cuda" too
        from rankwise.assign.gmm_triton import fit

        return fit
    return None


def _fit(values: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The fits in plain torch, for all other devices."""
    values = values.double().masked_fill(~valid, 0)
    mask = valid.double()
    mean = mask / mask.sum(1, keepdim=True).clamp_(min=1)  # a row times these, summed, is its mean
    parameters = values.new_ones(3, 2, len(values))  # weights, means, variances
    parameters[0] = 0.5
    if values.shape[1]:
        parameters[1, 0] = values.masked_fill(~valid, math.inf).amin(1)
        parameters[1, 1] = values.masked_fill(~valid, -math.inf).amax(1)
    parameters[1].masked_fill_(~valid.any(1), 0)
    bound = values.new_full((len(values),), -math.inf)
    converged = torch.zeros_like(bound, dtype=torch.bool)

    # Only rows that had not converged at the last check are processed; those that converge in between are frozen.
    going = torch.arange(len(values), device=values.device)
    for done in range(0, MAX_ITERATIONS, ITERATIONS_BETWEEN_CHECKS):
        going = going[~converged[going]]
        if not len(going):
            break
        rows, row_mask, row_mean = values[going], mask[going], mean[going]
        now, now_bound, held = parameters[..., going], bound[going], converged[going]
        for _ in range(min(ITERATIONS_BETWEEN_CHECKS, MAX_ITERATIONS - done)):
            new, new_bound = _iterate(rows, row_mask, row_mean, now)
            now = torch.where(held, now, new)
            held = held | ((new_bound - now_bound).abs() < TOLERANCE)
            now_bound = new_bound
        parameters[..., going], bound[going], converged[going] = now, now_bound, held
    return parameters, converged


def _iterate(values: Tensor, mask: Tensor, mean: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
    """One step of expectation maximization: new parameters, and the mean log likelihood under the old ones."""
    log_joint = _log_joint(values, parameters)  # [2, T, N]
    likelihood = torch.logaddexp(log_joint[0], log_joint[1])
    share = log_joint.sub_(likelihood).exp_().mul_(mask)
    total = share.sum(-1).add_(10 * torch.finfo(torch.float64).eps)  # scikit-learn's guard against empty components
    means = (share * values).sum(-1).div_(total)
    spread = (values - means.unsqueeze(-1)).square_()
    variances = share.mul_(spread).sum(-1).div_(total).add_(VARIANCE_FLOOR)
    bound = likelihood.mul_(mean).sum(-1)
    return torch.stack([total / total.sum(0), means, variances]), bound


def _log_joint(values: Tensor, parameters: Tensor) -> Tensor:
    """The log density of values [T, N] in each component plus the log of its weight, [2, T, N]."""
    weights, means, variances = parameters.unsqueeze(-1)
    constant = (weights * (2 * math.pi * variances).rsqrt_()).log_()
    distance = (values - means).square_()
    return torch.addcdiv(constant, distance, variances, value=-0.5)
