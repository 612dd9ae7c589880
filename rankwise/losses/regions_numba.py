"""Bins of the score range, compiled for CPUs: sums over the scores in each bin, and look-up of a value per bin."""

from __future__ import annotations

from typing import Any

from rankwise.jit import compiled

#: Tables that are filled in turn, so that an addition need not wait for the one before it in the same bin.
TABLES = 4


@compiled
def sums(logits: Any, scores: Any, edges: Any, tables: Any) -> None:
    """Adds number and sum of the scores in each bin to the tables, [TABLES, 2, bins]; scores below 0 are skipped."""
    for i in range(scores.size):
        if scores[i] >= 0:
            k = _bin(logits[i], scores[i], edges)
            tables[i % TABLES, 0, k] += 1
            tables[i % TABLES, 1, k] += scores[i]


@compiled
def values(logits: Any, scores: Any, edges: Any, table: Any, out: Any) -> None:
    """Writes the value of the table in the bin of each score; 0 for scores below 0."""
    for i in range(scores.size):
        out[i] = table[_bin(logits[i], scores[i], edges)] if scores[i] >= 0 else 0


@compiled
def _bin(logit: Any, score: Any, edges: Any) -> Any:
    """The bin of a score. Its rounding may place it in the next one, so the edges decide, which are logits."""
    bins = edges.size - 1
    k = min(int(score * bins), bins - 1)
    if logit < edges[k]:
        return k - 1
    return k + 1 if logit >= edges[k + 1] else k
