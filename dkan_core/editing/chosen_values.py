"""Which values of a term an edit applies to: a range, categories, weekdays, or the missing ones.

Shape suffixes: C cells of a term.
"""

import datetime
import logging
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.encoding.preprocessor import FIRST_CODE, MISSING, Preprocessor
from dkan_core.editing.edits import Edit
from dkan_core.errors import ConfigError
from dkan_core.explanation.additive import TermGroup
from dkan_core.explanation.columns import Column, source_columns
from dkan_core.explanation.grid import written_value
from dkan_core.explanation.scales import WEEKDAYS
from dkan_core.explanation.term_cells import TermCells, codes_of_values, score_rows
from dkan_core.explanation.term_tables import bin_starts
from dkan_core.model.additive_terms import AdditiveTerms
from dkan_core.utils.messages import hint

logger = logging.getLogger(__name__)

Mask = npt.NDArray[np.bool_]

UNKNOWN = "missing"
"""Stands for missing values among ``values``, unless a category has this name."""


def chosen_values(
    edit: Edit, cells: TermCells, group: TermGroup, terms: AdditiveTerms, preprocessor: Preprocessor, where: str
) -> Mask:
    """Return the mask of a term's cells that an edit applies to.

    Raises:
        ConfigError: The term has no such values.
    """
    if len(group.columns) > 1:
        raise ConfigError(f"{where}: a pair has no range; clip, scale or remove it")
    column = next(each for each in source_columns(preprocessor) if each.name == group.name)
    if column.numeric is None:
        return _categories(edit, cells, column, where)
    if edit.values is None:
        low, high = (_number(edit, name, column, where) for name in ("start", "stop"))
        return _range(low, high, cells, group, terms, column, where)
    chosen_C = np.zeros(len(cells.code_C), dtype=bool)
    for value in edit.values:
        if value == UNKNOWN:
            chosen_C |= (cells.code_C == 0) & np.isnan(cells.value_C)
        elif column.is_weekday:
            day = _weekday(value, where)
            chosen_C |= _range(day, day, cells, group, terms, column, where)
        else:
            raise ConfigError(
                f"{where}: is a numeric column, which has no categories; give start or stop, or the value {UNKNOWN!r}"
            )
    return chosen_C


def _categories(edit: Edit, cells: TermCells, column: Column, where: str) -> Mask:
    if edit.values is None:
        raise ConfigError(f"{where}: is not a numeric column, which a range needs; give values")
    assert column.coded is not None
    codes = {UNKNOWN: MISSING} | {str(name): code for code, name in enumerate(column.coded.names, FIRST_CODE)}
    unknown = [value for value in edit.values if codes.get(value, len(cells.code_C)) >= len(cells.code_C)]
    if unknown:
        known = [value for value in codes if value not in unknown and codes[value] < len(cells.code_C)]
        raise ConfigError(f"{where}: {unknown[0]!r} has no value of its own; {hint(unknown[0], known, known)}")
    return np.isin(cells.code_C, [codes[value] for value in edit.values])


def _number(edit: Edit, name: str, column: Column, where: str) -> float:
    """Return an end of a range in the unit of the prepared column; infinite where it is left out."""
    end = getattr(edit, name)
    if end is None:
        return -np.inf if name == "start" else np.inf
    if not isinstance(end, str):
        return float(end)
    if column.is_weekday:
        return _weekday(end, where)
    if not column.is_time:
        raise ConfigError(f"{where}: {name}: expected a number, got {end!r}{_time_of_day_hint(end)}")
    return _seconds(end, name, column, where)


def _time_of_day_hint(text: str) -> str:
    """Return how to write a time of day; empty where the text is none."""
    # A colon is required, as ISO 8601 would read 2024-01-01 as a time of 20:24 with a time zone.
    with suppress(ValueError):
        time = datetime.time.fromisoformat(text) if ":" in text else None
        if time is not None:
            return f"; times of day are in seconds: {(time.hour * 60 + time.minute) * 60 + time.second}"
    return ""


def _weekday(value: str, where: str) -> float:
    if value not in WEEKDAYS:
        raise ConfigError(f"{where}: {value!r} is not a weekday; expected one of {', '.join(WEEKDAYS)}")
    return float(WEEKDAYS.index(value))


def _seconds(text: str, name: str, column: Column, where: str) -> float:
    """Return an ISO 8601 date or time in seconds since 1970; a range that stops at a date includes the whole day."""
    assert column.numeric is not None and column.numeric.time is not None
    zone = column.numeric.time.zone
    try:
        try:
            of_day = datetime.time.min if name == "start" else datetime.time.max
            time = datetime.datetime.combine(datetime.date.fromisoformat(text), of_day)
        except ValueError:
            time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{where}: {name}: {text!r} is not a date or time; expected one such as 2024-05-31 or 2024-05-31T18:00"
        ) from None
    if time.tzinfo is not None:
        if zone is None:
            raise ConfigError(f"{where}: {name}: {text!r} has a time zone, and the column has none")
        return time.timestamp()
    found = pa.scalar(time, pa.timestamp("us"))
    if zone is not None:
        found = pc.assume_timezone(found, zone, ambiguous="earliest", nonexistent="earliest")
    return float(found.value / 1e6)


def _range(
    low: float, high: float, cells: TermCells, group: TermGroup, terms: AdditiveTerms, column: Column, where: str
) -> Mask:
    """Return which cells of a number lie in a range."""
    if low > high:
        raise ConfigError(f"{where}: start {_told(low, column)} is above stop {_told(high, column)}")
    lowest, highest = column.knots[[0, -1]]
    assert column.numeric is not None
    term = terms.layout.terms[group.indices[0]]
    if term in terms.layout.binary:
        return _one_of_two(low, high, cells, column, where)
    first, last = score_rows(terms, term, codes_of_values(np.array([low, high]), column.numeric)) - term.first
    inside_C = (cells.code_C >= first) & (cells.code_C <= last) & (cells.code_C > 0)
    exact_C = ~np.isnan(cells.value_C)
    chosen_C = np.where(exact_C, (cells.value_C >= low) & (cells.value_C <= high), inside_C)
    if not cells.weight_C[chosen_C].any():
        raise ConfigError(
            f"{where}: no row of the training data has values {_told_range(low, high, column)}; nearly all are "
            f"{_told_range(lowest, highest, column)}"
        )
    # A range up to the end of the known values includes outliers.
    low, high = low if low > lowest else -np.inf, high if high < highest else np.inf
    start, stop = bin_starts(terms, term, column, np.array([first, last + 1]))
    if step := column.step:
        low, start, high = np.ceil(low / step) * step, np.ceil(start / step) * step, np.floor(high / step) * step
        stop = (np.ceil(stop / step) - 1) * step
    # If all rows of a code have frequent values, only these count.
    start, stop = start if cells.weight_C[first] else low, stop if cells.weight_C[last] else high
    if start < low or stop > high:
        logger.warning(
            "%s: changes all values %s: start or stop lies inside a code, which changes as a whole%s",
            where,
            _told_range(start, stop, column),
            "; frequent values beyond start and stop stay" if exact_C.any() else "",
        )
    return chosen_C


def _one_of_two(low: float, high: float, cells: TermCells, column: Column, where: str) -> Mask:
    """Return which cells of a number that has at most two values lie in a range."""
    lower, upper = column.knots[[0, -1]]
    value_C = np.where(np.isnan(cells.value_C), np.array([np.nan, lower, upper])[cells.code_C], cells.value_C)
    chosen_C: Mask = (value_C >= low) & (value_C <= high)
    if not chosen_C.any():
        raise ConfigError(
            f"{where}: the column has the values {_told(lower, column)} and {_told(upper, column)}, none there"
        )
    return chosen_C


def _told_range(start: float, stop: float, column: Column) -> str:
    if not np.isfinite(start):
        return f"up to {_told(stop, column)}"
    if not np.isfinite(stop):
        return f"from {_told(start, column)} on"
    return f"from {_told(start, column)} to {_told(stop, column)}"


def _told(value: float, column: Column) -> str:
    if column.is_calendar and np.isfinite(value):
        return written_value(column, value)
    return f"{value:.0f}" if value == np.rint(value) and abs(value) < 2**53 else f"{value:g}"
