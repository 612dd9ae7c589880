"""The claims of the paper about a table, and whether they hold here."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: Metrics of each row, one dict per seed in order; empty if the seed has not been run.
Measured = Mapping[str, Sequence[Mapping[str, float | None]]]

#: Rows whose APs differ by at most this count as equal; the paper calls a difference of 0.1 minor and 1.0 an
#: improvement.
ALIKE = 1.0


def digits_of(column: str) -> int:
    """The decimals of a metric: correlations and calibration errors are from 0 to 1, AP is in percent."""
    return 3 if column in ("PCC", "SCC", "KCC") or "ECE" in column else 1


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim.

    Attributes:
        claim: The claim in words.
        held: "yes", "no", "unclear" if the seeds vary more than the difference, or "not measured".
        found: The measured result in words.
    """

    claim: str
    held: str
    found: str


@dataclass(frozen=True)
class Above:
    """One row is better than another.

    Attributes:
        text: The claim in words.
        better: Name of the row that should be better.
        worse: Name of the other.
        column: The metric.
    """

    text: str
    better: str
    worse: str
    column: str = "AP"

    def verdict(self, measured: Measured) -> Verdict:
        """The verdict, from the mean difference of runs with equal seeds and its standard deviation."""
        differences = _differences(measured, self.better, self.worse, self.column)
        if not differences:
            return Verdict(self.text, "not measured", "–")
        mean, digits = statistics.mean(differences), digits_of(self.column)
        found = f"{mean:+.{digits}f} {self.column}"
        if len(differences) == 1:
            return Verdict(self.text, "yes" if mean > 0 else "no", f"{found}, one seed")
        spread = statistics.stdev(differences)
        above = sum(difference > 0 for difference in differences)
        found += f" ± {spread:.{digits}f}, above in {above} of {len(differences)} seeds"
        return Verdict(self.text, "unclear" if abs(mean) < spread else "yes" if mean > 0 else "no", found)


@dataclass(frozen=True)
class Best:
    """One row is the best of all.

    Attributes:
        text: The claim in words.
        row: Its name.
    """

    text: str
    row: str

    def verdict(self, measured: Measured) -> Verdict:
        """The verdict against the best of the other rows."""
        means = _means(measured)
        others = {name: mean for name, mean in means.items() if name != self.row}
        if self.row not in means or not others:
            return Verdict(self.text, "not measured", "–")
        rival = max(others, key=lambda name: others[name])
        verdict = Above(self.text, self.row, rival).verdict(measured)
        return Verdict(self.text, verdict.held, f"{verdict.found} (next: {rival})")


@dataclass(frozen=True)
class Alike:
    """All rows are about equal in AP.

    Attributes:
        text: The claim in words.
    """

    text: str

    def verdict(self, measured: Measured) -> Verdict:
        """The verdict: all rows within one AP."""
        means = list(_means(measured).values())
        if len(means) < 2:
            return Verdict(self.text, "not measured", "–")
        width = max(means) - min(means)
        return Verdict(self.text, "yes" if width <= ALIKE else "no", f"within {width:.1f} AP")


Claim = Above | Best | Alike


def _differences(measured: Measured, left: str, right: str, column: str) -> list[float]:
    pairs = zip(measured.get(left, ()), measured.get(right, ()), strict=False)
    values = [(a.get(column), b.get(column)) for a, b in pairs]
    return [a - b for a, b in values if a is not None and b is not None]


def _means(measured: Measured) -> dict[str, float]:
    known = {name: [value for run in runs if (value := run.get("AP")) is not None] for name, runs in measured.items()}
    return {name: statistics.mean(values) for name, values in known.items() if values}
