"""Columns of lists and of bits: what a row has is stored and read back, in bytes that follow the ones.

A row is followed by its weight, which is its number.
"""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from dkan_core import DataError, PrepareConfig, prepare
from dkan_core.data.encoding import sparse
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.encoding.sparse import SparseFeature, count_ids, fit_sparse, ids_of, longest_rows, sparse_codes
from dkan_core.data.format import shard_writer
from dkan_core.data.format.layout import INDICES, OFFSETS, Content, Field
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.format.sparse_rows import SparseRows
from dkan_core.data.loading.loader import open_split, train_batches
from dkan_core.data.preparation.append import append_rows
from tests.data.sparse_tables import IDS, as_bits, as_lists, list_table, make_ones
from tests.data.tables import contents, make_rows, read, write

CONFIG = PrepareConfig(label=("y",), weight="row", split="70/15/15")


def dense(codes_NS: Any, ids: int = IDS) -> Any:
    """Return which codes each row has, without that of no code."""
    ones_NV = np.zeros((len(codes_NS), ids + 1), np.uint8)
    ones_NV[np.arange(len(codes_NS))[:, None], codes_NS] = 1
    return ones_NV[:, 1:]


def feature_of(name: str, ids: list[int], buckets: int = 0) -> SparseFeature:
    return SparseFeature(name=name, ids=ids, buckets=buckets, counts=[1] * (len(ids) + buckets), sample_rows=1)


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.uint16()), "bits", "sliced"], ids=str
)
def test_every_row_has_the_codes_of_its_ids(kind: Any) -> None:
    ones_NV = make_ones(300)
    column = as_bits(ones_NV) if kind == "bits" else as_lists(ones_NV, None if kind == "sliced" else kind)
    if kind == "sliced":
        column, ones_NV = column.slice(7, 90), ones_NV[7:97]
    feature = fit_sparse(column, "tags", "rows", count_ids(column, "tags", "rows"), None, 4)
    assert feature is not None and feature.buckets == 0
    assert feature.ones == pytest.approx(ones_NV.sum(axis=1).mean(), abs=1e-5)
    assert feature.counts == ones_NV[:, feature.ids].sum(axis=0).tolist() and feature.sample_rows == len(ones_NV)
    found_NV = dense(sparse_codes(pa.table({"tags": column}), [feature], "rows"), len(feature.ids))
    np.testing.assert_array_equal(found_NV, ones_NV[:, feature.ids])


@pytest.mark.parametrize(
    ("make", "untyped"),
    [(as_lists, pa.nulls(200)), (as_lists, pa.array([[]] * 200)), (as_bits, pa.nulls(200))],
    ids=["lists", "empty lists", "bits"],
)
def test_files_without_any_id_have_no_type(make: Any, untyped: pa.Array, tmp_path: Path) -> None:
    """As writers leave it where every row of a file is null, or every list empty."""
    table = list_table(make_ones(400)).drop(["tags"])
    ids = make(make_ones(400))
    for folder, missing in (("typed", pa.nulls(200, ids.type)), ("untyped", untyped)):
        (tmp_path / folder).mkdir()
        for index, part in enumerate((ids.slice(0, 200), missing)):
            rows = table.slice(index * 200, 200).append_column("tags", part)
            pq.write_table(rows, tmp_path / folder / f"{index}.parquet")
    config = PrepareConfig(label=("y",), drop=("row",))
    wanted, found = (prepare(tmp_path / name, tmp_path / f"{name}-out", config) for name in ("typed", "untyped"))
    assert found.splits == wanted.splits and found.preprocessor == wanted.preprocessor


def test_an_id_counts_once_and_what_is_missing_counts_for_nothing() -> None:
    feature = feature_of("tags", [-5, 3, 9])
    column = pa.array([[9, 3, 9], None, [], [None, 3, 77], [-5]], pa.list_(pa.int64()))
    codes_NS = sparse_codes(pa.table({"tags": column}), [feature], "rows")
    assert codes_NS.tolist() == [[2, 3], [0, 0], [0, 0], [2, 0], [1, 0]]
    vectors = pa.array([None, b"\x80", b"\x01"], pa.binary(1))
    assert [each.tolist() for each in ids_of(vectors, "bits", "rows")] == [[1, 2], [0, 7]]


def test_codes_of_several_columns_follow_each_other() -> None:
    features = [feature_of("a", [1, 2], buckets=1), feature_of("b", [1])]
    rows = pa.table({"a": [[2, 50, 60], [1]], "b": [[1], [2]]})
    assert sparse_codes(rows, features, "rows").tolist() == [[2, 3, 4], [1, 0, 0]]


@pytest.mark.parametrize("bits", [False, True])
def test_prepared_rows_are_those_of_the_source(bits: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 30_000)
    ones_NV = make_ones()
    table = list_table(ones_NV)
    if bits:
        table = table.set_column(table.column_names.index("tags"), "tags", as_bits(ones_NV))
    prepared = prepare(write(table, tmp_path / "raw", files=2), tmp_path / "out", CONFIG)
    assert prepared.preprocessor.sparse[0].ids == list(range(IDS))
    assert len(prepared.splits["train"].shards) > 1
    seen = []
    for split in prepared.splits:
        rows = read(tmp_path / "out", split)
        numbers = rows["weight"].astype(int)
        np.testing.assert_array_equal(dense(rows["sparse"]), ones_NV[numbers])
        seen += numbers.tolist()
    assert sorted(seen) == list(range(len(ones_NV)))
    with open_split(tmp_path / "out", prepared, "train") as reader:
        for batch in train_batches(reader, seed=3, epoch=1, batch_size=100):
            np.testing.assert_array_equal(dense(batch["sparse"]), ones_NV[batch["weight"].astype(int)])


def test_bytes_do_not_depend_on_files_row_groups_and_workers(tmp_path: Path) -> None:
    shapes: list[dict[str, Any]] = [{"files": 1}, {"files": 3, "row_group_size": 50}, {"files": 2}]
    found = []
    for index, shape in enumerate(shapes):
        source = write(list_table(make_ones()), tmp_path / f"raw-{index}", **shape)
        out = tmp_path / f"out-{index}"
        fingerprint = prepare(source, out, CONFIG, workers=2 * (index == 2)).fingerprint
        found.append((fingerprint, {name: data for name, data in contents(out).items() if name != "manifest.json"}))
    assert found[0] == found[1] == found[2]


def test_shards_hold_offsets_and_ones_alone(tmp_path: Path) -> None:
    rows, ids, ones = 2000, 100_000, 50
    rng = np.random.default_rng(0)
    lists = [rng.choice(ids, ones, replace=False) for _ in range(rows)]
    table = pa.table({"tags": pa.array(lists, pa.list_(pa.int32())), "y": rng.integers(0, 2, rows).astype(np.int8)})
    prepared = prepare(write(table, tmp_path / "raw"), tmp_path / "out", PrepareConfig(label=("y",)))
    train = prepared.splits["train"]
    arrays = load_file(tmp_path / "out" / train.shards[0].path)
    assert arrays[OFFSETS].shape == (train.rows + 1,)
    assert arrays[INDICES].shape == (train.rows * ones,)
    header = 400
    assert train.bytes <= train.rows * (4 * ones + 8 + 1) + header
    with open_split(tmp_path / "out", prepared, "train") as reader:
        assert reader.row_bytes <= 4 * ones + 8 + 1
        # Of a batch: as many codes as the longest row has.
        assert sum(array.nbytes for array in reader.empty(64).values()) <= 64 * (4 * ones + 1)


def test_other_ids_share_buckets_or_are_left_out(tmp_path: Path, caplog: Any) -> None:
    source = write(list_table(make_ones()), tmp_path / "raw")
    config = PrepareConfig(label=("y",), weight="row", split="70/15/15", max_categories=8)
    with caplog.at_level(logging.INFO):
        (feature,) = prepare(source, tmp_path / "out", config).preprocessor.sparse
    assert len(feature.ids) == 8 and feature.buckets == 2
    assert "of the IDs have no code of their own" in caplog.text
    assert read(tmp_path / "out", "train")["sparse"].max() == feature.size
    # Of a small list and without a limit, every id that train has.
    assert feature_of("a", [1]).codes_of(np.array([1, 2])).tolist() == [0, -1]


def test_manifest_of_other_data_stays_as_it_was(tmp_path: Path) -> None:
    prepare(write(make_rows(), tmp_path / "raw"), tmp_path / "plain", PrepareConfig(label=("y",)))
    prepare(write(list_table(make_ones()), tmp_path / "raw-sparse"), tmp_path / "sparse", CONFIG)
    plain, other = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("plain", "sparse"))
    assert (plain["format_version"], other["format_version"]) == (2, 3)
    assert {*other["features"]} - {*plain["features"]} == {"sparse"}
    assert {*other["encoding"]} - {*plain["encoding"]} == {"sparse", "row_codes"}
    again = Preprocessor.from_dict(read_manifest(tmp_path / "sparse").preprocessor.to_dict())
    assert again == read_manifest(tmp_path / "sparse").preprocessor
    (tmp_path / "sparse" / "manifest.json").write_text(json.dumps({**other, "format_version": 2}))
    with pytest.raises(DataError, match="format_version: 3 is for data with sparse columns"):
        read_manifest(tmp_path / "sparse")


def test_longer_rows_can_be_appended(tmp_path: Path) -> None:
    prepared = prepare(write(list_table(make_ones()), tmp_path / "raw"), tmp_path / "out", CONFIG)
    every = np.ones((30, IDS), np.uint8)
    more = list_table(every)
    more = more.set_column(more.column_names.index("row"), "row", pa.array(5000 + np.arange(30)))
    joined = append_rows(write(more, tmp_path / "more"), tmp_path / "out")
    assert prepared.preprocessor.row_codes < joined.preprocessor.row_codes == IDS
    rows = {split: read(tmp_path / "out", split) for split in joined.splits}
    new = np.concatenate([dense(each["sparse"])[each["weight"] >= 5000] for each in rows.values()])
    np.testing.assert_array_equal(new, every)


def test_offsets_that_do_not_rise_are_named(tmp_path: Path) -> None:
    offsets = np.array([0, 2, 1, 3], np.int64)
    content = offsets.tobytes() + np.ones(3, np.int32).tobytes()
    fields = {OFFSETS: Field(0, 32, 8, (), np.dtype(np.int64)), INDICES: Field(32, 12, 4, (), np.dtype(np.int32))}

    def fill(_: int, buffer: memoryview, offset: int) -> None:
        buffer[:] = content[offset : offset + len(buffer)]

    rows = SparseRows([tmp_path / "shard"], np.array([0, 3]), [fields], 2, lambda *_: None, fill)
    with pytest.raises(DataError, match="sparse_offsets' does not rise by 0 to 2 from row 0"):
        rows.gather(np.array([[0, 3]]), np.empty((3, 2), np.int32))


def test_ids_that_the_encoding_cannot_give_are_named(tmp_path: Path) -> None:
    prepared = prepare(write(list_table(make_ones()), tmp_path / "raw"), tmp_path / "out", CONFIG)
    fewer = Content(layout=prepared.content.layout, labels=prepared.content.labels, sparse_codes=IDS - 1)
    with ShardReader(tmp_path / "out", prepared.splits["train"].shards, fewer) as reader:
        assert any(f"'sparse_indices' holds {IDS}" in text for text in reader.damaged_blocks())


def test_rows_with_too_many_ids_are_refused_by_name(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sparse, "MAX_ROW_IDS", 5)
    with pytest.raises(DataError, match=r"column 'tags' has \d+ IDs in a row; expected at most 5.*--drop tags"):
        prepare(write(list_table(make_ones()), tmp_path / "raw"), tmp_path / "out", CONFIG)


def test_repeats_of_an_id_make_no_row_too_long(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sparse, "MAX_ROW_IDS", IDS)
    once = list_table(make_ones())
    index = once.column_names.index("tags")
    repeated = once.set_column(index, "tags", pa.array([ids * 50 for ids in once["tags"].to_pylist()]))
    found, wanted = (
        prepare(write(rows, tmp_path / f"raw-{name}"), tmp_path / name, CONFIG)
        for name, rows in (("repeated", repeated), ("once", once))
    )
    assert found.splits == wanted.splits
    longer = pa.table({"tags": [[1], [*range(IDS), 1], [*range(-1, IDS), 1]]})
    with pytest.raises(DataError, match=f"column 'tags' has {IDS + 1} IDs in a row; expected at most {IDS}: "):
        longest_rows(longer, ["tags"], "rows")


def test_what_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    source = write(list_table(make_ones()), tmp_path / "raw")
    with pytest.raises(DataError, match="column 'tags' holds IDs; split_by content"):
        prepare(source, tmp_path / "out", PrepareConfig(label=("y",), split_by="content"))
    prepare(source, tmp_path / "old", CONFIG)
    with pytest.raises(DataError, match="column 'tags' holds IDs; split_by content"):
        prepare(source, tmp_path / "out", PrepareConfig(like=str(tmp_path / "old"), split_by="content"))
    empty = list_table(make_ones()).drop_columns("tags").append_column("tags", pa.nulls(1200, pa.list_(pa.int32())))
    with pytest.raises(DataError, match="column 'tags' holds no value"):
        prepare(write(empty, tmp_path / "empty"), tmp_path / "out", CONFIG)
