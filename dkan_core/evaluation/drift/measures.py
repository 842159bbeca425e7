"""Drift measures: how far counted rows are from the training rows.

PSI: population stability index, the sum over bins of (new - old) ln(new / old) of the shares; the bins are tenths of
the training rows for a number, the most frequent values for a category, and missing is a bin of its own.
KS: Kolmogorov-Smirnov distance, the largest difference of the distribution functions at the knots.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import FIRST_CODE, MISSING, UNSEEN, CategoryFeature
from dkan_core.errors import ConfigError, GateError
from dkan_core.evaluation.drift.counting import EXAMPLES, DriftCounts, TrainingDistribution, expected_counts
from dkan_core.utils.arrays import Float64, Int64
from dkan_core.utils.messages import one_line, some_of

# The limits below are meant for tenths: more bins give a larger index for the same difference.
PSI_BINS = 10
# Most frequent categories with a bin each. Rarer values share one, as their chance differences would add to the index.
PSI_CATEGORIES = 20
# Smaller shares count as this one: an empty bin would make the index infinite.
MIN_SHARE = 1e-4

# The customary limits of the PSI (Siddiqi 2006, Credit Risk Scorecards): below, a column counts as stable.
MODERATE, LARGE = 0.1, 0.25

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ColumnDrift:
    """How far a column, or a label's score, is from training; a field is None if the model does not know it."""

    name: str

    kind: str
    """number, category or score."""

    psi: float | None

    ks: float | None
    """None for a category, too."""

    missing: float
    """Share of the new rows."""

    missing_in_training: float | None

    unseen_rows: int | None = None
    """Rows of a category that the model does not know."""

    unseen: float | None = None
    """Share of the new rows."""

    unseen_in_training: float | None = None
    """Share of the training rows whose value occurs at most once in the others: the expected share of unseen rows."""

    examples: tuple[str, ...] = ()
    """Some of those categories."""


def check_max_psi(max_psi: float) -> None:
    """Raise ConfigError where a limit is negative or no number."""
    if not max_psi >= 0:
        raise ConfigError(f"max_psi must be at least 0, got {max_psi:g}")


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far new rows are from training, the column with the largest PSI first."""

    rows: int
    columns: tuple[ColumnDrift, ...] = field(repr=False)

    @property
    def max_psi(self) -> float | None:
        """The largest PSI, of columns and scores; None where none is known."""
        return max((column.psi for column in self.columns if column.psi is not None), default=None)

    def check(self, max_psi: float) -> None:
        """Raise GateError if a PSI is above its limit, or if no PSI is known; 0 sets no limit."""
        check_max_psi(max_psi)
        if not max_psi:
            return
        if self.max_psi is None:
            raise GateError(
                f"max_psi {max_psi:g}: the model has no distribution of its training data; "
                "prepare and train again with this version of dkan"
            )
        above = [
            f"{column.kind} {column.name!r} has {column.psi:.4f}"
            for column in self.columns
            if column.psi is not None and column.psi > max_psi
        ]
        if unknown := [f"{column.kind} {column.name!r}" for column in self.columns if column.psi is None]:
            text = "max_psi %g: not compared, as the model does not know its distribution in training: %s"
            logger.warning(text, max_psi, some_of(unknown, EXAMPLES))
        if above:
            raise GateError(f"PSI above max_psi {max_psi:g}: {some_of(above, EXAMPLES)}")

    def is_stable(self, max_psi: float) -> bool:
        """Return whether ``check`` passes; log the reason if it does not."""
        try:
            self.check(max_psi)
        except GateError as error:
            logger.warning("%s", error)
            return False
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        columns = [{**asdict(column), "examples": list(column.examples)} for column in self.columns]
        return {"rows": self.rows, "max_psi": self.max_psi, "columns": columns}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Drift":
        """Return the drift whose ``to_dict`` is given."""
        columns = [ColumnDrift(**{**column, "examples": tuple(column["examples"])}) for column in plain["columns"]]
        return cls(rows=plain["rows"], columns=tuple(columns))

    def __str__(self) -> str:
        names = [one_line(column.name) for column in self.columns]
        width = max(map(len, [*names, "column"]))
        lines = [f"{'column':{width}}  kind      {'PSI':>8} {'KS':>8} {'missing':>8} {'unseen':>8}  drift"]
        for name, column in zip(names, self.columns, strict=True):
            numbers = " ".join(f"{shown(value):>8}" for value in (column.psi, column.ks, column.missing, column.unseen))
            lines.append(f"{name:{width}}  {column.kind:8}  {numbers}  {verdict(column.psi)}")
        return "\n".join(lines)

    # At the end of a notebook's cell as well.
    __repr__ = __str__


def shown(value: float | None) -> str:
    """Return a number as tables show it."""
    return "-" if value is None else f"{value:.4f}"


def verdict(psi: float | None) -> str:
    """Return what a PSI means.

    >>> verdict(0.02), verdict(0.2), verdict(0.3), verdict(None)
    ('stable', 'moderate', 'large', 'unknown')
    """
    if psi is None:
        return "unknown"
    return "stable" if psi < MODERATE else "moderate" if psi < LARGE else "large"


def measure(counts: DriftCounts, reference: TrainingDistribution) -> Drift:
    """Return how far counted rows are from training, the column with the largest PSI first."""
    old = reference.preprocessor.counts or {}
    columns = [
        _number(feature.name, "number", counts.columns[feature.name], old.get(feature.name))
        for feature in reference.preprocessor.numeric
    ]
    columns += [
        _category(feature, counts.columns[feature.name], old.get(feature.name), counts.unseen)
        for feature in reference.preprocessor.category_features
    ]
    columns += [
        _number(label, "score", counts.scores[label], reference.scores[label]["rows"]) for label in counts.scores
    ]
    columns += [
        ColumnDrift(name=label, kind="score", psi=None, ks=None, missing=0.0, missing_in_training=None)
        for label in reference.unknown_scores
    ]
    return Drift(rows=counts.rows, columns=tuple(sorted(columns, key=lambda column: (-(column.psi or 0), column.name))))


def _number(name: str, kind: str, new: Int64, old: list[int] | None) -> ColumnDrift:
    missing = _share(new, 0)
    if old is None:
        return ColumnDrift(name=name, kind=kind, psi=None, ks=None, missing=missing, missing_in_training=None)
    trained = np.array(old, np.int64)
    return ColumnDrift(
        name=name,
        kind=kind,
        psi=_psi(_number_bins(trained), trained, new),
        ks=ks_distance(trained[1:], new[1:]),
        missing=missing,
        missing_in_training=_share(trained, 0),
    )


def _category(
    feature: CategoryFeature, new: Int64, old: list[int] | None, unseen: Mapping[str, list[str]]
) -> ColumnDrift:
    trained = None if old is None else expected_counts(feature, old)
    return ColumnDrift(
        name=feature.name,
        kind="category",
        psi=None if trained is None else _psi(_category_bins(trained), trained, new),
        ks=None,
        missing=_share(new, MISSING),
        missing_in_training=None if trained is None else _share(trained, MISSING),
        unseen_rows=int(new[UNSEEN]),
        unseen=_share(new, UNSEEN),
        unseen_in_training=None if trained is None else _share(trained, UNSEEN),
        examples=tuple(unseen.get(feature.name, ())),
    )


def _number_bins(trained: Int64) -> Int64:
    # Missing values come first in the counts; they get a bin of their own after the tenths.
    return np.append(PSI_BINS, tenths(trained[1:]))


def _category_bins(trained: Int64) -> Int64:
    # Unseen, missing, and each of the most frequent values have a bin; the rest share one.
    return np.minimum(np.arange(len(trained)), FIRST_CODE + PSI_CATEGORIES)


def _psi(bins: Int64, trained: Int64, new: Int64) -> float:
    return population_stability_index(np.bincount(bins, trained), np.bincount(bins, new))


def psi_beyond_chance(column: ColumnDrift, trained: Sequence[int], rows: int) -> float:
    """Return the PSI of a column minus its expected value under equal distributions, but at least 0.

    That is (B - 1) (1/n + 1/m) for B bins that have rows, n of them in training and m new ones (Yurdakul 2018,
    Statistical properties of population stability index).

    Args:
        column: As ``measure`` returns it.
        trained: The counts in training that it was compared with.
        rows: New rows.
    """
    counts = np.array(trained, np.int64)
    bins = _category_bins(counts) if column.kind == "category" else _number_bins(counts)
    filled = int(np.count_nonzero(np.bincount(bins, counts)))
    return max(0.0, (column.psi or 0.0) - (filled - 1) * (1 / max(1, sum(trained)) + 1 / rows))


def _share(counts: Int64, index: int) -> float:
    return float(counts[index] / max(1, counts.sum()))


def tenths(counts: Int64) -> Int64:
    """Return for each of many small bins which tenth of the rows its middle lies in.

    >>> tenths(np.array([5, 5, 30, 10, 50])).tolist()
    [0, 0, 2, 4, 7]
    """
    total = max(1, int(counts.sum()))
    # In units of half a row, so that all middles are integers: rounding could move a float into the next tenth.
    doubled = 2 * np.cumsum(counts) - counts
    bins: Int64 = np.minimum(doubled * PSI_BINS // (2 * total), PSI_BINS - 1)
    return bins


def population_stability_index(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> float:
    """Return the PSI of counts in the same bins, any of which may be empty.

    >>> population_stability_index(np.array([1, 1]), np.array([5, 5]))
    0.0
    """
    shares = [np.maximum(counts / max(1, counts.sum()), MIN_SHARE) for counts in (old, new)]
    psi: Float64 = (shares[1] - shares[0]) * np.log(shares[1] / shares[0])
    return math.fsum(psi)


def ks_distance(old: Int64, new: Int64) -> float | None:
    """Return the largest difference of two distribution functions at the bounds of bins; None where one has no rows.

    >>> ks_distance(np.array([1, 1]), np.array([0, 7]))
    0.5
    """
    if not old.sum() or not new.sum():
        return None
    return float(np.abs(np.cumsum(old) / old.sum() - np.cumsum(new) / new.sum()).max())
