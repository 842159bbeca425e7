"""Rows of each category, and of each ID of lists: counted exactly, and the same however rows are cut into parts."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dkan_core.data.encoding.raw_columns import column_named, texts_of
from dkan_core.data.encoding.sparse import count_ids

# Bounds the memory of all columns together. Adding up millions of values was measured to take about four times this.
MAX_BYTES = 128 << 20
# Per value: its row count, and the id or the text's offset. The text itself comes on top.
VALUE_BYTES = 16
# New entries are collected up to this number before they are added up.
MIN_ADDED = 1 << 16
FILE_SCHEMA = pa.schema({"column": pa.string(), "value": pa.string(), "rows": pa.int64()})
# Each count starts with an entry of 0 rows, which shows that the column was counted even where no row had a value.
NO_TEXTS, NO_IDS = (pa.table({"value": pa.nulls(1, kind), "rows": [0]}) for kind in (pa.string(), pa.int64()))

logger = logging.getLogger(__name__)


def count_texts(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> pa.Table:
    """Return the values of a category column, null always among them, and the rows of each, in any order.

    >>> count_texts(pa.array(["a", "b", "a"]), "city", "rows").sort_by("rows").to_pydict()
    {'value': [None, 'b', 'a'], 'rows': [0, 1, 2]}
    """
    return _added_up([NO_TEXTS, _count_texts(column, name, where)])


def _count_texts(column: pa.ChunkedArray | pa.Array, name: str, where: str) -> pa.Table:
    """Return the values and the rows of each; a dictionary may hold a value twice."""
    found = pc.value_counts(column)
    texts = texts_of(found.field("values"), name, where)
    return pa.table({"value": texts, "rows": found.field("counts")})


def _added_up(tables: Sequence[pa.Table]) -> pa.Table:
    grouped = pa.concat_tables(tables).group_by("value", use_threads=False)
    return grouped.aggregate([("rows", "sum")]).rename_columns(NO_TEXTS.column_names)


class ValueCounts:
    """Rows of each value of some columns. A column is no longer counted once its values take too much memory.

    This does not depend on the partition: if the values of a part take too much memory, so do those of all rows.

    Args:
        categorical: Columns of strings or booleans.
        sparse: Columns of lists of ids or of bit vectors: each id that a row has is a value.
    """

    def __init__(self, categorical: Sequence[str], sparse: Sequence[str] = ()) -> None:
        self._max_bytes = MAX_BYTES // max(1, len(categorical) + len(sparse))
        # Per column, the first table holds the sums so far; the others are not yet added.
        self._tables = {name: [NO_TEXTS] for name in categorical} | {name: [NO_IDS] for name in sparse}

    def add(self, rows: pa.RecordBatch | pa.Table, where: str, chosen: pa.Array | None = None) -> None:
        """Count rows.

        Args:
            rows: The rows (N), which may lack some of the columns.
            where: Their file, for messages.
            chosen: Which of them to count (N,). Default: all.
        """
        for name in self._tables.keys() & {*rows.schema.names}:
            column = column_named(rows, name, where)
            count = count_ids if self._holds_ids(name) else _count_texts
            self._append(name, count(column if chosen is None else column.filter(chosen), name, where))

    def _holds_ids(self, name: str) -> bool:
        return bool(self._tables[name][0].schema == NO_IDS.schema)

    def _append(self, name: str, found: pa.Table) -> None:
        first, *others = tables = self._tables[name]
        tables.append(found)
        if sum(map(len, [*others, found])) > max(MIN_ADDED, len(first)):
            self._add_up(name)

    def _add_up(self, name: str) -> None:
        total = _added_up(self._tables[name])
        text_bytes = 0 if self._holds_ids(name) else pc.sum(pc.binary_length(total["value"])).as_py() or 0
        if text_bytes + VALUE_BYTES * len(total) > self._max_bytes:
            logger.info("column %r has too many values to count in all rows: a sample says which are frequent", name)
            del self._tables[name]
        else:
            self._tables[name] = [total]

    def tables(self) -> dict[str, pa.Table]:
        """Return by column what ``count_texts`` or ``count_ids`` does of all rows; columns given up are missing."""
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
    def from_files(cls, categorical: Sequence[str], sparse: Sequence[str], files: Sequence[Callable[[], Any]]) -> Self:
        """Return the counts of all parts.

        Args:
            categorical: Columns of strings or booleans that were counted.
            sparse: Columns of lists of ids or of bit vectors that were.
            files: Each opens a file that ``save`` wrote, for binary reading.
        """
        total = cls(categorical, sparse)
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
                    total._append(name, found[name].cast(total._tables[name][0].schema))
                else:
                    del total._tables[name]
        return total
