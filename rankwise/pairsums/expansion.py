"""The sigmoid and the softplus between two cells of a lattice, as polynomials of both places."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import softplus


@dataclass(frozen=True, eq=False)
class Expansion:
    """S(z) and softplus(z) for z = width · (o + f - g): a sample at f of a cell, a positive at g of the cell o below.

    Attributes:
        width: Width of a cell.
        reach: Cells on each side, |o| <= reach, that need the polynomials; beyond, z is so large that e^z or 1 will do.
        rank: Coefficients for S, float64 [2 reach + 1, n, n]: offset o from -reach, power of f, power of g.
        error: The same for softplus.
        rising: Coefficients of e^(width · f), [n].
        falling: Coefficients of e^(-width · g), [n].
    """

    width: float
    reach: int
    rank: Tensor
    error: Tensor
    rising: Tensor
    falling: Tensor


@lru_cache(maxsize=16)
def expansion(width: float, degree: int, reach: int, device: torch.device) -> Expansion:
    """Polynomials of the given degree that interpolate at the Chebyshev points of the cells."""
    points = chebyshev(degree)
    fit = torch.linalg.inv(vandermonde(points, degree))  # values at the points -> coefficients
    offset = torch.arange(-reach, reach + 1, dtype=torch.float64)[:, None, None]
    z = width * (offset + points[:, None] - points)
    rank, error = (fit @ values @ fit.T for values in (z.sigmoid(), softplus(z, threshold=40.0)))
    rising, falling = fit @ (width * points).exp(), fit @ (-width * points).exp()
    return Expansion(width, reach, *(part.to(device) for part in (rank, error, rising, falling)))


@lru_cache(maxsize=16)
def reading(expansion: Expansion, with_error: bool) -> Tensor:
    """S at a positive, and softplus if wanted, from the powers of the samples near it.

    Returns:
        float64 [offset · power of the sample's place, kernel · power of the positive's].
    """
    kernels = [expansion.rank, expansion.error] if with_error else [expansion.rank]
    return torch.cat(kernels, 2).flatten(0, 1)


@lru_cache(maxsize=16)
def writing(expansion: Expansion) -> Tensor:
    """S at a sample from the powers of the positives near it: seen from there, the offsets are the opposite.

    Returns:
        float64 [offset · power of the positive's place, power of the sample's].
    """
    return expansion.rank.flip(0).transpose(1, 2).flatten(0, 1)


@lru_cache(maxsize=16)
def refinement(degree: int, fine_degree: int, parts: int, device: torch.device) -> Tensor:
    """Powers of the place in a cell as polynomials of the place in one of its equal parts.

    The transpose takes a polynomial over the cell to those over its parts.

    Returns:
        float64 [parts · (fine_degree + 1), degree + 1]: for each part and each power in it, the coefficient in each
        power over the whole cell.
    """
    points = chebyshev(fine_degree)
    fit = torch.linalg.inv(vandermonde(points, fine_degree))
    centres = (torch.arange(parts, dtype=torch.float64) + 0.5) / parts - 0.5
    powers = vandermonde(centres[:, None] + points / parts, degree)  # [parts, points, degree + 1]
    return (fit @ powers).flatten(0, 1).to(device)


def chebyshev(degree: int) -> Tensor:
    """The Chebyshev points of [-1/2, 1/2] that determine a polynomial of this degree, float64."""
    return torch.cos((torch.arange(degree + 1, dtype=torch.float64) + 0.5) * (torch.pi / (degree + 1))) / 2


def vandermonde(x: Tensor, degree: int) -> Tensor:
    """Powers 0 to degree of each number, along a new last dimension."""
    return x[..., None] ** torch.arange(degree + 1, dtype=x.dtype, device=x.device)
