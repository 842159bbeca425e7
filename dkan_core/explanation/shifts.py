"""What has changed since an earlier model: how much columns count, their curves, and the scores of rows."""

from dataclasses import dataclass

from dkan_core.explanation.curves import Curve

# In log-odds; smaller changes are rounding.
LEAST_CHANGE = 5e-4


@dataclass(frozen=True, kw_only=True)
class ColumnShift:
    """How much a column counts in both models."""

    name: str
    effect: float | None
    """In log-odds, as in ``Importance``; None where the model does not read the column."""

    earlier_effect: float | None

    @property
    def change(self) -> float:
        """By how much the effect has grown; a column that is not read has none."""
        return (self.effect or 0.0) - (self.earlier_effect or 0.0)


@dataclass(frozen=True, kw_only=True)
class ContributionShift:
    """By how much more a column adds to a row's log-odds than in the earlier model."""

    column: str
    value: str
    log_odds: float


@dataclass(frozen=True, kw_only=True)
class RowShift:
    """A row whose score changed."""

    number: int
    """Row number among the rows read, from 0."""

    probability: float
    earlier_probability: float
    log_odds: float
    earlier_log_odds: float
    reasons: list[ContributionShift]
    """The strongest ones; empty where a model does not hold the distribution of its training rows."""

    @property
    def change(self) -> float:
        """By how much the log-odds have risen."""
        return self.log_odds - self.earlier_log_odds


@dataclass(frozen=True, kw_only=True)
class ExplanationComparison:
    """What an earlier model had learned, as the explanation of a newer one holds it."""

    model: str
    """Where it lies."""

    only_here: list[str]
    """Columns that the earlier model does not read, or reads as another kind."""

    only_there: list[str]
    """Columns that the model does not read, or reads as another kind; missing in every row for the earlier one."""

    importance: list[ColumnShift]
    """All columns of both, the largest change first."""

    curves: list[Curve]
    """The earlier model's, of those columns whose curves the explanation has."""

    rows: list[RowShift]
    """The rows whose log-odds changed the most."""

    mean_change: float
    """Mean absolute change of the log-odds over all rows read."""

    @property
    def changed(self) -> list[ColumnShift]:
        """Columns whose effect changed by more than rounding, the largest change first."""
        return [shift for shift in self.importance if abs(shift.change) >= LEAST_CHANGE]

    def curve_of(self, name: str) -> Curve | None:
        """Return the earlier curve of a column."""
        return next((curve for curve in self.curves if curve.name == name), None)
