"""``prepare``: the same bytes however the rows are cut, every row once, features and labels of every kind.

A row is followed by its weight, which is its number.
"""

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dkan_core import DataError, PrepareConfig, PreparedData, prepare
from dkan_core.config.prepare import SPLITS
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format import shard_writer
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.hashing import splitmix64
from dkan_core.data.preparation import sampling, statistics
from dkan_core.data.source import reading, row_groups
from dkan_core.data.source.blocks import read_blocks, side_by_side
from tests.data.tables import CONFIG, ROWS, contents, make_rows, read, row_numbers, write


def test_same_rows_in_other_row_groups_and_files_give_the_same_shards(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 20_000)
    shapes: list[dict[str, Any]] = [
        {"files": 1},
        {"files": 4, "row_group_size": 7},
        {"files": 2, "compression": "zstd"},
    ]
    found = []
    for index, shape in enumerate(shapes):
        out = tmp_path / f"out-{index}"
        fingerprint = prepare(write(make_rows(), tmp_path / f"raw-{index}", **shape), out, CONFIG).fingerprint
        found.append((fingerprint, {name: data for name, data in contents(out).items() if name != "manifest.json"}))
    assert found[0] == found[1] == found[2]
    assert len(found[0][1]) > len(SPLITS)


def test_row_groups_read_whole_or_in_pieces_give_the_same_bytes(tmp_path: Path, monkeypatch: Any) -> None:
    # Of numbers alone: how long strings are is not known before they are read.
    [source] = write(make_rows(5000).drop_columns("city"), tmp_path / "raw", row_group_size=2500)
    found, names = list[dict[str, bytes]](), ["x", "age", "y", "row"]
    in_pieces = [1024, 1024, 1024, 1024, 904]
    # Some columns at a time, although the row groups are large, and in pieces, although whole they take less memory.
    for most, row_bytes, sizes in ((1 << 20, 64, [2500, 2500]), (2000, 64, in_pieces), (2000, 1 << 20, in_pieces)):
        monkeypatch.setattr(row_groups, "WHOLE_GROUP_BYTES", most)
        monkeypatch.setattr(row_groups, "ROW_BYTES", row_bytes)
        monkeypatch.setattr(reading, "BATCH_BYTES", most)
        assert [batch.num_rows for batch in reading.read_batches(reading.open_file(str(source)), names)] == sizes
        prepare(source, tmp_path / f"out-{len(found)}", CONFIG)
        found.append(contents(tmp_path / f"out-{len(found)}"))
    assert found[0] == found[1] == found[2]


def test_tiny_row_groups_are_read_together(tmp_path: Path) -> None:
    [source] = write(make_rows().drop_columns("city"), tmp_path / "raw", row_group_size=10)
    assert pq.ParquetFile(source).num_row_groups == 300
    [whole] = reading.read_batches(reading.open_file(str(source)), ["x", "age"])
    assert whole.num_rows == ROWS
    [part] = reading.read_batches(reading.open_file(str(source), (100, 200)), ["x", "age"])
    assert part.equals(whole.slice(1000, 1000))
    [blocks] = read_blocks(reading.open_file(str(source), (100, 200)), ["y"], ["x", "age"])
    assert side_by_side(blocks.blocks()).equals(part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "JOINED_ROWS", 25)
        batches = reading.read_batches(reading.open_file(str(source), (0, 5)), ["x"])
        assert [batch.num_rows for batch in batches] == [20, 20, 10]
    # Of dictionaries, Arrow reads a batch for each row group.
    city = make_rows()["city"].combine_chunks()
    pq.write_table(pa.table({"city": city.dictionary_encode()}), tmp_path / "city.parquet", row_group_size=10)
    [cities] = reading.read_batches(reading.open_file(str(tmp_path / "city.parquet")), ["city"])
    assert cities.column(0).equals(city)


def test_rows_are_shuffled_even_when_the_input_is_sorted_by_label(tmp_path: Path) -> None:
    table = make_rows().sort_by("y")
    prepare(write(table, tmp_path / "raw"), tmp_path / "out", CONFIG)
    labels = read(tmp_path / "out", "train")["labels"][:, 0]
    halves = labels[: len(labels) // 2].mean(), labels[len(labels) // 2 :].mean()
    assert abs(halves[0] - halves[1]) < 0.1


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(300, 3000),
    files=st.integers(1, 5),
    group=st.integers(1, 2000),
    shard=st.integers(500, 50_000),
    batch=st.integers(1, 9) | st.just(64 << 20),
)
def test_every_source_row_is_in_one_split_once(
    tmp_path_factory: Any, rows: int, files: int, group: int, shard: int, batch: int
) -> None:
    folder = tmp_path_factory.mktemp("case")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "SHARD_BYTES", shard)
        patch.setattr(reading, "BATCH_BYTES", batch)
        paths = write(make_rows(rows), folder / "raw", files=files, row_group_size=group)
        made = prepare(paths, folder / "out", CONFIG)
    assert sorted(row for split in SPLITS for row in row_numbers(folder / "out", split)) == list(range(rows))
    assert {path.name for path in (folder / "out").iterdir()} == {"manifest.json", *SPLITS}
    check_manifest(made, folder / "out")


def check_manifest(made: PreparedData, folder: Path) -> None:
    assert read_manifest(folder) == made
    listed = {shard.path: shard for info in made.splits.values() for shard in info.shards}
    assert {name for name in contents(folder) if name != "manifest.json"} == set(listed)
    for path, shard in listed.items():
        content = (folder / path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.bytes, shard.sha256)
    for split, info in made.splits.items():
        labels = read(folder, split)["labels"]
        assert info.rows == len(labels) == sum(shard.rows for shard in info.shards)
        for column, name in enumerate(made.labels):
            counts = Counter(labels[:, column].tolist())
            assert info.classes[name] == {"0": counts[0], "1": counts[1], "null": counts[255]}


def test_shards_stay_below_the_limit_and_are_about_even(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 10_000)
    made = prepare(write(make_rows(), tmp_path / "raw"), tmp_path / "out", CONFIG)
    sizes = [shard.bytes for shard in made.splits["train"].shards]
    assert len(sizes) > 3
    assert max(sizes) < 1.2 * 10_000


def test_row_is_encoded_as_a_reloaded_preprocessor_does(tmp_path: Path) -> None:
    paths = write(make_rows(), tmp_path / "raw", files=3)
    for dtype in ("uint8", "float16", "float32"):
        out = tmp_path / dtype
        prepare(paths, out, PrepareConfig(label=("y",), weight="row", numeric_dtype=dtype))
        plain = json.loads((out / "manifest.json").read_text())["encoding"]
        raw = Preprocessor.from_dict(plain).transform(make_rows(), "rows")
        for split in SPLITS:
            arrays = read(out, split)
            rows = arrays["weight"].astype(int)
            assert arrays["numeric"].dtype == dtype
            assert arrays["numeric"].tobytes() == raw["numeric"][rows].tobytes()
            assert arrays["categorical"].tobytes() == raw["categorical"][rows].tobytes()
            np.testing.assert_array_equal(arrays["labels"][:, 0], rows % 2)


def test_sample_of_large_data_is_uniform_and_independent_of_batches(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(statistics, "sample_rows", lambda columns: 500)
    found = []
    for group, batch in ((10_000, 64 << 20), (61, 1)):
        monkeypatch.setattr(reading, "BATCH_BYTES", batch)
        paths = write(make_rows(20_000), tmp_path / f"raw-{group}", files=7, row_group_size=group)
        found.append(prepare(paths, tmp_path / f"out-{group}", CONFIG).preprocessor)
    assert found[0] == found[1]
    knots, scores = np.array(found[0].numeric[0].knots), np.array(found[0].numeric[0].scores)
    middle = np.abs(scores) < 1.5
    assert np.abs(knots - scores)[middle].max() < 0.3


def test_wide_batches_do_not_pile_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(sampling, "MAX_PIECES", 4)
    sample = sampling.BottomK(50, seed=1)
    for first in range(0, 5000, 10):
        row_ids = np.arange(first, first + 10, dtype=np.uint64)
        sample.add([pa.record_batch({"id": row_ids})], row_ids, np.ones(10, dtype=bool))
        assert len(sample.pieces) <= 5
    keys = splitmix64(np.arange(5000, dtype=np.uint64), seed=1)
    assert sample.sample().rows["id"].to_pylist() == np.argsort(keys)[:50].tolist()


@pytest.mark.parametrize("size", [1, 700, 1400, 5000])
def test_limit_of_the_sample_is_known_before_the_rows_are(size: int) -> None:
    numbers = np.arange(20_000, dtype=np.uint64)
    for eligible in (numbers % 7 == 0, numbers < 1400):
        keys = np.sort(splitmix64(numbers[eligible], seed=3))
        found = sampling.smallest_keys_limit(20_000, size, 3, eligible.__getitem__)
        assert (keys if found is None else keys[keys <= found]).tolist() == keys[:size].tolist()


def test_numbers_stored_as_text_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = make_rows()
    shown = pa.array([f"{value:.2f}" for value in np.random.default_rng(1).normal(50, 20, len(table))])
    # Codes are no numbers, though their texts may be.
    table = table.append_column("price", shown).append_column("grade", pa.array(["1.5", "2"] * (len(table) // 2)))
    prepare(write(table, tmp_path / "raw"), tmp_path / "out", CONFIG)
    assert "numbers stored as text become categories, which have no order: 'price'; convert" in caplog.text


def test_nan_and_infinity_are_counted_and_taken_as_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    x = make_rows()["x"].to_numpy().copy()
    x[:5], x[5:8], x[8] = np.nan, np.inf, -np.inf
    table = make_rows().set_column(0, "x", pa.array(x))
    caplog.set_level("INFO")
    made = prepare(write(table, tmp_path / "raw", files=2), tmp_path / "out", CONFIG)
    assert made.invalid == {"x": {"nan": 5, "inf": 4}}
    assert "NaN treated as missing in 1 column: 'x' (5 rows)" in caplog.text
    assert "infinite values treated as missing in 1 column: 'x' (4 rows)" in caplog.text
    for split in SPLITS:
        arrays = read(tmp_path / "out", split)
        np.testing.assert_array_equal(arrays["numeric"][:, 0] == 0, arrays["weight"] < 9)


def test_several_labels_and_nulls(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = make_rows().append_column("z", pa.array(rng.choice(np.array([0, 1, None]), ROWS).tolist(), pa.float64()))
    made = prepare(write(table, tmp_path / "raw"), tmp_path / "out", PrepareConfig(label=("z", "y"), weight="row"))
    assert made.labels == ["z", "y"]
    wanted = table["z"].fill_null(255).to_numpy()
    for split in SPLITS:
        arrays = read(tmp_path / "out", split)
        np.testing.assert_array_equal(arrays["labels"][:, 0], wanted[arrays["weight"].astype(int)])
    check_manifest(made, tmp_path / "out")


@pytest.mark.parametrize(
    "kind", [pa.bool_(), pa.int64(), pa.float32(), pa.decimal128(3, 1), pa.decimal32(3, 1), pa.uint8()], ids=str
)
def test_label_of_any_type_that_holds_0_and_1(tmp_path: Path, kind: pa.DataType) -> None:
    y = make_rows()["y"].cast(pa.int64()).cast(kind if not pa.types.is_decimal(kind) else pa.float64()).cast(kind)
    table = make_rows().drop_columns("y").append_column("y", y)
    prepare(write(table, tmp_path / "raw"), tmp_path / "out", CONFIG)
    arrays = read(tmp_path / "out", "train")
    np.testing.assert_array_equal(arrays["labels"][:, 0], arrays["weight"].astype(int) % 2)


def test_features_of_every_kind_go_through(tmp_path: Path) -> None:
    number = make_rows()["age"].cast(pa.float64())
    kinds = [pa.int8(), pa.uint8(), pa.int32(), pa.uint64(), pa.float16(), pa.decimal32(5, 1), pa.decimal256(50, 3)]
    table = make_rows()
    for kind in kinds:
        table = table.append_column(f"as {kind}", number.cast(kind))
    table = table.append_column("flag", pa.array([True, False, None] * 1000))
    made = prepare(write(table, tmp_path / "raw", files=2), tmp_path / "out", CONFIG)
    numeric = [feature.name for feature in made.preprocessor.numeric]
    arrays = read(tmp_path / "out", "test")["numeric"]
    for kind in kinds:
        np.testing.assert_array_equal(arrays[:, numeric.index(f"as {kind}")], arrays[:, numeric.index("age")])
    flag = next(feature for feature in made.preprocessor.coded if feature.name == "flag")
    assert sorted(map(str, flag.vocabulary)) == ["false", "true"]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(38, 3), pa.decimal256(50, 3)], ids=str)
def test_large_numbers_that_floats_tell_apart_are_features(tmp_path: Path, kind: pa.DataType) -> None:
    key = pa.array([4096 * n + 2**62 for n in range(ROWS)]).cast(kind)
    made = prepare(write(make_rows().append_column("key", key), tmp_path / "raw"), tmp_path / "out", CONFIG)
    assert "key" in made.preprocessor.columns


def test_dropped_column_is_gone_and_of_any_type(tmp_path: Path) -> None:
    table = make_rows().append_column("when", pa.array([[1]] * ROWS))
    made = prepare(write(table, tmp_path / "raw"), tmp_path / "out", PrepareConfig(label=("y",), drop=("when", "x")))
    assert made.preprocessor.columns == ["age", "row", "city"]


def test_label_with_very_many_values_is_refused_at_once(tmp_path: Path) -> None:
    table = make_rows().set_column(3, "y", pa.array(np.random.default_rng(0).random(ROWS)))
    with pytest.raises(DataError, match=r"'y' must hold 0, 1 or null; found .* and [\d,]+ more; give each class, or"):
        prepare(write(table, tmp_path / "raw"), tmp_path / "out", CONFIG)


def test_altered_manifest_is_noticed(tmp_path: Path) -> None:
    prepare(write(make_rows(), tmp_path / "raw"), tmp_path / "out", CONFIG)
    manifest = tmp_path / "out/manifest.json"
    plain = json.loads(manifest.read_text())
    changes: list[dict[str, Any]] = [
        {"seed": 7},
        {"labels": ["z"]},
        {"format_version": 99},
        {"splits": []},
        {"encoding": None},
    ]
    for change in changes:
        manifest.write_text(json.dumps({**plain, **change}))
        with pytest.raises(DataError, match=r"manifest\.json"):
            read_manifest(tmp_path / "out")
