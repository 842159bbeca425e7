"""Which columns of source files are used, and which must be in every file."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class ColumnRequirements:
    """What the columns of the source files are for, as far as that is known before these are read."""

    needed: Collection[str] = ()
    """Columns that cannot be left out, such as labels."""

    labels: Collection[str] = ()
    """Those of them that are labels, in which true and false are 1 and 0."""

    dropped: Collection[str] = ()
    """Columns that are not used, whatever they are."""

    categories: Collection[str] = ()
    """Columns whose whole numbers are read as text, as they are categories."""

    others: bool = True
    """Whether all other columns are used, as features."""

    roles: Mapping[str, str] = field(default_factory=dict)
    """By role, as a setting names it, the columns that need a value in each row."""

    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """Wanted types: floats without any value are read as text where text is wanted, and times of several zones in the
    wanted zone."""

    def uses(self, name: str) -> bool:
        """Return whether a column must be in every file, of a type that fits that of the others."""
        return name in self.needed or (self.others and name not in self.dropped)

    def zone(self, name: str) -> str | None:
        """Return the time zone that times of several zones are read in; None where it would decide what is learned."""
        if name in self.types:
            return getattr(self.types[name], "tz", None)
        return "UTC" if name in self.needed else None
