"""Log-odds of a model for rows, and for the same rows with columns changed.

Shape suffixes: N rows, M changed rows, L labels, P values.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from dkan_core.explanation.columns import Rows, Settings, changed_rows
from dkan_core.scoring.probabilities import chunks_of
from dkan_core.utils.arrays import Arrays, Float64

# Changed rows to build at once: two batches of scoring. More would take memory and be no faster.
CHUNK_ROWS = 32_768
# Limit for wide data: 32 MB of uint8 scores, 128 MB of codes.
CHUNK_CELLS = 1 << 25

LogOdds = Callable[[Arrays], Float64]
"""Prepared arrays to log-odds ``(N, L)``."""

Change = tuple[Rows, Settings]
"""The changed rows (M), and their new values in some columns."""

Item = TypeVar("Item")


class Response:
    """The log-odds that a function gives to rows, and to the same rows with some columns changed.

    Args:
        function: The function, for example a model of any kind.
        arrays: The rows.
        log_odds_NL: Of the rows as they are, where they are known already.
    """

    def __init__(self, function: LogOdds, arrays: Arrays, log_odds_NL: Float64 | None = None) -> None:
        self._function = function
        self._step = max(1, min(CHUNK_ROWS, CHUNK_CELLS // width(arrays)))
        self.arrays = arrays
        self.log_odds_NL = function(arrays) if log_odds_NL is None else log_odds_NL

    def to_changed(self, rows_M: Rows, settings: Settings) -> Float64:
        """Return the log-odds ``(M, L)`` of rows with some columns changed.

        Args:
            rows_M: Which rows; one may be changed in several ways.
            settings: The columns, each with M values.
        """
        parts = [self._answer(rows_M[part], cut(settings, part)) for part in chunks_of(len(rows_M), self._step)]
        return np.concatenate(parts)

    def of_members(self, rows_M: Rows, settings: Settings) -> Float64:
        """Return the first label's log-odds of changed rows, and beside them what each member of an ensemble says.

        The arguments are those of ``to_changed``.

        Shape:
            - Output: ``(M, 1 + members)``; a function has no members
        """
        return self.to_changed(rows_M, settings)[:, :1]

    def to_changes(self, changes: Iterable[Change]) -> Iterator[Float64]:
        """Yield what ``to_changed`` returns for each of many changes, some of which may be scored together."""
        return (self.to_changed(*change) for change in changes)

    def _answer(self, rows_M: Rows, settings: Settings) -> Float64:
        """Return what ``to_changed`` does, of as many rows as are built at once."""
        return self._function(changed_rows(self.arrays, rows_M, settings))


def respond(response: Response, count: int, settings: Settings) -> Float64:
    """Return what ``respond_by_member`` does, ``(P, N)``, without the members."""
    rows_M, repeated = _repeated(count, settings)
    return response.to_changed(rows_M, repeated)[:, 0].reshape(-1, count)


def respond_by_member(response: Response, count: int, settings: Settings) -> Float64:
    """Return the first label's log-odds of the first rows with the columns set to each of P values.

    Args:
        response: Of the rows.
        count: How many rows, N.
        settings: Columns, each with P values; the columns take their first value together, then their second, ...

    Shape:
        - Output: ``(P, N, 1 + members)``, the ensemble first
    """
    rows_M, repeated = _repeated(count, settings)
    answered = response.of_members(rows_M, repeated)
    return answered.reshape(-1, count, answered.shape[1])


def _repeated(count: int, settings: Settings) -> tuple[Rows, Settings]:
    """Return the first rows once for each value, with the values repeated."""
    index_M, rows_M = np.divmod(np.arange(len(settings[0][1]) * count), count)
    return rows_M, cut(settings, index_M)


def cut(settings: Settings, part: slice | Rows) -> Settings:
    """Return the values of some of the changed rows."""
    return [(column, cells[part]) for column, cells in settings]


def grouped(items: Iterable[Item], size: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Yield items in groups of at most this size in all; a larger item is a group by itself.

    >>> [*grouped([1, 1, 3, 1], int, 2)]
    [[1, 1], [3], [1]]
    """
    group: list[Item] = []
    for item in items:
        if group and sum(map(size, [*group, item])) > most:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def row_count(arrays: Arrays) -> int:
    """Return N, the number of rows."""
    return len(next(iter(arrays.values())))


def width(arrays: Arrays) -> int:
    """Return the number of values that one row holds."""
    return sum(array.shape[1] for array in arrays.values())


def first_rows(arrays: Arrays, count: int) -> Arrays:
    """Return the first rows, which are a fair sample of all."""
    return {name: array[:count] for name, array in arrays.items()}


def affordable_rows(arrays: Arrays, passes: int, cells: float, least: int = 64) -> int:
    """Return how many rows to take.

    Args:
        arrays: The rows there are.
        passes: How often each row that is taken will be scored.
        cells: Values that all passes together should read at most.
        least: Rows to take even where that exceeds ``cells``; fewer would make the mean over rows a matter of chance.
    """
    return min(row_count(arrays), max(least, int(cells / max(1, passes * width(arrays)))))
