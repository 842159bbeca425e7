"""What a model learned about all its labels: each by itself, and means over them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from dkan_core.explanation.importance import Importance, mean_importance
from dkan_core.explanation.label_explanation import Effort, LabelExplanation, read_effects, read_label
from dkan_core.explanation.response import row_count
from dkan_core.model.saved_model import SavedModel
from dkan_core.report.inline import inline_page
from dkan_core.utils.arrays import Arrays

OF_SOME = ("intercept", "terms", "against")
"""Keys of ``explanation.json`` that only some labels have: of additive models, or compared with an earlier model."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What a model learned, as ``explanation.json`` holds it."""

    split: str
    rows: int
    """Rows of the split that were read."""

    seed: int
    average_precision: float | None
    """On the rows read, the mean over the labels that have both classes."""

    importance: list[Importance] = field(repr=False)
    """Every source column, the largest effect first: means over ``labels``."""

    labels: dict[str, LabelExplanation]
    """What was learned about each label."""

    page: str = field(default="", repr=False)
    """The page that ``explanation.html`` holds."""

    def _repr_html_(self) -> str | None:
        """Return the page in a frame, which notebooks show; None where it was not made."""
        return inline_page(self.page, "Explanation") if self.page else None

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        plain = asdict(self)
        del plain["page"]
        for name, found in plain["labels"].items():
            terms = self.labels[name].terms
            found["terms"] = None if terms is None else [term.to_dict() for term in terms]
            for key in OF_SOME:
                if found[key] is None:
                    del found[key]
        return plain


def explain_labels(
    saved: SavedModel, arrays: Arrays, labels: Sequence[str], *, split: str, effort: Effort, seed: int
) -> Explanation:
    """Find out what a model learned about some of its labels, from its log-odds of some rows.

    Args:
        saved: The model.
        arrays: Prepared rows with their ``labels``, which are the model's.
        labels: Those to explain, one after the other.
        split: Where the rows are from.
        effort: How much to compute for each label.
        seed: Decides the shuffles.
    """
    effects = read_effects(saved, arrays, labels, effort=effort, seed=seed) if len(labels) > 1 else {}
    found = {
        label: read_label(saved, arrays, split=split, label=label, effort=effort, seed=seed, effects=effects.get(label))
        for label in labels
    }
    precisions = [each.average_precision for each in found.values() if each.average_precision is not None]
    return Explanation(
        split=split,
        rows=row_count(arrays),
        seed=seed,
        average_precision=float(np.mean(precisions)) if precisions else None,
        importance=mean_importance([each.importance for each in found.values()]),
        labels=found,
    )
