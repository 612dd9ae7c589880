"""Passes over the scores of negatives, compiled for CPUs: sums of functions of a score, and gradients.

Samples are float32. They are processed in blocks that stay in the cache, in loops that the compiler turns into vector
instructions: the exponential is a polynomial, because a call per number would take ten times as long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from rankwise.jit import compiled, compiled_sum

#: Samples per block.
SAMPLES = 2048

#: Tables that are filled in turn, so that an addition need not wait for the one before it in the same bin.
TABLES = 4

ONE, HALF = np.float32(1), np.float32(0.5)

#: A bin is uncertain if the score is closer to an edge than this.
NEAR = np.float32(1e-6)

#: e^x for x below this is not a normal float32.
LOWEST = np.float32(-87)

#: e^x is 2^n · e^r, where n is the integer nearest to x / ln 2. The first part of ln 2 has few digits, so that n
#: times it is exact.
PER_LN2, LN2_HIGH, LN2_LOW = np.float32(1 / np.log(2)), np.float32(0.693359375), np.float32(np.log(2) - 0.693359375)

#: The series of e^r, |r| < 0.35, from its seventh power down to the second: an error of 5e-9.
E7, E6, E5, E4, E3, E2 = (np.float32(1 / n) for n in (5040, 720, 120, 24, 6, 2))


class Negatives(NamedTuple):
    """The negatives among some rows of samples.

    Attributes:
        logits: All samples, flat, float32.
        classes: Samples per row.
        positives: Which of them are positives, ascending, int64.
        ignored: Which entries are ignored, bool [rows, 1] or [rows, classes]; no rows if there are none.
    """

    logits: np.ndarray
    classes: int
    positives: np.ndarray
    ignored: np.ndarray


class Buffers(NamedTuple):
    """Memory for a block of samples.

    Attributes:
        p: Scores, float32.
        q: 1 - p, float32.
        values: Other values, float32.
        weights: Other values, float32.
        bits: For powers of 2, int32.
        bins: Bins of the scores, uint32.
    """

    p: np.ndarray
    q: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    bits: np.ndarray
    bins: np.ndarray


def buffers() -> Buffers:
    """New buffers, for one thread."""
    p, q, values, weights = np.empty((4, SAMPLES), np.float32)
    return Buffers(p, q, values, weights, np.empty(SAMPLES, np.int32), np.empty(SAMPLES, np.uint32))


@compiled
def _exponential(x: Any, bits: Any, out: Any) -> None:
    """e^x of numbers up to 88, to 2e-7 of each; 1.6e-38 where it is less."""
    powers = bits.view(np.float32)
    for k in range(x.size):
        held = max(x[k], LOWEST)
        n = np.floor(held * PER_LN2 + HALF)
        r = held - n * LN2_HIGH - n * LN2_LOW
        out[k] = (((((E7 * r + E6) * r + E5) * r + E4) * r + E3) * r + E2) * r * r + r + ONE
        bits[k] = (np.int32(n) + np.int32(127)) << np.int32(23)
    for k in range(x.size):
        out[k] *= powers[k]


@compiled
def _scores(logits: Any, b: Any) -> None:
    """p = sigmoid(x) and q = sigmoid(-x), which 1 - p is not where p is close to 1."""
    for k in range(logits.size):
        b.q[k] = -abs(logits[k])
    _exponential(b.q[: logits.size], b.bits, b.p)
    for k in range(logits.size):
        large = ONE / (ONE + b.p[k])
        small = b.p[k] * large
        above = logits[k] >= 0
        b.p[k] = large if above else small
        b.q[k] = small if above else large


@compiled
def _softplus(logits: Any, b: Any) -> None:
    """values = log(1 + e^x), given the scores: the positive part of x and log(1 + e^-|x|) = 2 · artanh(s)."""
    for k in range(logits.size):
        small, large = min(b.p[k], b.q[k]), max(b.p[k], b.q[k])
        s = small / (ONE + large)
        t = s * s
        series = t * np.float32(1 / 13) + np.float32(1 / 11)
        series = ((series * t + np.float32(1 / 9)) * t + np.float32(1 / 7)) * t + np.float32(1 / 5)
        series = (series * t + np.float32(1 / 3)) * t + ONE
        b.values[k] = max(logits[k], np.float32(0)) + (s + s) * series


@compiled
def _exclude(negatives: Any, first: Any, stop: Any, following: Any, values: Any, otherwise: Any) -> Any:
    """Sets the values of a block's samples that are not negative; returns the number of positives up to its end."""
    classes, ignored = negatives.classes, negatives.ignored
    if len(ignored):
        for row in range(first // classes, (stop - 1) // classes + 1):
            for k in range(max(row * classes, first), min((row + 1) * classes, stop)):
                if ignored[row, (k - row * classes) % ignored.shape[1]]:
                    values[k - first] = otherwise
    while following < negatives.positives.size and negatives.positives[following] < stop:
        values[negatives.positives[following] - first] = otherwise
        following += 1
    return following


@compiled
def _bins(logits: Any, edges: Any, b: Any) -> None:
    """bins = bin of each score. Next to an edge rounding may choose the wrong one, so the logit of the edge decides."""
    bins, last = np.float32(edges.size - 1), np.float32(edges.size - 2)
    near = bins * NEAR
    some = np.int32(0)
    for k in range(logits.size):
        exact = b.p[k] * bins
        exact = exact if exact > 0 else np.float32(0)  # in this order NaN becomes a number
        at = np.floor(exact if exact < last else last)
        b.bins[k] = np.uint32(np.int32(at))
        b.bits[k] = np.int32(((exact - at < near) & (at > 0)) | (exact - at > ONE - near))
        some |= b.bits[k]
    if some:
        for k in range(logits.size):
            if b.bits[k]:
                while b.bins[k] > 0 and logits[k] < edges[b.bins[k]]:
                    b.bins[k] -= np.uint32(1)
                while b.bins[k] + 2 < edges.size and logits[k] >= edges[b.bins[k] + 1]:
                    b.bins[k] += np.uint32(1)


@compiled
def bin_sums(negatives: Any, edges: Any, softplus: Any, b: Any, tables: Any) -> None:
    """Adds number and sum of the scores, or of softplus(x), of the negatives in each bin.

    Args:
        negatives: The negatives.
        edges: The logits where the bins start and end, float32 [bins + 1].
        softplus: Whether to sum softplus(x) instead of the scores.
        b: Buffers.
        tables: Number and sum, float64 [TABLES, bins + 1, 2]; the last row is for the samples that are not negatives.
    """
    following, values = 0, b.values if softplus else b.p
    for first in range(0, negatives.logits.size, SAMPLES):
        stop = min(first + SAMPLES, negatives.logits.size)
        logits = negatives.logits[first:stop]
        _scores(logits, b)
        if softplus:
            _softplus(logits, b)
        _bins(logits, edges, b)
        following = _exclude(negatives, first, stop, following, b.bins, np.uint32(edges.size - 1))
        for k in range(logits.size):
            row = tables[k & (TABLES - 1), b.bins[k]]
            row[0] += 1.0
            row[1] += values[k]


@compiled
def bin_gradient(negatives: Any, edges: Any, table: Any, both: Any, b: Any, out: Any) -> None:
    """Writes p · table[bin] of each negative, times 1 - p if ``both``; 0 for other samples.

    Args:
        negatives: The negatives.
        edges: The logits where the bins start and end, float32 [bins + 1].
        table: A value per bin, float32.
        both: Whether the factor is p · (1 - p), the derivative of the score, instead of p.
        b: Buffers.
        out: Flat, float32.
    """
    following = 0
    for first in range(0, negatives.logits.size, SAMPLES):
        stop = min(first + SAMPLES, negatives.logits.size)
        logits, target = negatives.logits[first:stop], out[first:stop]
        _scores(logits, b)
        _bins(logits, edges, b)
        for k in range(logits.size):
            target[k] = table[b.bins[k]] * b.p[k] * (b.q[k] if both else ONE)
        following = _exclude(negatives, first, stop, following, target, np.float32(0))


@compiled_sum
def _two_sums(weights: Any, values: Any) -> Any:
    """The sum of the weights, and that of the weighted values."""
    mass, moment = 0.0, 0.0
    for k in range(weights.size):
        mass += np.float64(weights[k])
        moment += np.float64(weights[k] * values[k])
    return mass, moment


@compiled
def _weights(logits: Any, sharpness: Any, b: Any) -> None:
    """values = ``sharpness`` · p, weights = e^values, with the scores."""
    _scores(logits, b)
    for k in range(logits.size):
        b.values[k] = b.p[k] * sharpness
    _exponential(b.values[: logits.size], b.bits, b.weights)


@compiled
def expectation_sums(negatives: Any, group: Any, length: Any, sharpness: Any, b: Any, out: Any) -> None:
    """Adds the sums of e^(``sharpness`` · p) and of p times that over the negatives of each group.

    Args:
        negatives: The negatives.
        group: The group of each ``length`` samples, int64.
        length: Samples of one group that follow each other.
        sharpness: The factor of scores, float32.
        b: Buffers.
        out: Both sums, float64 [2, groups].
    """
    following = 0
    for first in range(0, negatives.logits.size, SAMPLES):
        stop = min(first + SAMPLES, negatives.logits.size)
        _weights(negatives.logits[first:stop], sharpness, b)
        following = _exclude(negatives, first, stop, following, b.weights, np.float32(0))
        start = first
        while start < stop:
            end = min((start // length + 1) * length, stop)
            mass, moment = _two_sums(b.weights[start - first : end - first], b.p[start - first : end - first])
            out[0, group[start // length]] += mass
            out[1, group[start // length]] += moment
            start = end


@compiled
def _slopes(constant: Any, factor: Any, z: Any, weights: Any, p: Any, q: Any, out: Any) -> None:
    for k in range(z.size):
        out[k] = (constant + factor * z[k]) * weights[k] * p[k] * q[k]


@compiled
def expectation_gradient(
    negatives: Any, group: Any, length: Any, sharpness: Any, constant: Any, factor: Any, b: Any, out: Any
) -> None:
    """Writes (constant + factor · z) · e^z · p · (1 - p), z = ``sharpness`` · p, of each negative; 0 for other samples.

    Args:
        negatives: The negatives.
        group: The group of each ``length`` samples, int64.
        length: Samples of one group that follow each other.
        sharpness: The factor of scores, float32.
        constant: A number per group, float32.
        factor: A number per group, float32.
        b: Buffers.
        out: Flat, float32.
    """
    following = 0
    for first in range(0, negatives.logits.size, SAMPLES):
        stop = min(first + SAMPLES, negatives.logits.size)
        _weights(negatives.logits[first:stop], sharpness, b)
        start = first
        while start < stop:
            end, at = min((start // length + 1) * length, stop), group[start // length]
            i, j = start - first, end - first
            _slopes(constant[at], factor[at], b.values[i:j], b.weights[i:j], b.p[i:j], b.q[i:j], out[start:end])
            start = end
        following = _exclude(negatives, first, stop, following, out[first:stop], np.float32(0))
