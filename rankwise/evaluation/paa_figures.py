"""Figures about PAA on normalized scores: the distribution of candidate scores, and the clusters of one object.

They correspond to Fig. 2c of the paper (ranking and localization scores have different ranges until they are normalized
per object) and Fig. 3c (in the plane of the two, the candidates form two clusters).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from rankwise.assign import PAA
from rankwise.assign.objects import Objects
from rankwise.config.reading import read_section
from rankwise.data.dataset import DetectionDataset
from rankwise.data.loader import build_loader
from rankwise.errors import SettingsError
from rankwise.evaluation.colors import ACCENT, EMPHASIS
from rankwise.evaluation.figures import new_panels, nothing_to_show, save_figure, style_panel
from rankwise.files.names import escaped
from rankwise.models import Detector
from rankwise.types import Predictions, Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FAINT, _RANKING, _LOCALIZATION = "#bbbbbb", "#E69F00", "#56B4E9"


@dataclass(frozen=True)
class CandidateScores:
    """The scores of all candidates clustered by PAA, one entry each.

    Attributes:
        object: Index of the object, counted over all batches, int64 [M].
        ranking: Sigmoid of the logit of the class of the object, float64 [M].
        localization: IoU of the predicted box with the object, float64 [M].
        normalized_ranking: The ranking score rescaled to 0–1 per object, float64 [M].
        normalized_localization: The localization score rescaled to 0–1 per object, float64 [M].
        lower: Whether it is in the better cluster, bool [M].
        positive: Whether the object claims it as a positive, bool [M].
    """

    object: NDArray[np.int64]
    ranking: NDArray[np.float64]
    localization: NDArray[np.float64]
    normalized_ranking: NDArray[np.float64]
    normalized_localization: NDArray[np.float64]
    lower: NDArray[np.bool_]
    positive: NDArray[np.bool_]

    def of(self, number: int) -> CandidateScores:
        """The candidates of one object."""
        rows = self.object == number
        return CandidateScores(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@torch.no_grad()
def candidate_scores(
    batches: Iterable[tuple[Predictions, Sequence[Target]]], assigner: PAA | None = None
) -> CandidateScores:
    """Collects the scores of the candidates of all objects, from predictions with their targets."""
    assigner = assigner or PAA()
    parts: list[list[NDArray[np.generic]]] = []
    objects_before = 0
    for predictions, targets in batches:
        objects = Objects.of(targets, predictions.logits.shape[-1], predictions.logits.device)
        if not len(objects):
            continue
        clusters = assigner.clusters(predictions, objects)
        candidates, valid = clusters.candidates, clusters.candidate >= 0
        raw = candidates.scores(predictions, objects)
        scores = [*raw, *(candidates.normalized(score, len(objects)) for score in raw)]
        candidate = clusters.candidate[valid]
        columns = [candidates.object[candidate] + objects_before, *(score[candidate] for score in scores)]
        columns += [clusters.lower[valid], clusters.positive[valid]]
        parts.append([column.cpu().numpy() for column in columns])
        objects_before += len(objects)
    if not parts:
        none = np.zeros(0)
        return CandidateScores(none.astype(np.int64), none, none, none, none, none.astype(bool), none.astype(bool))
    return CandidateScores(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def score_distributions(scores: CandidateScores) -> Figure:
    """Distributions of the two scores, raw and rescaled to 0–1 per object."""
    figure, panels = new_panels(2, width=4.6, height=3.6)
    pairs = (
        ("as predicted", scores.ranking, scores.localization),
        ("normalized per object", scores.normalized_ranking, scores.normalized_localization),
    )
    edges = np.linspace(0, 1, 31).tolist()
    for panel, (title, ranking, localization) in zip(panels, pairs, strict=True):
        for name, values, color in (("ranking", ranking, _RANKING), ("localization", localization, _LOCALIZATION)):
            if not len(values):
                nothing_to_show(panel)
                break
            weights = np.full(len(values), 100 / len(values))
            panel.hist(values, edges, weights=weights, color=color, alpha=0.35)
            panel.hist(values, edges, weights=weights, color=color, histtype="step", linewidth=1.8, label=name)
            panel.axvline(float(np.mean(values)), color=color, linewidth=1.5, linestyle="--")
        if len(ranking):
            panel.legend(fontsize=8, framealpha=0.85, edgecolor="none")
        style_panel(panel, "score (dashed: mean)", "% of the candidates", title)
        panel.set_xlim(0, 1)
    return figure


def object_clusters(scores: CandidateScores) -> Figure:
    """The candidates of one object in the plane of the two normalized scores, by cluster.

    The object is the one with the most candidates among those with two clusters.
    """
    figure, (panel,) = new_panels(1, width=4.8, height=4.6)
    candidates = scores.of(_object_with_most_candidates(scores))
    if len(candidates.object):
        ranking, localization = candidates.normalized_ranking, candidates.normalized_localization
        groups = (("worse cluster", ~candidates.lower, ACCENT), ("better cluster", candidates.lower, EMPHASIS))
        for name, members, color in groups:
            panel.scatter(
                ranking[members], localization[members], s=34, color=color, alpha=0.75, linewidths=0, label=name
            )
        chosen = candidates.positive
        panel.scatter(
            ranking[chosen], localization[chosen], s=90, facecolors="none", edgecolors="black", label="positives"
        )
        panel.legend(fontsize=8, framealpha=0.85, edgecolor="none", loc="lower right")
    else:
        nothing_to_show(panel)
    title = f"{len(candidates.object)} candidates of one object, {int(candidates.positive.sum())} positive"
    style_panel(panel, "ranking score, normalized", "localization score, normalized", title)
    panel.set_xlim(-0.04, 1.04)
    panel.set_ylim(-0.04, 1.04)
    return figure


def draw_figures(
    out: Path, detector: Detector, dataset: DetectionDataset, assigner: PAA | None = None, images: int = 64
) -> list[Path]:
    """Draws both figures from the predictions for the first images of a dataset with its evaluation transform; returns
    the files."""
    first = dataset.subset(list(range(min(images, len(dataset)))))
    size = detector.settings.input
    loader = build_loader(first, 8, shuffle=False, divisor=size.divisor, colour=size.mean_colour)
    device = next(detector.parameters()).device
    training = detector.training
    detector.eval()

    def batches() -> Iterator[tuple[Predictions, list[Target]]]:
        for batch in loader.epoch(0):
            yield detector(batch.images.to(device)), batch.targets

    scores = candidate_scores(batches(), assigner)
    detector.train(training)
    drawn = {"score_distributions.png": score_distributions(scores), "object_clusters.png": object_clusters(scores)}
    for name, figure in drawn.items():
        save_figure(figure, out / name)
    return [out / name for name in drawn]


def paa_of_run(run: Path) -> PAA:
    """The PAA of a run; a SettingsError if it was trained with another assigner. Nothing is imported by name."""
    section = read_section(run, "assign")
    if section.get("class_path") not in ("PAA", "rankwise.assign.PAA", "rankwise.assign.paa.PAA"):
        raise SettingsError(f"{run}: was not trained with --assign PAA, so there are no clusters to draw")
    try:
        return PAA(**(section.get("init_args") or {}))
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{escaped(run)}/recipe.yaml: invalid value in recipe: assign: {escaped(error)}") from error


def _object_with_most_candidates(scores: CandidateScores) -> int:
    """The first object with the most candidates among those with two clusters."""
    if not len(scores.object):
        return -1
    count = np.bincount(scores.object)
    lower = np.bincount(scores.object, weights=scores.lower)
    return int(np.where((lower > 0) & (lower < count), count, 0).argmax())
