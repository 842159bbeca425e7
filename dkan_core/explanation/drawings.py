"""The figures of an explanation, for its page and its files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dkan_core.explanation.explanation import Explanation
from dkan_core.explanation.figures.curves import draw_curve
from dkan_core.explanation.figures.drawing import Drawing
from dkan_core.explanation.figures.heatmaps import draw_map
from dkan_core.explanation.figures.importance import MAX_BARS, draw_importance
from dkan_core.explanation.label_explanation import LabelExplanation


@dataclass(frozen=True, kw_only=True)
class LabelDrawings:
    """The figures of a label."""

    importance: Drawing
    curves: Sequence[Drawing]
    maps: Sequence[Drawing]


@dataclass(frozen=True, kw_only=True)
class Drawings:
    """All figures of an explanation."""

    overview: Drawing | None
    """Importances as means over the labels; None where there is one label."""

    labels: Mapping[str, LabelDrawings]


def draw_explanation(found: Explanation) -> Drawings:
    """Draw what a model learned about its labels, and the means over several."""
    labels = {
        name: LabelDrawings(
            importance=draw_importance(each.importance[: min(each.shown, MAX_BARS)]),
            curves=draw_curves(each),
            maps=[draw_map(pair) for pair in each.maps],
        )
        for name, each in found.labels.items()
    }
    if len(labels) == 1:
        return Drawings(overview=None, labels=labels)
    # As many bars as the label with the most has.
    bars = min(MAX_BARS, max(each.shown for each in found.labels.values()))
    return Drawings(overview=draw_importance(found.importance[:bars], wide=True), labels=labels)


def draw_curves(found: LabelExplanation) -> list[Drawing]:
    """Draw each curve of a label, with that of an earlier model where there is one."""
    return [
        draw_curve(curve, found.label, found.against.curve_of(curve.name) if found.against else None)
        for curve in found.curves
    ]
