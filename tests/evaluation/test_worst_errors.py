"""The worst errors are the rows that they should be, with reasons; the columns of the report say how rows moved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import ConfigError, PrepareConfig, TrainResult, append_rows, evaluate, prepare, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.evaluation.column_summary import describe_columns
from dkan_core.evaluation.labelled_rows import open_evaluation_data
from dkan_core.evaluation.worst_errors import REASONS, find_worst_errors
from dkan_core.explanation.reasons import Reason
from dkan_core.model.saved_model import SavedModel
from tests.additive_data import QUICK


@pytest.fixture(scope="module")
def saved(trained: TrainResult) -> SavedModel:
    return SavedModel(Path(trained.model))


def scores_of(places: list[str], saved: SavedModel, trained: TrainResult, out: Path) -> tuple[np.ndarray, np.ndarray]:
    found = evaluate(trained.model, places, out, explain=False)
    return found.labels, found.probabilities


def test_raw_rows_show_their_own_values(saved: SavedModel, trained: TrainResult, source: Path, tmp_path: Path) -> None:
    table = pq.read_table(source)
    # Two files, so that a row's number counts over both.
    places = [str(tmp_path / name) for name in ("a.parquet", "b.parquet")]
    pq.write_table(table.slice(0, 300), places[0])
    pq.write_table(table.slice(300), places[1])
    labels, scores = scores_of(places, saved, trained, tmp_path / "eval")
    with open_evaluation_data(saved, places, None, []) as data:
        found = find_worst_errors(saved, data, labels, scores, 10)["label"]
    truth = table["label"].to_numpy()
    assert [error.number for error in found.false_positives] == sorted(
        np.flatnonzero(truth == 0), key=lambda row: -scores[row, 0]
    )[:5]
    assert [error.number for error in found.false_negatives] == sorted(
        np.flatnonzero(truth == 1), key=lambda row: scores[row, 0]
    )[:5]
    assert any(error.number >= 300 for error in found.false_positives + found.false_negatives)
    for error in [*found.false_positives, *found.false_negatives]:
        assert error.probability == pytest.approx(scores[error.number, 0]) and len(error.reasons) == REASONS
        sizes = [abs(reason.log_odds) for reason in error.reasons]
        assert sizes == sorted(sizes, reverse=True)
        for reason in error.reasons:
            value = table[reason.column][error.number].as_py()
            assert reason.value == (None if value is None else pa.scalar(value).cast(pa.string()).as_py())


def test_files_may_store_a_column_as_other_types(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    """Times of two zones, and truth values as text, have no type in common."""
    rows = 200
    x = np.random.default_rng(0).normal(size=rows)
    times = pa.array(np.arange(rows) * 10**9, pa.timestamp("us", "UTC"))
    table = pa.table({"x": x, "at": times, "paid": x > 1, "label": (x > 0).astype(np.int8)})
    pq.write_table(table, tmp_path / "a.parquet")
    prepare(tmp_path / "a.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    model = train(tmp_path / "data", tmp_path / "run", replace(QUICK, epochs=1, members=1)).model
    kinds = {"at": pa.timestamp("us", "Europe/Berlin"), "paid": pa.string()}
    schema = pa.schema([(field.name, kinds.get(field.name, field.type)) for field in table.schema])
    pq.write_table(table.cast(schema), tmp_path / "b.parquet")
    places, saved = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")], SavedModel(Path(model))
    evaluation = evaluate(model, places, tmp_path / "eval", explain=False)
    with open_evaluation_data(saved, places, None, []) as data:
        found = find_worst_errors(saved, data, evaluation.labels, evaluation.probabilities, 4)["label"]
    one, other = found.false_positives
    assert other.number == one.number + rows, "the same row of the other file"
    assert {reason.column: reason.log_odds for reason in one.reasons} == pytest.approx(
        {reason.column: reason.log_odds for reason in other.reasons}
    )


def test_rows_of_a_prepared_split_show_values_read_back(
    saved: SavedModel, trained: TrainResult, prepared: Path, tmp_path: Path
) -> None:
    labels, scores = scores_of([str(prepared)], saved, trained, tmp_path / "eval")
    with open_evaluation_data(saved, [str(prepared)], None, []) as data:
        found = find_worst_errors(saved, data, labels, scores, 3)["label"]
        assert find_worst_errors(saved, data, labels, scores, 0) == {}
    # One of three is a negative; half of an odd count is rounded down.
    assert (len(found.false_positives), len(found.false_negatives)) == (1, 2)
    reasons: list[Reason] = [reason for error in found.false_negatives for reason in error.reasons]
    assert all(len(reason.value or "") <= 11 for reason in reasons)
    page = (tmp_path / "eval" / "report.html").read_text()
    assert "Worst errors" in page and reasons[0].text in page
    evaluate(trained.model, prepared, tmp_path / "private", explain=False, worst_errors=0)
    assert "Worst errors" not in (tmp_path / "private" / "report.html").read_text()
    with pytest.raises(ConfigError, match="worst_errors must be 0 or more, got -1"):
        evaluate(trained.model, prepared, tmp_path / "none", worst_errors=-1)


def test_values_that_the_encoding_does_not_keep_are_called_so(tmp_path: Path) -> None:
    """A column may be called as a pair of columns would be."""
    rows = 300
    x = np.random.default_rng(0).normal(size=rows)
    kinds = [f"kind {row}" if row % 3 else "a x b" for row in range(rows)]
    table = pa.table({"x": x, "size x kind": kinds, "label": (x > 0).astype(np.int8)})
    pq.write_table(table, tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    model = train(tmp_path / "data", tmp_path / "run", replace(QUICK, epochs=1, members=1)).model
    evaluation = evaluate(model, tmp_path / "data", tmp_path / "eval", explain=False)
    with open_evaluation_data(SavedModel(Path(model)), [str(tmp_path / "data")], None, []) as data:
        found = find_worst_errors(SavedModel(Path(model)), data, evaluation.labels, evaluation.probabilities, 40)
    errors = [*found["label"].false_positives, *found["label"].false_negatives]
    values = {reason.value for error in errors for reason in error.reasons if reason.column == "size x kind"}
    assert values == {"a x b", "rare or unseen"}


def test_columns_that_moved_come_first(saved: SavedModel, prepared: Path, source: Path, tmp_path: Path) -> None:
    with open_evaluation_data(saved, [str(prepared)], "train", []) as data:
        arrays = next(data.batches(saved.preprocessor))
    same = describe_columns(saved.preprocessor, arrays)
    assert same is not None and {column["verdict"] for column in same["shown"]} == {"stable"}
    table = pq.read_table(source)
    shifted = table.set_column(0, table.column_names[0], pa.array(table.column(0).to_numpy() + 10.0))
    shifted = shifted.set_column(
        table.column_names.index("site"), "site", pa.array(["elsewhere"] * 100 + ["left"] * (len(table) - 100))
    )
    pq.write_table(shifted, tmp_path / "moved.parquet")
    with open_evaluation_data(saved, [str(tmp_path / "moved.parquet")], None, []) as data:
        found = describe_columns(saved.preprocessor, next(data.batches(saved.preprocessor)))
    assert found is not None and found["rows"] == len(table)
    moved = {column["name"]: column for column in found["shown"][:2]}
    assert {*moved} == {table.column_names[0], "site"}
    assert moved["site"]["unseen"].startswith("100 (") and moved["site"]["distinct"] == "2"
    assert moved[table.column_names[0]]["verdict"] == "large"
    assert moved[table.column_names[0]]["missing"] == "3.87%"
    assert describe_columns(saved.preprocessor, {}) is None


@pytest.mark.parametrize("shift", [-1000, 1000])
def test_columns_that_moved_before_training_have_not_moved_since(tmp_path: Path, shift: int) -> None:
    """Rows that were added beyond the range of the encoding are in train as in test."""
    rng = np.random.default_rng(0)
    for name, by in (("old", 0), ("new", shift)):
        x, y = rng.normal(size=3000) + by, (rng.random(3000) < 0.3).astype(np.int8)
        pq.write_table(pa.table({"x": x, "y": y}), tmp_path / f"{name}.parquet")
    prepare(tmp_path / "old.parquet", tmp_path / "data", PrepareConfig(label=("y",)))
    append_rows(tmp_path / "new.parquet", tmp_path / "data")
    manifest = read_manifest(tmp_path / "data")
    with open_split(tmp_path / "data", manifest, "test") as reader:
        found = describe_columns(manifest.preprocessor, next(all_batches(reader, reader.rows)))
    assert found is not None and [column["verdict"] for column in found["shown"]] == ["stable"]
