"""The roles of columns: features by kind, labels, and what decides weight and split."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from dkan_core.config.prepare import PrepareConfig
from dkan_core.data.source.column_requirements import ColumnRequirements
from dkan_core.data.source.column_types import is_bytes, is_number, is_sparse, is_text, is_uuid
from dkan_core.data.source.times import is_duration, is_time, time_parts
from dkan_core.errors import DataError
from dkan_core.utils.messages import SHOWN, Advice, drop_advice, hint, listed_names

# Settings that name a column which is neither label nor feature.
ROLES = ("group", "split_column", "split_by_time", "weight")
# By role, the types of its columns and the words for these; a column of any type may be dropped.
SCALAR = (is_number, is_text, pa.types.is_boolean, pa.types.is_null)
KINDS = {
    "label": (SCALAR, "0, 1 or null"),
    "categorical": ((is_text, pa.types.is_boolean), "integers, strings or booleans"),
    "group": ((*SCALAR, pa.types.is_temporal, is_bytes, is_uuid), "a number, string, boolean, time or UUID"),
    "split": ((is_text,), "a string"),
    "split_by_time": (
        (is_number, pa.types.is_date, pa.types.is_timestamp),
        "a date, timestamp or number; convert text to timestamps",
    ),
    "weight": ((is_number,), "a number"),
}


@dataclass(frozen=True, kw_only=True)
class ColumnRoles:
    """Roles of the columns."""

    numeric: tuple[str, ...]
    """Numeric feature columns, in file order."""

    times: tuple[str, ...] = ()
    """Feature columns of dates and times, in file order."""

    categorical: tuple[str, ...]
    """String and boolean feature columns, in file order."""

    sparse: tuple[str, ...] = ()
    """Feature columns of lists of ids or of bit vectors, in file order."""

    labels: tuple[str, ...]
    """Label columns, in the order they were asked for."""

    group: str | None
    split_column: str | None
    weight: str | None
    split_by_time: str | None = None

    positive: dict[str, str] = field(default_factory=dict)
    """By label, the value that counts as 1; labels that are not here hold 0 and 1."""

    folders: dict[str, str] = field(default_factory=dict)
    """Types of the columns that are in the names of folders, as ``pyarrow.type_for_alias`` knows them."""

    common: dict[str, str] = field(default_factory=dict)
    """Types of the columns whose type differs between files, as ``pyarrow.type_for_alias`` knows them."""

    keys: str = ""
    """Kind of the values whose keys split the rows: "numbers", "times", or "texts" (also bytes, UUIDs and booleans).
    Equal values have the same key. Empty where rows are split otherwise."""

    has_new_keys: bool = False
    """Whether version 0.2 had other keys for these values, as for times, floats and decimals: it told types and units
    apart."""

    @property
    def columns(self) -> list[str]:
        """Every column to read."""
        return [*self.features, *self.others]

    @property
    def others(self) -> list[str]:
        """Every column to read that is no feature."""
        return [*self.labels, *filter(None, (getattr(self, role) for role in ROLES))]

    @property
    def features(self) -> list[str]:
        """Every feature column."""
        return [*self.numeric, *self.times, *self.categorical, *self.sparse]


def assign_roles(
    types: dict[str, pa.DataType], config: PrepareConfig, where: str, empty: Collection[str] = ()
) -> ColumnRoles:
    """Give every column its role.

    Args:
        types: Type of each column.
        config: Which columns are labels, group, split, weight or dropped.
        where: The files, as messages should call them.
        empty: Columns that are known to hold no value, none of which may be a feature.

    Raises:
        DataError: A named column does not exist, or a feature has a type that is no feature.
    """
    check_roles(types, config, where)
    taken = {*config.label, *config.drop, *special_columns(config).values()}
    features = feature_columns({name: kind for name, kind in types.items() if name not in taken}, where)
    check_split_by_content(features.sparse, config, where)
    check_not_empty([name for name in types if name in empty and name not in taken], where)
    return ColumnRoles(
        **features._asdict(), **special_columns(config), labels=config.label, positive=config.positive_values
    )


def check_not_empty(useless: Sequence[str], where: str) -> None:
    """Raise DataError if some columns that should be features are known to hold no value."""
    if useless:
        what = f"column {useless[0]!r} holds" if len(useless) == 1 else f"{len(useless):,} columns hold"
        listed = "" if len(useless) == 1 else f": {listed_names(useless)}"
        raise DataError(f"{where}: {what} no value in any row{listed}; {drop_advice(useless)}")


def split_keys(types: dict[str, pa.DataType], config: PrepareConfig, features: Sequence[str]) -> dict[str, Any]:
    """Return the fields of ``ColumnRoles`` about the keys by which rows are split, for columns of these types."""
    if config.split_column is not None or config.split_by_time is not None:
        return {}
    if config.group is not None:
        kind = types[config.group]
        if is_number(kind):
            return {"keys": "numbers", "has_new_keys": not pa.types.is_integer(kind)}
        has_times = is_time(kind) or is_duration(kind)
        return {"keys": "times" if has_times else "texts", "has_new_keys": has_times}
    # Keys of content changed since version 0.2 only where it includes times.
    if config.split_by == "content" and any(is_time(types[name]) or is_duration(types[name]) for name in features):
        return {"keys": "times", "has_new_keys": True}
    return {}


def special_columns(config: PrepareConfig) -> dict[str, Any]:
    """Return by role the column that has it, of those that are neither label nor feature; None where there is none."""
    return {role: getattr(config, role) for role in ROLES}


def column_requirements(config: PrepareConfig) -> ColumnRequirements:
    """Return which columns the source files must have, and which are left out."""
    roles = {role: name for role, name in special_columns(config).items() if name is not None}
    return ColumnRequirements(
        needed={*config.label, *roles.values()},
        labels=config.label,
        dropped=config.drop,
        roles=roles,
        categories=config.categorical,
    )


def check_roles(types: dict[str, pa.DataType], config: PrepareConfig, where: str) -> None:
    """Raise DataError when a column named in ``config`` does not exist, or has a type that its role cannot use."""
    several = {"label": config.label, "drop": config.drop, "categorical": config.categorical}
    named = [(role, name) for role, names in several.items() for name in names]
    special = special_columns(config).items()
    named += [(role.removesuffix("_column"), name) for role, name in special if name is not None]
    for role, name in named:
        if name not in types:
            meant = hint(name, types, list(types), cutoff=0.6)
            raise DataError(f"{where}: {role} column {name!r} does not exist; {meant}")
    for role, name in named:
        if role == "drop":
            continue
        fitting, wanted = KINDS[role]
        if not any(fits(types[name]) for fits in fitting):
            raise DataError(f"{where}: {role} column {name!r} is {types[name]}; expected {wanted}")


class Features(NamedTuple):
    """Names of feature columns, each in file order."""

    numeric: tuple[str, ...]
    times: tuple[str, ...]
    categorical: tuple[str, ...]
    sparse: tuple[str, ...]


def is_feature(kind: pa.DataType) -> bool:
    """Return whether columns of a type can be features."""
    return any(fits(kind) for fits in (is_number, is_duration, is_time, is_text, pa.types.is_boolean, is_sparse))


def check_kinds(types: dict[str, pa.DataType], where: str, advice: Advice = drop_advice) -> None:
    """Raise DataError where columns have types that are no features; the message names all of them.

    Args:
        types: Type of each column.
        where: The files, as messages should call them.
        advice: Says of columns how to leave them out. Default: with an option.
    """
    others = {name: kind for name, kind in types.items() if not is_feature(kind)}
    if others:
        found = {name: "has no values" if pa.types.is_null(kind) else f"is {kind}" for name, kind in others.items()}
        shown = ", ".join(f"column {name!r} {what}" for name, what in [*found.items()][:SHOWN])
        if not all(map(pa.types.is_null, others.values())):
            shown += "; a feature is a number, string, boolean, date, time, duration, list of integers or bit vector"
        raise DataError(f"{where}: {shown}; {advice([*others])}")


def feature_columns(types: dict[str, pa.DataType], where: str) -> Features:
    """Return the feature columns by kind.

    Raises:
        DataError: A feature has a type that is no feature, or there is none.
    """
    check_kinds(types, where)
    for name, kind in types.items():
        taken = [part.name for part in time_parts(name, kind)[1:] if part.name in types] if is_time(kind) else []
        if taken:
            raise DataError(f"{where}: column {taken[0]!r} is also made from {name!r} ({kind}); drop one of the two")
    if not types:
        raise DataError(f"{where}: no feature column is left")
    numeric = tuple(name for name, kind in types.items() if is_number(kind) or is_duration(kind))
    times = tuple(name for name, kind in types.items() if is_time(kind))
    sparse = tuple(name for name, kind in types.items() if is_sparse(kind))
    others = {*numeric, *times, *sparse}
    categorical = tuple(name for name in types if name not in others)
    return Features(numeric, times, categorical, sparse)


def check_split_by_content(sparse: Sequence[str], config: PrepareConfig, where: str) -> None:
    """Raise DataError where rows are to be split by their content, and that holds lists of ids or bit vectors."""
    if sparse and config.splits_at_random and config.split_by == "content":
        raise DataError(f"{where}: column {sparse[0]!r} holds IDs; split_by content is for other columns: split by row")
