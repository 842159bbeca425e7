"""A split of prepared data, as a manifest lists it."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from dkan_core.data.format.shard_writer import Shard
from dkan_core.utils.schemas import Schema

# More rows than any data set has, and few enough that sums and products of such counts stay exact in int64.
Count = Annotated[int, Field(ge=0, lt=1 << 48)]
Name = Annotated[str, Field(min_length=1)]


class SplitInfo(Schema):
    """One split of prepared data."""

    rows: int
    """Rows of all its shards."""

    classes: dict[str, dict[str, Count]]
    """By label, how many rows hold "0", "1" and "null" (not measured)."""

    shards: list[Shard]
    """Its files; none for rows in memory."""

    def joined(self, other: "SplitInfo") -> "SplitInfo":
        """Return both splits as one, the other's rows after these."""
        classes = {
            label: {name: count + other.classes[label][name] for name, count in counts.items()}
            for label, counts in self.classes.items()
        }
        return SplitInfo(rows=self.rows + other.rows, classes=classes, shards=[*self.shards, *other.shards])

    @property
    def bytes(self) -> int:
        """Bytes of all its files."""
        return sum(shard.bytes for shard in self.shards)


# The keys of ``SplitInfo.classes`` are text, as JSON requires; null is "not measured".
CLASSES = {"0", "1", "null"}


class WrittenSplit(SplitInfo):
    """A split with rows, in files."""

    rows: Annotated[int, Field(ge=1, lt=1 << 48)]
    shards: Annotated[list[Shard], Field(min_length=1)]

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        found = sum(shard.rows for shard in self.shards)
        if found != self.rows:
            raise ValueError(f"has {self.rows:,} rows, its shards {found:,}")
        for label, counts in self.classes.items():
            if set(counts) != CLASSES or sum(counts.values()) != self.rows:
                raise ValueError(
                    f"classes of {label!r} are {counts}; expected counts of 0, 1 and null, {self.rows:,} in all"
                )
        return self
