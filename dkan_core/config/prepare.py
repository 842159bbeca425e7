"""Settings of ``dkan prepare``: how raw Parquet becomes prepared shards."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from dkan_core.config.schema import INITIAL_MODEL, STRICT, reports_config_errors, setting
from dkan_core.errors import ConfigError

# In the order of the shares in ``split``; arrays of the preparation have an entry for each in this order, too.
SPLITS = ("train", "valid", "test")


@reports_config_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class PrepareConfig:
    """How raw Parquet becomes prepared shards."""

    label: tuple[str, ...] = setting((), "Data", form=True)
    """Label column, holding 0, 1 or null (not measured); several make it multi-label. Default: those of `like`."""

    drop: tuple[str, ...] = setting((), "Data", form=True)
    """Column to leave out."""

    group: str | None = setting(None, "Data", form=True)
    """Column whose equal values stay in one split; it is not used as a feature. Default: every row by itself."""

    split_column: str | None = setting(None, "Data", form=True)
    """Column holding train, valid or test for each row; it is not used as a feature. Default: split by hash."""

    split: str = setting("70/10/20", "Data", form=True)
    """Percentages of rows (or groups) in train/valid/test when there is no split column."""

    split_by: Literal["row", "content"] = setting("row", "Data", form=True)
    """What is hashed: the row's number, or its features, so that a row stays in its split when data are added."""

    weight: str | None = setting(None, "Data", form=True)
    """Column holding a non-negative weight for each row; it is not used as a feature. Default: equal weights."""

    # uint8 lost no ROC AUC against float32 (0.7672 and 0.7671), at a quarter of the bytes to read in every epoch.
    numeric_dtype: Literal["uint8", "float16", "float32"] = setting("uint8", "Output", form=True)
    """Storage type of the numeric columns, which are stored as normal scores."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = setting(0, "Data", form=True)
    """Seed of the split, of the sample that statistics are computed from, and of the shuffle."""

    like: str | None = setting(None, "Data", form=INITIAL_MODEL)
    """Model or prepared data (path or URI) whose encoding and labels are used instead of fitting an encoding."""

    def __post_init__(self) -> None:
        if not self.label and self.like is None:
            raise ConfigError("label: name at least one label column")
        roles = [*self.label, *self.drop, *filter(None, (self.group, self.split_column, self.weight))]
        twice = sorted({name for name in roles if roles.count(name) > 1})
        if twice:
            raise ConfigError(f"column {twice[0]!r} has two roles; a column can have only one")
        if self.group is not None and self.split_column is not None:
            raise ConfigError(
                f"split_column {self.split_column!r} already determines the splits; remove group {self.group!r}"
            )
        if self.split_by == "content" and (self.group or self.split_column) is not None:
            column = self.group or self.split_column
            raise ConfigError(f"split_by content: column {column!r} already determines the splits; leave out one")
        # Checked here and not when the rows are split, after a first pass over them.
        self.split_percent  # noqa: B018 - raises when malformed

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
