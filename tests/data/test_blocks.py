"""Rows of a file read some columns at a time: the columns that reading them at once gives."""

from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from dkan_core.data.source import blocks, reading, row_groups
from dkan_core.data.source.blocks import read_blocks, side_by_side
from dkan_core.data.source.reading import open_file, read_batches
from tests.data.tables import make_rows, write


@pytest.mark.parametrize("place", ["local", "remote", "with text"])
@pytest.mark.parametrize("groups", [None, (1, 3)])
def test_blocks_hold_what_whole_rows_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, groups: tuple[int, int] | None
) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    (tmp_path / "year=2024").mkdir()
    [path] = write(make_rows(500), tmp_path / "year=2024/raw", row_group_size=120)
    source = str(path)
    if place == "remote":
        source = "memory://blocks/year=2024/rows.parquet"
        fsspec.filesystem("memory").pipe_file("/blocks/year=2024/rows.parquet", path.read_bytes())
    columns, others = ["y", "year"], ["x", "city" if place == "with text" else "age", "row"]
    types = {"year": "int64"}
    whole = [*read_batches(open_file(source, groups, folder_types=types), [*columns, *others])]
    found = [*read_blocks(open_file(source, groups, folder_types=types), columns, others)]
    assert [each.count for each in found] == [len(each) for each in whole]
    for each, expected in zip(found, whole, strict=True):
        parts = list(each.blocks())
        assert len(parts) == (3 if place == "local" else 1)
        assert side_by_side([each.rows, *parts]).equals(expected)


@pytest.mark.parametrize("place", ["local", "remote"])
def test_large_row_groups_are_read_whole_where_that_takes_less_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(row_groups, "WHOLE_GROUP_BYTES", 1)
    monkeypatch.setattr(row_groups, "ROW_BYTES", 0)
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)
    table = make_rows(6000).select(["y", "x", "age", "city"])
    [path] = write(table, tmp_path / "raw", row_group_size=2500)
    source = str(path)
    if place == "remote":
        source = "memory://large/rows.parquet"
        fsspec.filesystem("memory").pipe_file("/large/rows.parquet", path.read_bytes())

    def counts(others: list[str], row_bytes: int | None) -> list[int]:
        found = [*read_blocks(open_file(source), ["y"], others, row_bytes)]
        read = [side_by_side([each.rows, *each.blocks()]) for each in found]
        assert pa.Table.from_batches(read).equals(table.select(["y", *others]).combine_chunks())
        return [each.count for each in found]

    assert counts(["x", "age"], 0) == [2500, 2500, 1000]
    assert max(counts(["x", "age"], None)) == max(counts(["x", "age"], 1 << 20)) == 1024
    # How long strings are is not known.
    assert max(counts(["x", "city"], 0)) == 1024


def test_rows_without_columns_at_once_keep_their_number(tmp_path: Path) -> None:
    [path] = write(make_rows(50), tmp_path / "raw")
    [found] = read_blocks(open_file(str(path)), [], ["x"])
    assert (found.count, side_by_side(found.blocks()).num_rows) == (50, 50)
    [found] = read_blocks(open_file(str(path)), ["x"], [])
    assert (len(found.rows), list(found.blocks())) == (50, [])
    assert found.rows.schema == pa.schema([("x", pa.float32())])
