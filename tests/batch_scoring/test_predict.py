"""``predict``: input order, columns passed through, the same probabilities as the evaluated model."""

import itertools
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import DataError, OutputError, PrepareConfig, TrainResult, predict, prepare
from dkan_core.cli.results import result_printer
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.data.source import reading
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring import probabilities as module
from dkan_core.scoring.prepared import score_split
from dkan_core.scoring.probabilities import to_probability


@pytest.fixture(scope="module")
def table(source: Path) -> pa.Table:
    """Return the source's rows with their number."""
    rows = pq.read_table(source)
    return rows.append_column("row", pa.array(np.arange(len(rows))))


def write(table: pa.Table, folder: Path, files: int) -> Path:
    folder.mkdir()
    bounds = np.linspace(0, len(table), files + 1).astype(int)
    for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
        pq.write_table(table.slice(start, stop - start), folder / f"part-{index}.parquet", row_group_size=50)
    return folder


def scored(trained: TrainResult, source: Path, out: Path, **options: Any) -> pa.Table:
    rows = predict(trained.model, source, out, **options)
    found = pq.read_table(out)
    assert rows == len(found)
    return found


def test_probabilities_are_those_of_the_evaluated_model(
    trained: TrainResult, prepared: Path, table: pa.Table, tmp_path: Path
) -> None:
    """The row number travels through a second preparation as the weight; the seed makes the same shards."""
    source = write(table, tmp_path / "raw", files=1)
    prepare(source, tmp_path / "data", PrepareConfig(label=("label",), weight="row"))
    manifest, saved = read_manifest(tmp_path / "data"), SavedModel(Path(trained.model))
    assert manifest.preprocessor == read_manifest(prepared).preprocessor
    predicted = scored(trained, source, tmp_path / "scores.parquet")["label_probability"].to_numpy()
    for split in manifest.splits:
        with open_split(tmp_path / "data", manifest, split) as reader:
            numbers = reader.gather(shard_extents(reader.starts.tolist()))["weight"].astype(int)
            found = score_split(saved.module, reader, torch.device("cpu"))
        probabilities = to_probability(found.log_odds_NL)[:, 0]
        np.testing.assert_allclose(predicted[numbers], probabilities, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(found.labels_NL[:, 0], table["label"].to_numpy()[numbers])


def shard_extents(starts: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(starts))


@pytest.mark.parametrize(
    ("files", "batch_bytes", "scoring_rows"), [(1, 64 << 20, 16_384), (5, 64 << 20, 7), (3, 1, 100)]
)
def test_order_is_kept_over_files_and_batches(
    trained: TrainResult,
    source: Path,
    table: pa.Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    batch_bytes: int,
    scoring_rows: int,
) -> None:
    wanted = scored(trained, source, tmp_path / "wanted.parquet")["label_probability"].to_numpy()
    monkeypatch.setattr(reading, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(module, "SCORING_ROWS", scoring_rows)
    found = scored(trained, write(table, tmp_path / "raw", files), tmp_path / "scores.parquet", columns=["row"])
    assert found["row"].to_pylist() == list(range(len(table)))
    np.testing.assert_allclose(found["label_probability"].to_numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_columns_of_any_type_are_passed_through_as_they_were(
    trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    rows = len(table)
    extra = {
        "key": pa.array([f"id {index}" for index in range(rows)]),
        "seen": pa.array(np.arange(rows), pa.timestamp("us", "UTC")),
        "tags": pa.array([[index, None] for index in range(rows)]),
        "point": pa.array([{"x": index} for index in range(rows)]),
    }
    for name, column in extra.items():
        table = table.append_column(name, column)
    source = write(table.drop_columns("label"), tmp_path / "raw", files=2)
    passed = ["point", "key", "site", "mean_radius", "seen", "tags", "key"]
    found = scored(trained, source, tmp_path / "scores.parquet", columns=passed)
    assert found.schema.names == [*passed[:-1], "label_probability"]
    for name in passed:
        assert found[name].to_pylist() == table[name].to_pylist()


def test_file_may_have_no_value_in_a_column_to_pass_through(
    trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    kinds = {"note": pa.string(), "tags": pa.map_(pa.string(), pa.list_(pa.int8()))}
    noted: dict[str, list[Any]] = {"note": ["late"] * 20, "tags": [[("a", [1])]] * 20}
    (tmp_path / "raw").mkdir()
    for index, has_values in enumerate((False, True, False)):
        rows = table.slice(20 * index, 20)
        for name, kind in kinds.items():
            rows = rows.append_column(name, pa.array(noted[name], kind) if has_values else pa.nulls(20))
        pq.write_table(rows, tmp_path / f"raw/{index}.parquet")
    found = scored(trained, tmp_path / "raw", tmp_path / "scores.parquet", columns=[*kinds])
    for name, kind in kinds.items():
        assert found.schema.field(name).type == kind
        assert found[name].to_pylist() == [None] * 20 + noted[name] + [None] * 20


KEYS = pa.array([1, 2, 3])
TIMES = KEYS.cast(pa.timestamp("s"))


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (KEYS, KEYS.cast(pa.int32()), pa.int64()),
        (KEYS.cast(pa.uint8()), KEYS.cast(pa.int16()), pa.int16()),
        (KEYS, pa.array([1, None, 2.5]), pa.float64()),
        (TIMES, TIMES.cast(pa.timestamp("us")), pa.timestamp("us")),
        (TIMES.cast(pa.timestamp("s", "Europe/Oslo")), TIMES.cast(pa.timestamp("s", "Asia/Tokyo")), None),
    ],
)
def test_column_to_pass_through_may_differ_in_width_between_files(
    trained: TrainResult, table: pa.Table, tmp_path: Path, first: pa.Array, second: pa.Array, kind: pa.DataType | None
) -> None:
    (tmp_path / "raw").mkdir()
    for index, column in enumerate((first, second)):
        pq.write_table(table.slice(0, 3).append_column("key", column), tmp_path / f"raw/{index}.parquet")
    found = scored(trained, tmp_path / "raw", tmp_path / "scores.parquet", columns=["key"])
    assert found.schema.field("key").type == (kind or pa.timestamp("ms", "UTC"))
    assert found["key"].to_pylist() == first.to_pylist() + second.to_pylist()


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (pa.array([2**53 + 1, 0, 1]), "does not hold all of its values"),
        (pa.array(["1", "2", "3"]), "column 'key' is string; in .*0.parquet it is double"),
        (
            pa.array([1, 2, 3], pa.decimal128(20, 2)),
            r"column 'key' is decimal128\(20, 2\); in earlier files it is double",
        ),
    ],
)
def test_column_to_pass_through_is_copied_exactly_or_refused(
    trained: TrainResult, table: pa.Table, tmp_path: Path, second: pa.Array, message: str
) -> None:
    (tmp_path / "raw").mkdir()
    for index, column in enumerate((pa.array([1.5, 2, 3]), second)):
        pq.write_table(table.slice(0, 3).append_column("key", column), tmp_path / f"raw/{index}.parquet")
    with pytest.raises(DataError, match=message):
        predict(trained.model, tmp_path / "raw", tmp_path / "scores.parquet", columns=["key"])
    assert not (tmp_path / "scores.parquet").exists()


def test_only_what_the_model_reads_is_needed_and_probabilities_are_probabilities(
    trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    extra = table.drop_columns("label").append_column("note", pa.array(["?"] * len(table)))
    found = scored(trained, write(extra, tmp_path / "raw", files=1), tmp_path / "scores.parquet")
    assert found.schema.names == ["label_probability"]
    assert found.schema.field("label_probability").type == pa.float32()
    assert 0 <= found["label_probability"].to_numpy().min() <= found["label_probability"].to_numpy().max() <= 1


def test_file_without_rows_gives_a_file_without_rows(trained: TrainResult, table: pa.Table, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    pq.write_table(table.slice(0, 0), tmp_path / "raw/none.parquet")
    assert len(scored(trained, tmp_path / "raw", tmp_path / "scores.parquet")) == 0


def as_text(table: pa.Table, name: str) -> pa.Table:
    return table.set_column(table.schema.names.index(name), name, table[name].cast(pa.string()))


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        (lambda t: t.drop_columns("mean_area"), [], "'mean_area' is missing; the model was trained with it"),
        (
            lambda t: t,
            ["nothing"],
            "'nothing' does not exist, so it cannot be copied to the output .*; expected one of",
        ),
        (lambda t: t, ["Sit"], "'Sit' does not exist, so it cannot be copied to the output .*; did you mean 'site'?"),
        (lambda t: as_text(t, "mean_area"), [], "'mean_area' is string; the model was trained with numbers"),
        (lambda t: t.append_column("site", t["row"]), [], "'site' occurs 2 times"),
        (lambda t: t.drop_columns("site").append_column("site", t["row"]), [], "'site' is int64; .* categories"),
    ],
    ids=["missing", "missing to pass", "misspelt to pass", "text", "twice", "number"],
)
def test_other_columns_are_named_with_their_file_and_nothing_is_left(
    trained: TrainResult, table: pa.Table, tmp_path: Path, change: Any, columns: list[str], message: str
) -> None:
    source = write(table, tmp_path / "raw", files=2)
    pq.write_table(change(table), source / "wrong.parquet")
    with pytest.raises(DataError, match=f"wrong.parquet: column {message}" if not columns else message):
        predict(trained.model, source, tmp_path / "out/scores.parquet", columns=columns)
    assert not list((tmp_path / "out").iterdir()) if (tmp_path / "out").exists() else True


def test_files_are_scored_once_and_in_the_order_named(trained: TrainResult, table: pa.Table, tmp_path: Path) -> None:
    first, second = (write(table.slice(*part), tmp_path / str(part[0]), files=1) for part in ((0, 50), (50, 70)))
    (tmp_path / "link").symlink_to(first)
    sources: list[str | Path] = [second, first, f"{second}/*.parquet", tmp_path / "link"]
    predict(trained.model, sources, tmp_path / "scores.parquet", columns=["label"])
    expected = table.slice(50, 70)["label"].to_pylist() + table.slice(0, 50)["label"].to_pylist()
    assert pq.read_table(tmp_path / "scores.parquet")["label"].to_pylist() == expected


def test_source_is_never_overwritten(trained: TrainResult, table: pa.Table, tmp_path: Path) -> None:
    source = write(table, tmp_path / "raw", files=1) / "part-0.parquet"
    before = source.read_bytes()
    with pytest.raises(OutputError, match="is one of the sources"):
        predict(trained.model, source, tmp_path / "raw/../raw/part-0.parquet")
    assert source.read_bytes() == before
    # One that looks like scores: they are replaced on demand.
    remote, rows = "memory://raw/rows.parquet", table.append_column("label_probability", table["row"])
    with fsspec.open(remote, "wb") as file:
        pq.write_table(rows, file)
    for out in (remote, "memory:///raw/rows.parquet"):
        with pytest.raises(OutputError, match="is one of the sources"):
            predict(trained.model, remote, out, overwrite=True)


def test_bucket_that_cannot_be_written_is_named_before_rows_are_scored(
    trained: TrainResult, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", refuse)
    monkeypatch.setattr("dkan_core.batch_scoring.predict.scored_batches", lambda *_: pytest.fail("rows are scored"))
    denied = r"memory://denied/\w+\.\w+\.partial: cannot be written \(Access Denied"
    with pytest.raises(OutputError, match=denied):
        predict(trained.model, source, "memory://denied/scores.parquet")
    with pytest.raises(OutputError, match=denied), result_printer("memory://denied/scored.json", overwrite=False):
        pytest.fail("the command has begun")
    with pytest.raises(OutputError, match="memory://: is a folder"), result_printer("memory://", overwrite=False):
        pytest.fail("the command has begun")


def test_scores_that_would_be_sources_of_the_next_call_are_refused(
    trained: TrainResult, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(table, tmp_path / "raw", files=2)
    monkeypatch.chdir(tmp_path / "raw")
    for source in (".", "*", tmp_path / "raw"):
        with pytest.raises(OutputError, match=r"^scores\.parquet: lies in a folder of sources \(.*\); choose a file"):
            predict(trained.model, source, "scores.parquet")
    for out in ("scores.csv", "../scores.parquet"):
        assert predict(trained.model, ".", out) == table.num_rows


def test_values_that_the_model_does_not_know_are_counted_by_column(
    trained: TrainResult, table: pa.Table, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    predict(trained.model, write(table, tmp_path / "known", 2), tmp_path / "known.parquet")
    assert "does not know" not in caplog.text
    index = table.column_names.index("site")
    sites = ["elsewhere", "nowhere"] * 50 + table["site"].to_pylist()[100:]
    moved = write(table.set_column(index, "site", pa.array(sites)), tmp_path / "moved", 2)
    predict(trained.model, moved, tmp_path / "moved.parquet")
    (text,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    share = f"100 of {len(table)} rows ({100 / len(table):.2%})"
    assert text == f"column 'site': {share} hold a value that the model does not know; 0.00% expected from training"
