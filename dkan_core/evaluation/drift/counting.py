"""Counts of new rows, and of their scores, in the bins that are known of training."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.encoding.fitting import MAX_VOCABULARY, MIN_CATEGORY_ROWS
from dkan_core.data.encoding.histograms import count_up_to, count_values
from dkan_core.data.encoding.preprocessor import FIRST_CODE, UNSEEN, CategoryFeature, Preprocessor
from dkan_core.model.model_folder import SCORES
from dkan_core.utils.arrays import Int64
from dkan_core.utils.schemas import Schema

# Enough examples to see what kind of values are new; all values of an identifier would fill a part's record.
EXAMPLES = 5


class DriftCountsSchema(Schema):
    """How ``DriftCounts`` are saved as JSON."""

    rows: int
    columns: dict[str, list[int]]
    scores: dict[str, list[int]]
    unseen: dict[str, list[str]]


@dataclass
class DriftCounts:
    """Counts of some rows; merging is exact and does not depend on the order."""

    rows: int = 0

    columns: dict[str, Int64] = field(default_factory=dict)
    """By feature column, from ``count_values``."""

    scores: dict[str, Int64] = field(default_factory=dict)
    """By label, from ``count_up_to``, for the labels whose training scores are known."""

    unseen: dict[str, list[str]] = field(default_factory=dict)
    """By category column, the first few values in the alphabet that are not in the vocabulary."""

    def merge(self, other: "DriftCounts") -> None:
        """Add what was counted of other rows."""
        self.rows += other.rows
        for mine, theirs in ((self.columns, other.columns), (self.scores, other.scores)):
            for name, counts in theirs.items():
                mine[name] = mine[name] + counts if name in mine else counts
        for name, values in other.unseen.items():
            # The alphabetically first values of all rows are among the first of each part, so the order of merging does
            # not matter.
            self.unseen[name] = sorted({*self.unseen.get(name, []), *values})[:EXAMPLES]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        columns, scores = (
            {name: counts.tolist() for name, counts in found.items()} for found in (self.columns, self.scores)
        )
        return DriftCountsSchema(rows=self.rows, columns=columns, scores=scores, unseen=self.unseen).model_dump()

    @classmethod
    def from_schema(cls, plain: DriftCountsSchema) -> Self:
        """Rebuild counts from their plain form."""
        columns, scores = (
            {name: np.array(counts, np.int64) for name, counts in found.items()}
            for found in (plain.columns, plain.scores)
        )
        return cls(rows=plain.rows, columns=columns, scores=scores, unseen=dict(plain.unseen))


@dataclass(frozen=True, kw_only=True)
class TrainingDistribution:
    """The distribution of columns and scores that a model was trained with."""

    preprocessor: Preprocessor

    scores: Mapping[str, Mapping[str, list[Any]]]
    """By label, the ``knots`` of the model's validation scores and the ``rows`` in the bins they make."""

    unknown_scores: Sequence[str] = ()
    """Labels whose scores on validation are not known: of models of an earlier dkan, or that were edited since."""

    @classmethod
    def from_model(cls, preprocessor: Preprocessor, metrics: Mapping[str, Any]) -> Self:
        """Return the distribution that a model folder holds; an earlier dkan wrote neither counts nor scores."""
        labels = metrics.get("labels", {})
        return cls(
            preprocessor=preprocessor,
            scores={name: facts[SCORES] for name, facts in labels.items() if SCORES in facts},
            unknown_scores=[name for name, facts in labels.items() if SCORES not in facts],
        )


def expected_counts(feature: CategoryFeature, counts: Sequence[int]) -> Int64:
    """Return the training rows of a category by code, as other rows of the same source would be distributed.

    The training rows decided which values have a code (those that occur twice), so fewer of them are unseen than of
    other rows. As in estimates of what was never seen (Good 1953, Biometrika 40), each row is therefore counted by the
    codes that all other rows would give: a value of two rows would have no code without one of them. Where there are
    more values than codes, the same goes for a value that would rank behind the others.

    >>> expected_counts(CategoryFeature(name="city", vocabulary=["Oslo", "Rome"]), [1, 0, 5, 2]).tolist()
    [3, 0, 5, 0]
    """
    found = np.array(counts, np.int64)
    values = found[FIRST_CODE:]
    # Not if the vocabulary has values with fewer rows than that: other rows decided it.
    if feature.buckets or (values < MIN_CATEGORY_ROWS).any():
        return found
    lost = values == MIN_CATEGORY_ROWS
    if len(values) >= MAX_VOCABULARY and (np.diff(values) <= 0).all():
        # Values without a code have at most as many rows as the last one with a code, and then sort behind it.
        least, last = values[-1], feature.vocabulary[-1]
        lost = (values == least) | ((values == least + 1) & [value > last for value in feature.vocabulary])
    found[UNSEEN] += values[lost].sum()
    values[lost] = 0
    return found


def count_rows(
    rows: pa.RecordBatch | pa.Table,
    probabilities_NL: npt.NDArray[np.float32],
    labels: Iterable[str],
    reference: TrainingDistribution,
    where: str,
) -> DriftCounts:
    """Count rows and their scores.

    Shape:
        - probabilities_NL: ``(N, L)``
    """
    preprocessor = reference.preprocessor
    columns = count_values(rows, preprocessor, where)
    scores = {
        label: count_up_to(probabilities_NL[:, index], reference.scores[label]["knots"])
        for index, label in enumerate(labels)
        if label in reference.scores
    }
    unseen = {
        feature.name: _unseen_values(rows.column(feature.name), feature)
        for feature in preprocessor.category_features
        if columns[feature.name][UNSEEN]
    }
    return DriftCounts(rows=len(rows), columns=columns, scores=scores, unseen=unseen)


def _unseen_values(column: pa.Array, feature: CategoryFeature) -> list[str]:
    values = pc.unique(column).cast(pa.string()).drop_null()
    known = pc.is_in(values, value_set=feature.values[0])
    found: list[str] = values.filter(pc.invert(known)).to_pylist()
    return sorted(found)[:EXAMPLES]
