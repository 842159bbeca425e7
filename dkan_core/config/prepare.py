"""Settings of ``dkan prepare``: how raw Parquet becomes prepared shards."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dkan_core.config.schema import INITIAL_MODEL, STRICT, reports_config_errors, setting
from dkan_core.errors import ConfigError
from dkan_core.utils.messages import hint

# In the order of the shares in ``split``; arrays of the preparation have an entry for each in this order, too.
SPLITS = ("train", "valid", "test")

# Of a row. The sum of a billion such weights is still a float32; infinity would make every loss NaN.
MAX_WEIGHT = 1e30


@reports_config_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrepareConfig:
    """How raw Parquet becomes prepared shards."""

    label: tuple[str, ...] = setting((), "Data", form=True)
    """Label column, holding 0, 1 or null (not measured); several make it multi-label. Default: those of `like`."""

    positive: tuple[str, ...] = setting((), "Data", form=True)
    """Value of the label that counts as 1, such as late; all other values count as 0. With several labels,
    LABEL=VALUE for each that does not hold 0 and 1. Default: labels hold 0 and 1."""

    drop: tuple[str, ...] = setting((), "Data", form=True)
    """Column to leave out."""

    categorical: tuple[str, ...] = setting((), "Data", form=True)
    """Column of integers that are codes, such as user or product IDs: each value is a category, not a number."""

    group: str | None = setting(None, "Data", form=True)
    """Column whose equal values stay together in one split, unless another column decides the splits. It is not used
    as a feature. Default: every row by itself."""

    split_column: str | None = setting(None, "Data", form=True)
    """Column holding train, valid or test for each row; it is not used as a feature. Default: split by hash."""

    split_by_time: str | None = setting(None, "Data", form=True)
    """Column of times, dates or numbers: earliest rows train, next valid, latest test; it is not used as a feature."""

    split: str = setting("70/10/20", "Data", form=True)
    """Percentages of rows (or groups) in train/valid/test, unless `split_column` is given."""

    split_by: Literal["row", "content"] = setting("row", "Data", form=True)
    """What is hashed: the row's number, or its features, so that a row stays in its split when data are added."""

    weight: str | None = setting(None, "Data", form=True)
    """Column holding a non-negative weight for each row; it is not used as a feature. Default: equal weights."""

    # uint8 lost no ROC AUC against float32 (0.7672 and 0.7671), at a quarter of the bytes to read in every epoch.
    numeric_dtype: Literal["uint8", "float16", "float32"] = setting("uint8", "Data", form=True)
    """Storage type of the numeric columns, which are stored as normal scores."""

    max_categories: Annotated[int | None, Field(ge=1, le=65_536)] = setting(None, "Data", form=True)
    """Maximum number of values of a string column, or of IDs in lists, with codes of their own. Rarer ones share
    codes by hash. Default: all that repeat."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = setting(0, "Data", form=True)
    """Seed of the split, of the sample that statistics are computed from, and of the shuffle."""

    like: str | None = setting(None, "Data", form=INITIAL_MODEL)
    """Model or prepared data (path or URI) whose encoding and labels are used instead of fitting an encoding."""

    extend: bool = setting(False, "Data")
    """Also make features of columns that `like` lacks, and let `label` add labels to its own."""

    def __post_init__(self) -> None:
        if not self.label and self.like is None:
            raise ConfigError("label: name at least one label column")
        deciding = {"split_column": self.split_column, "split_by_time": self.split_by_time}
        given = {role: column for role, column in deciding.items() if column is not None}
        repeated = [name for name in self.label if self.label.count(name) > 1]
        if repeated:
            raise ConfigError(f"label {repeated[0]!r} is named twice; name each label once")
        single = {**given, "group": self.group, "weight": self.weight}
        named = {"label": self.label, "drop": self.drop, "categorical": self.categorical}
        named |= {role: (name,) for role, name in single.items() if name is not None}
        for name in sorted({name for names in named.values() for name in names}):
            role, *others = [each for each, names in named.items() if name in names]
            if others:
                raise ConfigError(f"column {name!r} has two roles, {role} and {others[0]}; a column can have only one")
        if len(given) > 1:
            (role, column), (other, removed) = given.items()
            raise ConfigError(f"{role} {column!r} already determines the splits; remove {other} {removed!r}")
        given |= {} if self.group is None else {"group": self.group}
        if self.split_by == "content" and given:
            column = next(iter(given.values()))
            raise ConfigError(f"split_by content: column {column!r} already determines the splits; leave out one")
        if self.label:
            self.positive_values  # noqa: B018 - raises when malformed
        # Checked here and not when the rows are split, after a first pass over them.
        self.split_percent  # noqa: B018 - raises when malformed

    @property
    def has_groups(self) -> bool:
        """Whether it is known which rows belong together: those of a group, or of one time."""
        return self.group is not None or self.split_by_time is not None

    @property
    def splits_at_random(self) -> bool:
        """Whether no column decides the splits."""
        return self.split_column is None and self.split_by_time is None and self.group is None

    @property
    def positive_values(self) -> dict[str, str]:
        """By label, the value that counts as 1.

        >>> PrepareConfig(label=("outcome",), positive=("late",)).positive_values
        {'outcome': 'late'}
        >>> PrepareConfig(label=("outcome", "paid"), positive=("outcome=late",)).positive_values
        {'outcome': 'late'}
        """
        found: dict[str, str] = {}
        for text in self.positive:
            # A name may hold a sign of equality, too: the longest that fits is meant.
            named = max((label for label in self.label if text.startswith(f"{label}=")), key=len, default=None)
            if named is None and len(self.label) > 1:
                raise ConfigError(f"positive {text!r}: {self._advice(text)}")
            label, value = (self.label[0], text) if named is None else (named, text[len(named) + 1 :])
            if label in found:
                raise ConfigError(f"positive: label {label!r} has two values, {found[label]!r} and {value!r}; name one")
            found[label] = value
        return found

    def _advice(self, positive: str) -> str:
        """Return what to write instead of a value that none of several labels is named with."""
        name, sign, _ = positive.partition("=")
        if sign:
            return f"{name!r} is not a label; {hint(name, self.label, self.label)}"
        return f"with several labels write LABEL=VALUE, such as '{self.label[0]}={positive}'"

    @property
    def split_percent(self) -> tuple[int, int, int]:
        """Percent of rows in train, valid and test."""
        parts = self.split.split("/")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise ConfigError(f"split must be three integer percentages such as 70/10/20, got {self.split!r}")
        train, valid, test = (int(part) for part in parts)
        if train + valid + test != 100 or train == 0 or valid == 0:
            raise ConfigError(f"split must add up to 100, with train and valid above 0, got {self.split!r}")
        return train, valid, test
