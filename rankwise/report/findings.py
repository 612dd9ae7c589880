"""The main findings of a report, in a few sentences."""

from __future__ import annotations

from collections.abc import Sequence

from rankwise.evaluation.tabulate import decimals
from rankwise.report.error_types import ERRORS, ErrorType
from rankwise.report.runs import RunData

#: What each error type means, for the most costly one.
HINTS = {
    ErrorType.MISSED: "objects have no detection at any score",
    ErrorType.BACKGROUND: "boxes on the background rank above boxes on objects",
    ErrorType.LOCALIZATION: "boxes have the correct class but are inaccurate",
    ErrorType.CLASS: "objects are detected as another class",
    ErrorType.BOTH: "inaccurate boxes have the wrong class",
    ErrorType.DUPLICATE: "objects are detected more than once",
}

#: Smaller differences in AP are not mentioned: they are 0.0 after rounding.
NEGLIGIBLE = 0.05


def findings(run: RunData) -> list[str]:
    """The metrics of a run, its best threshold, and its most costly errors."""
    evaluation = run.evaluation
    if evaluation.ap is None:
        return [f"The {evaluation.images:,} images have no objects, so there are no metrics."]
    sentences = [
        f"AP {decimals(evaluation.ap)} (AP50 {decimals(evaluation.ap50)}, AP75 {decimals(evaluation.ap75)}) on "
        f"{evaluation.images:,} images with {evaluation.objects:,} objects of {_classes(len(run.classes))}."
    ]
    best = evaluation.thresholds.overall
    if best.f1 is None or best.precision is None or best.recall is None:
        return [*sentences, "No detection is correct at any threshold."]
    interval = f" (95 % interval {best.interval[0]:.2f} to {best.interval[1]:.2f})" if best.interval else ""
    sentences.append(
        f"The best F1 is {100 * best.f1:.0f} %, at threshold {best.score:.3g}{interval}, with a precision of "
        f"{100 * best.precision:.0f} % and a recall of {100 * best.recall:.0f} %."
    )
    check = evaluation.reliability
    if check is not None and check.before.ece is not None and check.after.ece is not None:
        sentences.append(
            f"Calibrated scores are probabilities with a calibration error of {check.after.ece:.3f}; that of the raw "
            f"scores is {check.before.ece:.3f}."
        )
    gains = {error_type: gain or 0.0 for error_type, gain in run.gains.items()}
    costly = sorted(ERRORS, key=lambda error_type: -gains[error_type])[:2]
    if gains[costly[0]] >= NEGLIGIBLE:
        first, second = (
            "missed objects" if error_type is ErrorType.MISSED else f"{error_type.name} errors".lower()
            for error_type in costly
        )
        rest = f", followed by {second} ({gains[costly[1]]:.1f})" if gains[costly[1]] >= NEGLIGIBLE else ""
        sentences.append(f"{first.capitalize()} cost the most ({HINTS[costly[0]]}): {gains[costly[0]]:.1f} AP50{rest}.")
    measured = {name: ap for name, ap in evaluation.per_class.items() if ap is not None}
    if len(measured) > 1:
        worst, top = min(measured, key=lambda name: measured[name]), max(measured, key=lambda name: measured[name])
        sentences.append(f"Lowest AP: {worst} ({measured[worst]:.1f}). Highest AP: {top} ({measured[top]:.1f}).")
    return sentences


def comparison(runs: Sequence[RunData]) -> list[str]:
    """The difference of each run from the first one, if they were evaluated on the same images."""
    first, *others = runs
    sentences = []
    for run in others:
        if run.dataset_key != first.dataset_key:
            sentences.append(
                f"{run.name} and {first.name} were evaluated on different images: their metrics are not comparable."
            )
            continue
        now, then = run.evaluation.ap, first.evaluation.ap
        if now is None or then is None:
            continue
        if abs(now - then) < NEGLIGIBLE:
            sentences.append(f"{run.name} and {first.name} have the same AP, {now:.1f}.")
            continue
        sentence = f"{run.name} is {abs(now - then):.1f} AP {'above' if now > then else 'below'} {first.name}"
        changes = {
            name: ap - before
            for name, ap in run.evaluation.per_class.items()
            if ap is not None and (before := first.evaluation.per_class.get(name)) is not None
        }
        best, worst = max(changes, key=lambda name: changes[name]), min(changes, key=lambda name: changes[name])
        parts = [f"gains most for {best} ({changes[best]:+.1f})"] if changes[best] >= NEGLIGIBLE else []
        parts += [f"loses most for {worst} ({changes[worst]:+.1f})"] if changes[worst] <= -NEGLIGIBLE else []
        sentences.append(f"{sentence}; it {' and '.join(parts)}." if parts else f"{sentence}.")
    return sentences


def _classes(number: int) -> str:
    return "one class" if number == 1 else f"{number:,} classes"
