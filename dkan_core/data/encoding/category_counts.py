"""How many rows hold each value of the category columns: exact, and the same however the rows are cut into parts."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dkan_core.data.encoding.raw_columns import column_named, texts_of

# Bounds the memory of all columns together. Measured: some four times as much while millions of values are added up.
MAX_BYTES = 128 << 20
# Of a value besides its text: its number of rows, and its offset.
VALUE_BYTES = 16
# Fewer new entries are not worth adding up.
MIN_ADDED = 1 << 16
FILE_SCHEMA = pa.schema({"column": pa.string(), "value": pa.string(), "rows": pa.int64()})
# Each count begins with it, so that even one of no rows says that the column was counted.
NO_ROWS = pa.table({"value": pa.nulls(1, pa.string()), "rows": [0]})

logger = logging.getLogger(__name__)


def count_texts(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> pa.Table:
    """Return the values of a category column, null always among them, and the rows of each, in any order.

    Args:
        column: Strings or booleans.
        name: Its name.
        where: The rows, as messages should call them.

    >>> count_texts(pa.array(["a", "b", "a"]), "city", "rows").sort_by("rows").to_pydict()
    {'value': [None, 'b', 'a'], 'rows': [0, 1, 2]}
    """
    return _added_up([NO_ROWS, _counted(column, name, where)])


def _counted(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> pa.Table:
    """Return the values and the rows of each; a dictionary may hold a value twice."""
    found = pc.value_counts(column)
    texts = texts_of(found.field("values"), name, where)
    return pa.table({"value": texts, "rows": found.field("counts")})


def _added_up(tables: Sequence[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables(tables).group_by("value", use_threads=False)
    return grouped.aggregate([("rows", "sum")]).rename_columns(NO_ROWS.column_names)


class CategoryCounts:
    """Rows of each value of some columns. A column is given up if its values take too much memory.

    Whether one is depends on all rows alone: if the values of a part take too much, so do those of the whole.

    Args:
        columns: The columns.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._max_bytes = MAX_BYTES // max(1, len(columns))
        # The first table of a column holds what was added up, the others what was not yet.
        self._tables = {name: [NO_ROWS] for name in columns}

    def add(self, rows: pa.RecordBatch | pa.Table, where: str, chosen: pa.Array | None = None) -> None:
        """Count rows.

        Args:
            rows: The rows (N), which may lack some of the columns.
            where: Their file, for messages.
            chosen: Which of them to count (N,). Default: all.
        """
        for name in self._tables.keys() & {*rows.schema.names}:
            column = column_named(rows, name, where)
            self._append(name, _counted(column if chosen is None else column.filter(chosen), name, where))

    def _append(self, name: str, found: pa.Table) -> None:
        first, *others = tables = self._tables[name]
        tables.append(found)
        if sum(map(len, [*others, found])) > max(MIN_ADDED, len(first)):
            self._add_up(name)

    def _add_up(self, name: str) -> None:
        total = _added_up(self._tables[name])
        text_bytes = pc.sum(pc.binary_length(total["value"])).as_py() or 0
        if text_bytes + VALUE_BYTES * len(total) > self._max_bytes:
            logger.info("column %r has too many values to count in all rows: a sample says which are frequent", name)
            del self._tables[name]
        else:
            self._tables[name] = [total]

    def tables(self) -> dict[str, pa.Table]:
        """Return by column what ``count_texts`` does of all rows; columns that were given up are missing."""
        for name in [*self._tables]:
            self._add_up(name)
        return {name: total for name, [total] in self._tables.items()}

    def save(self, path: Path) -> None:
        """Write the counts as a Parquet file."""
        tables = [
            table.add_column(0, "column", pa.repeat(name, len(table))).cast(FILE_SCHEMA)
            for name, table in self.tables().items()
        ]
        pq.write_table(pa.concat_tables([FILE_SCHEMA.empty_table(), *tables]), path)

    @classmethod
    def from_files(cls, columns: Sequence[str], files: Sequence[Callable[[], Any]]) -> Self:
        """Return the counts of all parts.

        Args:
            columns: What was counted.
            files: Each opens a file that ``save`` wrote, for binary reading.
        """
        total = cls(columns)
        for file in files:
            with file() as source:
                rows = pq.read_table(source)
            found, first = {}, 0
            # The rows of a column follow each other.
            for entry in pc.value_counts(rows["column"]).to_pylist():
                found[entry["values"]] = rows.slice(first, entry["counts"]).drop_columns("column")
                first += entry["counts"]
            for name in [*total._tables]:
                if name in found:
                    total._append(name, found[name])
                else:
                    del total._tables[name]
        return total
