"""Dates, times and durations as numbers: seconds, and the parts of the calendar."""

from contextlib import suppress
from typing import Annotated, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from dkan_core.data.source.column_types import is_text
from dkan_core.errors import DataError
from dkan_core.utils.messages import shown
from dkan_core.utils.schemas import Schema

Part = Literal["seconds", "month", "day", "weekday", "hour"]
"""The year is in the seconds. Minutes of real times are mostly where a schedule or a log happened to begin."""

# In ISO 8601, without a zone and with one.
EXAMPLES = ("2024-05-31T18:00:00", "2024-05-31T18:00:00+02:00")

PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class TimePart(Schema):
    """The part of a column of dates or times that a numeric feature holds."""

    column: str
    """The source column."""

    part: Part
    """Seconds since 1970 (in UTC where there is a zone), month, day of the month, weekday (0 is Monday), or hour."""

    zone: Annotated[str, Field(min_length=1)] | None
    """Time zone of the training data, in which month, day, weekday and hour are; None where times had none."""

    @property
    def name(self) -> str:
        """What the feature is called.

        >>> TimePart(column="departure", part="hour", zone=None).name
        'departure.hour'
        """
        return self.column if self.part == "seconds" else f"{self.column}.{self.part}"


def is_time(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds dates, or dates with times."""
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def is_duration(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds durations or times of the day, which are numbers of seconds."""
    return bool(pa.types.is_duration(kind) or pa.types.is_time(kind))


def _zone_of(kind: pa.DataType) -> str | None:
    """Return the time zone of a column of dates or times."""
    return kind.tz if pa.types.is_timestamp(kind) else None


def time_parts(name: str, kind: pa.DataType) -> list[TimePart]:
    """Return the parts that a column of dates or times may have.

    >>> [part.name for part in time_parts("day", pa.date32())]
    ['day', 'day.month', 'day.day', 'day.weekday']
    """
    parts = [part for part in get_args(Part) if part != "hour" or pa.types.is_timestamp(kind)]
    return [TimePart(column=name, part=part, zone=_zone_of(kind)) for part in parts]


def in_units(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return durations, times of the day or timestamps as int64, in the unit that they are stored in."""
    stored = pa.int32() if pa.types.is_time32(column.type) else pa.int64()
    return column.cast(stored).cast(pa.int64())


def dates_as_timestamps(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return dates as timestamps; other columns are returned as they are."""
    if not pa.types.is_date(column.type):
        return column
    return column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))


def in_seconds(column: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return durations, times of the day or timestamps as float64 seconds, the same for every unit they are stored in.

    >>> in_seconds(pa.array([1500, None], pa.duration("ms"))).to_pylist()
    [1.5, None]
    """
    counts, per_second = in_units(column), PER_SECOND[column.type.unit]
    # Whole seconds and the rest are converted apart: nanoseconds since 1970 exceed the precision of float64.
    seconds = pc.divide(counts, per_second)
    rest = pc.subtract(counts, pc.multiply(seconds, per_second))
    return pc.add(seconds.cast(pa.float64(), safe=False), pc.divide(rest.cast(pa.float64()), float(per_second)))


def read_part(column: pa.ChunkedArray | pa.Array, part: TimePart, where: str) -> pa.ChunkedArray | pa.Array:
    """Return a part of dates or times: seconds as float64, others as int64.

    Raises:
        DataError: The column holds something else, or its zone is not known on this machine.
    """
    kind = column.type
    if pa.types.is_null(kind):
        return column.cast(pa.float64())
    if not fits_zone(kind, part.zone):
        raise DataError(
            f"{where}: column {part.column!r} is {kind}; the model was trained with {expected(part.zone)} there"
        )
    column = dates_as_timestamps(column)
    if part.part == "seconds":
        return in_seconds(column)
    try:
        read = {"month": pc.month, "day": pc.day, "weekday": pc.day_of_week, "hour": pc.hour}[part.part]
        # The same instants, shown in the zone of training: the hour depends on the zone.
        return read(column.cast(pa.timestamp(column.type.unit, part.zone)))
    except pa.ArrowInvalid as error:
        raise DataError(f"{where}: column {part.column!r}: no calendar date can be read ({error})") from error


def fits_zone(kind: pa.DataType, zone: str | None) -> bool:
    """Return whether a column can be read as dates or times with a zone, or without one: no zone is guessed."""
    return pa.types.is_null(kind) or (is_time(kind) and (_zone_of(kind) is None) == (zone is None))


def expected(zone: str | None) -> str:
    """Return the words for dates and times with a zone, or without one, for messages."""
    return "dates or times without a zone" if zone is None else f"times with a zone ({zone})"


def parsed_times(column: pa.Array, kind: pa.DataType, name: str, where: str) -> pa.Array:
    """Return dates and times, which JSON has as text, as such; other columns are returned as they are.

    Args:
        column: The column.
        kind: Timestamps in microseconds, in the zone of training.
        name: The column's name.
        where: The rows, as messages should call them.

    Raises:
        DataError: A text is no date or time, or has a zone where training had none, or none where it had one.
    """
    if not is_text(column.type):
        return column
    # Digits beyond microseconds are dropped, as in batch scoring.
    finest = pa.timestamp("ns", kind.tz)
    for parsed in (kind, finest):
        with suppress(pa.ArrowInvalid):
            return column.cast(parsed).cast(kind, safe=False)
    for number, value in enumerate(column):
        try:
            value.cast(finest)
        except pa.ArrowInvalid:
            raise DataError(
                f"{where}: row {number}: column {name!r}: expected {expected(kind.tz)} in ISO 8601, "
                f"such as {EXAMPLES[kind.tz is not None]}, found {shown(value.as_py())}"
            ) from None
    raise AssertionError("a column was refused, and none of its values")
