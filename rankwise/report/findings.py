"""The main findings of a report in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.evaluation.tabulate import shown
from rankwise.report.error_types import ERRORS, Kind
from rankwise.report.runs import RunData

#: Hints for the most costly error type.
HINTS = {
    Kind.MISSED: "objects get no detection at any score",
    Kind.BACKGROUND: "boxes on nothing rank above boxes on objects",
    Kind.LOCALISATION: "boxes of the right class lie beside their objects",
    Kind.CLASS: "objects are taken for another class",
    Kind.BOTH: "boxes of another class lie beside objects",
    Kind.DUPLICATE: "objects are found more than once",
}

#: Smaller differences in AP are ignored.
EQUAL = 0.05


def findings(run: RunData) -> list[str]:
    """The quality of a run, its best threshold, and what would improve it most."""
    evaluation = run.evaluation
    if evaluation.ap is None:
        return [f"There are no objects in the {evaluation.images:,} images, so nothing could be measured."]
    said = [
        f"AP {shown(evaluation.ap)} (AP50 {shown(evaluation.ap50)}, AP75 {shown(evaluation.ap75)}) on "
        f"{evaluation.images:,} images with {evaluation.objects:,} objects of {_classes(len(run.classes))}."
    ]
    best = evaluation.thresholds.overall
    if best.f1 is None or best.precision is None or best.recall is None:
        return [*said, "No detection is right at any threshold."]
    interval = f" (95 % interval {best.interval[0]:.2f} to {best.interval[1]:.2f})" if best.interval else ""
    said.append(
        f"At threshold {best.score:.3g}{interval} {100 * best.precision:.0f} % of the boxes are right and "
        f"{100 * best.recall:.0f} % of the objects are found (F1 {100 * best.f1:.0f} %, the best there is)."
    )
    check = evaluation.reliability
    if check is not None and check.before.ece is not None and check.after.ece is not None:
        said.append(
            f"Scores are probabilities of being right: their calibration error is {check.after.ece:.3f}, that of the "
            f"raw scores {check.before.ece:.3f}."
        )
    gains = {kind: gain or 0.0 for kind, gain in run.gains.items()}
    costly = sorted(ERRORS, key=lambda kind: -gains[kind])[:2]
    if gains[costly[0]] >= EQUAL:
        second = (
            f"; next come {costly[1].name.lower()} errors (+{gains[costly[1]]:.1f})"
            if gains[costly[1]] >= EQUAL
            else ""
        )
        said.append(
            f"Most would be gained from {costly[0].name.lower()} errors: {HINTS[costly[0]]}. "
            f"Without them AP50 would be {gains[costly[0]]:.1f} higher{second}."
        )
    measured = {name: ap for name, ap in evaluation.per_class.items() if ap is not None}
    if len(measured) > 1:
        worst, top = min(measured, key=lambda name: measured[name]), max(measured, key=lambda name: measured[name])
        said.append(f"Weakest class: {worst} (AP {measured[worst]:.1f}). Best: {top} ({measured[top]:.1f}).")
    return said


def comparison(runs: Sequence[RunData]) -> list[str]:
    """Differences of the runs from the first, if they were evaluated on the same images."""
    first, *others = runs
    said = []
    for run in others:
        if run.dataset_key != first.dataset_key:
            said.append(f"{run.name} was measured on other images than {first.name}: their numbers do not compare.")
            continue
        now, then = run.evaluation.ap, first.evaluation.ap
        if now is None or then is None:
            continue
        if abs(now - then) < EQUAL:
            said.append(f"{run.name} and {first.name} have the same AP, {now:.1f}.")
            continue
        word = "above" if now > then else "below"
        sentence = f"{run.name} is {abs(now - then):.1f} AP {word} {first.name}"
        changes = {
            name: ap - before
            for name, ap in run.evaluation.per_class.items()
            if ap is not None and (before := first.evaluation.per_class.get(name)) is not None
        }
        best, worst = max(changes, key=lambda name: changes[name]), min(changes, key=lambda name: changes[name])
        parts = [f"gains most at {best} ({changes[best]:+.1f})"] if changes[best] >= EQUAL else []
        parts += [f"loses most at {worst} ({changes[worst]:+.1f})"] if changes[worst] <= -EQUAL else []
        said.append(f"{sentence}; it {' and '.join(parts)}." if parts else f"{sentence}.")
    return said


def _classes(number: int) -> str:
    return "one class" if number == 1 else f"{number:,} classes"
