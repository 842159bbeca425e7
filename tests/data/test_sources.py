"""The source files of ``prepare``: which are taken, in whatever order, and what happens when they change."""

import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import (
    DataError,
    PrepareConfig,
    evaluate,
    explain_rows,
    inspect_data,
    predict,
    prepare,
    save_pointer,
    train,
)
from dkan_core.data.preparation import prepare as preparation
from dkan_core.data.source import reading, row_groups
from dkan_core.data.source.files import find_parquet
from tests.data.tables import CONFIG, ROWS, contents, make_rows, replace_unnoticed, write


def test_same_bytes_in_whatever_order_files_are_given(tmp_path: Path) -> None:
    paths: list[str | Path] = [*write(make_rows(), tmp_path / "raw", files=5)]
    given_as: list[list[str | Path]] = [
        paths,
        paths[::-1],
        [tmp_path / "raw"],
        [f"{tmp_path}/raw/*.parquet"],
        [*paths, f"file://{paths[2]}"],
    ]
    outputs = []
    for index, sources in enumerate(given_as):
        prepare(sources, tmp_path / f"out-{index}", CONFIG)
        outputs.append(contents(tmp_path / f"out-{index}"))
    assert all(output == outputs[0] for output in outputs)


def test_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    write(make_rows(), tmp_path, files=1)[0].rename(tmp_path / "caf\udce9.parquet")
    with pytest.raises(DataError, match=r"caf\udce9\.parquet: cannot be read \('utf-8' codec"):
        prepare(tmp_path, tmp_path / "out", CONFIG)


@pytest.mark.parametrize("rows", [pa.table({"x": [1]}), np.zeros((2, 2)), [pa.table({"x": [1]})], None])
def test_rows_in_memory_are_no_sources(rows: Any, tmp_path: Path) -> None:
    several = rows if isinstance(rows, list) else [rows]
    kind = type(several[0]).__name__
    calls: list[Callable[[], object]] = [
        lambda: prepare(rows, tmp_path / "out", CONFIG),
        lambda: inspect_data(rows),
        lambda: explain_rows("model", rows, tmp_path / "out"),
        lambda: evaluate("model", rows, tmp_path / "out"),
        lambda: predict("model", several, tmp_path / "out"),
    ]
    for call in calls:
        with pytest.raises(DataError, match=f"expected Parquet files, .* got a value of type {kind}"):
            call()
    with pytest.raises(DataError, match=f"expected a path or URI, got a value of type {type(rows).__name__}"):
        train(rows, tmp_path / "out")


def test_hidden_files_and_folders_are_no_sources(tmp_path: Path) -> None:
    paths = write(make_rows(), tmp_path / "raw", files=2)
    for name in ("_SUCCESS.parquet", "_temporary/0.parquet", ".hidden/0.parquet", "readme.txt"):
        (tmp_path / "raw" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "raw" / name).write_text("no rows")
    made = prepare(tmp_path / "raw", tmp_path / "out", CONFIG)
    assert [source.path for source in made.sources] == [str(path) for path in paths]


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_glob_of_folders_takes_the_files_in_them(tmp_path: Path, place: str) -> None:
    """Spark and Dask write a table as a folder, whose name may end as that of a file."""
    names = ("a.parquet/part-0.parquet", "a.parquet/_temporary/0.parquet", "b.parquet/deep/part-0.parquet", "c.parquet")
    root = str(tmp_path) if place == "disk" else "memory://globbed"
    fs, _ = fsspec.core.url_to_fs(root)
    for name in names:
        fs.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
        fs.pipe_file(f"{root}/{name}", b"PAR1")
    found = find_parquet([f"{root}/*.parquet"])
    assert [path.replace(":///", "://").removeprefix(f"{root}/") for path in found] == [names[0], *names[2:]]


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("glob", ["*/*.parquet", "**/*.parquet", "**", "*"])
def test_wildcards_do_not_stand_for_hidden_folders(tmp_path: Path, place: str, glob: str) -> None:
    """A job that was killed leaves rows in one, and a Delta table has its log there."""
    root = str(tmp_path) if place == "disk" else f"memory://hidden-{len(glob)}"
    fs, _ = fsspec.core.url_to_fs(root)
    for folder in ("day=1", "_temporary/0", "_delta_log", ".staged"):
        fs.makedirs(f"{root}/{folder}", exist_ok=True)
        fs.pipe_file(f"{root}/{folder}/0.parquet", b"PAR1")
    found = find_parquet([f"{root}/{glob}"])
    assert [path.replace(":///", "://").removeprefix(f"{root}/") for path in found] == ["day=1/0.parquet"]
    # What a pattern names is wanted.
    assert [path.rpartition("/")[2] for path in find_parquet([f"{root}/_temporary/*"])] == ["0.parquet"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_delta_log/00000000000000000001.json", "Delta Lake"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
    ],
)
def test_table_whose_files_may_be_outdated_is_named(
    tmp_path: Path, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After an update, a row is in the old file and in the new one, and may be in train and in test."""
    write(make_rows(), tmp_path / "table")
    find_parquet([tmp_path / "table"])
    assert not caplog.text
    (tmp_path / "table" / name).parent.mkdir()
    (tmp_path / "table" / name).write_text("{}")
    find_parquet([tmp_path / "table"])
    assert f"{tmp_path / 'table'}: is a table of {kind}: deleted or updated rows" in caplog.text


def test_what_is_left_out_of_a_folder_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = tmp_path / "raw"
    paths = write(make_rows(), raw, files=4)
    for path, name in zip(paths, ("A.PARQUET", "b.parq", "part-00000", "year/d.parquet"), strict=True):
        (raw / name).parent.mkdir(exist_ok=True)
        path.rename(raw / name)
    for name in ("e.parquet.gz", "notes", "readme.txt"):
        (raw / name).write_text("no rows")
    made = prepare(raw, tmp_path / "out", CONFIG)
    found = [str(Path(source.path).relative_to(raw)) for source in made.sources]
    assert found == ["A.PARQUET", "b.parq", "part-00000", "year/d.parquet"]
    assert f"{raw}: skipped 3 files: not Parquet, such as {raw}/e.parquet.gz" in caplog.text


def test_a_file_that_is_named_is_parquet_whatever_its_name_says(tmp_path: Path) -> None:
    pq.write_table(make_rows(10), tmp_path / "rows.csv")
    assert find_parquet([tmp_path / "rows.csv"]) == [str(tmp_path / "rows.csv")]


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Else its rows would lie in train and in test."""
    raw = tmp_path / "raw"
    (path,) = write(make_rows(), raw)
    (raw / "a-link.parquet").symlink_to(path)
    (raw / "b-link.parquet").hardlink_to(path)
    (raw / "folder").symlink_to(raw)
    sources: list[str | Path] = [raw, path, raw / "folder" / path.name, f"file://{path}", f"{raw}/../raw/{path.name}"]
    made = prepare(sources, tmp_path / "out", CONFIG)
    assert len(made.sources) == 1
    assert sum(split.rows for split in made.splits.values()) == ROWS
    assert "part-000.parquet: left out, it is the same file as" in caplog.text


def test_folder_that_is_a_link_is_read(tmp_path: Path) -> None:
    write(make_rows(), tmp_path / "elsewhere", files=2)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/link").symlink_to(tmp_path / "elsewhere")
    made = prepare(tmp_path / "raw", tmp_path / "out", CONFIG)
    assert sum(split.rows for split in made.splits.values()) == ROWS


def test_files_may_store_the_same_strings_in_different_types(tmp_path: Path) -> None:
    table = make_rows()
    city = table["city"].combine_chunks()
    json = pa.ExtensionArray.from_storage(pa.json_(), city)
    kinds = [city, city.cast(pa.large_string()), city.dictionary_encode(), city.cast(pa.string_view()), json]
    (tmp_path / "raw").mkdir()
    for index, column in enumerate(kinds):
        piece = table.set_column(2, "city", column).slice(index * 600, 600)
        pq.write_table(piece, tmp_path / f"raw/part-{index}.parquet")
    mixed = prepare(tmp_path / "raw", tmp_path / "mixed", CONFIG)
    plain = prepare(write(table, tmp_path / "plain-raw", files=4), tmp_path / "plain", CONFIG)
    assert mixed.fingerprint == plain.fingerprint


def test_numbers_may_differ_in_type_between_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As pandas writes them: integers of which one is missing are floats, and a column without a value has no type."""
    table = make_rows()
    count = pa.array(np.arange(ROWS) % 50, pa.float64())
    x, city, y = (table.schema.get_field_index(name) for name in ("x", "city", "y"))
    table = table.set_column(x, "x", count)
    parts = [table.slice(index * 750, 750) for index in range(4)]
    plain = [*parts[:3], parts[3].set_column(city, "city", pa.nulls(750, pa.string()))]
    mixed = [
        parts[0]
        .set_column(x, "x", parts[0]["x"].cast(pa.int32()))
        .set_column(y, "y", parts[0]["y"].cast(pa.float32())),
        parts[1].set_column(x, "x", parts[1]["x"].cast(pa.int64())),
        parts[2],
        parts[3].set_column(city, "city", pa.nulls(750)),
    ]
    caplog.set_level(logging.INFO)
    made = []
    for name, given in {"mixed": mixed, "plain": plain}.items():
        (tmp_path / name).mkdir()
        for index, part in enumerate(given):
            pq.write_table(part, tmp_path / name / f"part-{index}.parquet")
        made.append(prepare(tmp_path / name, tmp_path / f"{name}-out", CONFIG))
    assert made[0].splits == made[1].splits and made[0].preprocessor == made[1].preprocessor
    assert "column 'x' differs in type between files, and is read as double" in caplog.text
    in_stages = prepare(tmp_path / "mixed", tmp_path / "staged", CONFIG, workers=2)
    assert in_stages.fingerprint == made[0].fingerprint
    pq.write_table(mixed[2].set_column(x, "x", pa.array(["a"] * 750)), tmp_path / "mixed" / "part-2.parquet")
    with pytest.raises(DataError, match=r"part-2\.parquet: column 'x' is string; .*; write all files with one type"):
        prepare(tmp_path / "mixed", tmp_path / "refused", CONFIG)


@pytest.mark.parametrize("empty", [(0, 1), (2,), (0, 2)])
def test_texts_of_a_file_without_any_may_be_floats(tmp_path: Path, empty: tuple[int, ...]) -> None:
    """As pandas reads an empty column of a CSV."""
    table = make_rows()
    plain, mixed = [], []
    for index in range(3):
        rows = table.slice(index * 1000, 1000)
        floats = rows.set_column(2, "city", pa.nulls(1000, pa.float64()))
        plain.append(floats.set_column(2, "city", pa.nulls(1000, pa.string())) if index in empty else rows)
        mixed.append(floats if index in empty else rows)
    fingerprints = []
    for name, pieces in (("plain", plain), ("mixed", mixed)):
        (tmp_path / name).mkdir()
        for index, piece in enumerate(pieces):
            pq.write_table(piece, tmp_path / name / f"{index}.parquet")
        fingerprints.append(prepare(tmp_path / name, tmp_path / f"{name}-out", CONFIG).fingerprint)
    assert fingerprints[0] == fingerprints[1]


def test_floats_with_a_value_are_no_texts(tmp_path: Path) -> None:
    table = make_rows()
    (tmp_path / "raw").mkdir()
    for index, value in enumerate((None, 1.0, "Oslo")):
        pq.write_table(table.set_column(2, "city", pa.array([value] * ROWS)), tmp_path / f"raw/{index}.parquet")
    with pytest.raises(DataError, match=r"2\.parquet: column 'city' is string; in .*0\.parquet it is double"):
        prepare(tmp_path / "raw", tmp_path / "out", CONFIG)


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64(), pa.int32(), pa.null()])
def test_decimals_keep_their_digits_beside_any_other_type(tmp_path: Path, kind: pa.DataType) -> None:
    """A model reads a file of decimals alone as 64-bit floats: as those of 32 bits, they would be other numbers."""
    price = pa.array([Decimal(cents).scaleb(-2) for cents in range(7_000_001, 7_000_301)], pa.decimal128(12, 2))
    pieces = [price, pa.nulls(300, kind), pa.nulls(300)]
    label = pa.array([0, 1] * 150)
    found = []
    for order in itertools.permutations(range(3)):
        raw = tmp_path / "".join(map(str, order))
        raw.mkdir()
        for index, place in enumerate(order):
            pq.write_table(pa.table({"price": pieces[place], "y": label}), raw / f"{index}.parquet")
        found.append(prepare(raw, tmp_path / f"out-{raw.name}", PrepareConfig(label=("y",))).preprocessor)
    for encoding in found:
        assert {*encoding.numeric[0].knots} <= {*map(float, price.to_pylist())}


def test_dropped_columns_may_differ_between_files(tmp_path: Path) -> None:
    """Be it in type, or that only some files have them, in the names of their folders or not."""
    table = make_rows()
    first, second = table.slice(0, 1500), table.slice(1500)
    extra, dates = (pa.array(np.arange(1500) % 50).cast(kind) for kind in (pa.int64(), pa.int32()))
    raw = tmp_path / "raw"
    (raw / "year=2024").mkdir(parents=True)
    pq.write_table(first.append_column("when", dates.cast(pa.date32())), raw / "a.parquet")
    second = second.append_column("when", extra.cast(pa.string())).append_column("user id", extra)
    pq.write_table(second, raw / "year=2024/b.parquet")
    made = prepare(raw, tmp_path / "out", replace(CONFIG, drop=("when", "user id", "year")))
    plain = prepare(write(table, tmp_path / "plain", files=2), tmp_path / "plain-out", CONFIG)
    assert made.preprocessor == plain.preprocessor and made.splits == plain.splits
    assert inspect_data(raw, replace(CONFIG, drop=("when", "user id", "year"))).rows == {
        split: info.rows for split, info in plain.splits.items()
    }
    with pytest.raises(DataError, match=r"'user id' is missing; .*, or leave it out with --drop 'user id'$"):
        prepare(raw, tmp_path / "refused", replace(CONFIG, drop=("when", "year")))
    with pytest.raises(DataError, match=r"column 'user id' is missing; .* with nulls where it has no values$"):
        prepare(raw, tmp_path / "refused", replace(CONFIG, drop=("when", "year"), group="user id"))


@pytest.mark.parametrize("same_stamp", [False, True])
@pytest.mark.parametrize("moment", ["survey_rows", "spill_rows"])
def test_source_that_is_replaced_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, *, same_stamp: bool
) -> None:
    """Also by one with as many rows: the statistics would be of one, the rows of the other."""
    (path,) = write(make_rows(), tmp_path / "raw")
    (other,) = write(make_rows(seed=1), tmp_path / "other")
    step = getattr(preparation, moment)

    def replaced(*given: Any, **options: Any) -> Any:
        if same_stamp:
            replace_unnoticed(path)
        else:
            other.replace(path)
        return step(*given, **options)

    monkeypatch.setattr(preparation, moment, replaced)
    with pytest.raises(DataError, match=r"part-000\.parquet: the source changed while it was read"):
        prepare(path, tmp_path / "out", CONFIG)
    assert not (tmp_path / "out").exists()


def test_credentials_of_a_source_are_kept_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fs = fsspec.filesystem("memory")
    (path,) = write(make_rows(), tmp_path / "raw")
    uri = "memory://bucket/rows.parquet?X-Signature=secret"
    fs.pipe_file("/bucket/rows.parquet?X-Signature=secret", path.read_bytes())
    made = prepare(uri, tmp_path / "out", CONFIG)
    assert [source.path for source in made.sources] == ["memory:///bucket/rows.parquet?***"]
    assert prepare(uri, tmp_path / "out", CONFIG, reuse=True) == made
    assert all(b"secret" not in content for content in contents(tmp_path / "out").values())
    with pytest.raises(DataError, match=r"rows\.parquet\?\*\*\*: ") as error:
        prepare(uri, tmp_path / "again", PrepareConfig(label=("y",), weight="x", group="city"))
    assert "secret" not in str(error.value)
    with pytest.raises(DataError, match="holds credentials"):
        save_pointer(tmp_path / "pointer", made, "s3://key:secret@bucket/data")


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_what_reading_holds_in_memory_does_not_grow_with_the_file(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, rows = 40, 20_000
    monkeypatch.setattr(row_groups, "RUN_BYTES", 400_000)
    rng = np.random.default_rng(0)
    path = tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, pa.schema([("text", pa.string()), ("number", pa.float64())])) as writer:
        for _ in range(groups):
            texts = pa.array([f"code {code}" for code in rng.integers(9, size=rows)])
            writer.write_table(pa.table({"text": texts, "number": rng.random(rows)}))
    source = str(path)
    if place == "bucket":
        source = "memory://growing/rows.parquet"
        fsspec.filesystem("memory").put_file(str(path), "/growing/rows.parquet")
    before = pa.total_allocated_bytes()
    held = [
        pa.total_allocated_bytes() - before for _ in reading.read_batches(reading.open_file(source), ["text", "number"])
    ]
    # A run of two groups has 320 kB of numbers; of all groups 6.4 MB would be held.
    assert len(held) > 10 and max(held) < 1.5e6


def test_column_without_a_type_is_read(tmp_path: Path) -> None:
    """New rows may have no value at all where the model knows categories."""
    pq.write_table(pa.table({"city": pa.nulls(5), "x": np.ones(5)}), tmp_path / "rows.parquet")
    (batch,) = reading.read_batches(reading.open_file(str(tmp_path / "rows.parquet")), ["city", "x"])
    assert batch.num_rows == 5 and batch["city"].null_count == 5


def test_index_of_a_pandas_frame_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    table = make_rows().append_column("__index_level_0__", pa.array(np.arange(ROWS)))
    made = prepare(write(table, tmp_path / "raw")[0], tmp_path / "out", CONFIG)
    assert "__index_level_0__" not in made.preprocessor.columns
    assert "column '__index_level_0__' is the index of a pandas frame" in caplog.text


def test_times_may_differ_in_unit_between_files(tmp_path: Path) -> None:
    seconds = np.arange(ROWS) * 3600 + 1_357_084_800
    (tmp_path / "raw").mkdir()
    for index, kind in enumerate((pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"))):
        part = slice(index * 1500, (index + 1) * 1500)
        when = pa.array(seconds[part], pa.timestamp("s", "UTC")).cast(kind)
        rows = make_rows().slice(part.start, 1500).append_column("when", when)
        pq.write_table(rows, tmp_path / "raw" / f"part-{index}.parquet")
    made = prepare(tmp_path / "raw", tmp_path / "out", CONFIG)
    (feature,) = (each for each in made.preprocessor.numeric if each.name == "when")
    assert feature.knots[0] >= seconds[0] and feature.knots[-1] <= seconds[-1]


@pytest.mark.parametrize(
    ("first", "second"),
    [(pa.duration("s"), pa.duration("ms")), (pa.time32("s"), pa.time64("us")), (pa.date32(), pa.date64())],
)
def test_durations_dates_and_times_of_day_may_differ_in_unit(first: Any, second: Any, tmp_path: Path) -> None:
    whole = pa.array(np.arange(ROWS) % 5000, pa.int32())
    values = whole.cast(first) if not pa.types.is_duration(first) else whole.cast(pa.int64()).cast(first)
    table = make_rows().append_column("took", values)
    other = table.set_column(table.column_names.index("took"), "took", values.cast(second))
    for name, parts in (("plain", [table, table]), ("mixed", [table, other])):
        (tmp_path / name).mkdir()
        for index, part in enumerate(parts):
            pq.write_table(part.slice(index * 1500, 1500), tmp_path / name / f"part-{index}.parquet")
    plain, mixed = (prepare(tmp_path / name, tmp_path / f"{name}-out", CONFIG) for name in ("plain", "mixed"))
    assert plain.preprocessor == mixed.preprocessor and plain.splits == mixed.splits


def test_few_rows_of_a_class_in_valid_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(write(make_rows(), tmp_path / "raw"), tmp_path / "enough", CONFIG)
    assert "rarer class" not in caplog.text
    prepare(write(make_rows(200), tmp_path / "few"), tmp_path / "out", CONFIG)
    assert "valid has few rows of the rarer class (y " in caplog.text
