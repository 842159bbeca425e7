"""``evaluate`` on raw Parquet: the metrics of the prepared rows, and what is refused."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import ConfigError, DataError, PrepareConfig, TrainResult, evaluate, predict, prepare
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.preparation.append import append_rows
from dkan_core.data.source import reading
from dkan_core.evaluation import labelled_rows
from dkan_core.evaluation.labelled_rows import PreparedRows, RowCollector
from dkan_core.explanation.explain import quick_explanation
from dkan_core.explanation.explanation import Explanation
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.arrays import Arrays
from tests.command import check, dkan


@pytest.fixture(scope="module")
def table(source: Path) -> pa.Table:
    """Return the source's rows with the split that the test names, and a column to ignore."""
    rows = pq.read_table(source)
    split = np.random.default_rng(3).choice(["train", "valid", "test"], len(rows))
    return rows.append_column("part", pa.array(split)).append_column("note", pa.array(["?"] * len(rows)))


@pytest.fixture
def raw(table: pa.Table, tmp_path: Path) -> Path:
    """Write the rows of the test part into two files."""
    kept = table.filter(pa.compute.equal(table["part"], "test"))
    (tmp_path / "raw").mkdir()
    pq.write_table(kept.slice(0, 50), tmp_path / "raw/a.parquet", row_group_size=20)
    pq.write_table(kept.slice(50), tmp_path / "raw/b.parquet")
    return tmp_path / "raw"


def test_metrics_are_those_of_the_prepared_rows(
    trained: TrainResult, table: pa.Table, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH_BYTES", 1)  # batches of 1024 rows
    # On a GPU, the last bits of a row's score depend on how many rows are scored with it.
    monkeypatch.setattr(labelled_rows, "best_device", lambda: torch.device("cpu"))
    pq.write_table(table, tmp_path / "all.parquet")
    config = PrepareConfig(like=trained.model, split_column="part")
    prepare(tmp_path / "all.parquet", tmp_path / "data", config)
    evaluate(trained.model, tmp_path / "data", tmp_path / "eval", explain=False)
    found = evaluate(trained.model, raw, tmp_path / "direct", previous=trained.model, save_predictions=True)
    assert found.metrics["rows"] == read_manifest(tmp_path / "data").splits["test"].rows
    same = json.loads((tmp_path / "eval/metrics.json").read_text())
    here = json.loads((tmp_path / "direct/metrics.json").read_text())
    assert here.pop("split") == str(raw) and same.pop("split") == "test"
    assert here.pop("is_raw") and not same.pop("is_raw")
    assert here.pop("model_fingerprint") == same.pop("model_fingerprint")
    assert here.pop("previous_average_precision") == here["average_precision"] and here.pop("comparable")
    assert here.pop("previous_model_found") == 1
    assert here.pop("difference_to_previous_interval") == {"average_precision": [0.0, 0.0], "roc_auc": [0.0, 0.0]}
    assert len(here.pop("slices")["columns"]) == 3, "what was explained has slices as well"
    assert here.keys() == same.keys() and here["labels"].keys() == same["labels"].keys()
    for key, value in same.items():
        assert here[key] == (value if key == "labels" else pytest.approx(value, rel=1e-9))
    report = (tmp_path / "direct/report.html").read_text()
    assert f"label: {raw}" in report and "What the model learned" in report
    predict(trained.model, raw, tmp_path / "scores.parquet", columns=["label"])
    scores = pq.read_table(tmp_path / "scores.parquet")
    assert pq.read_table(tmp_path / "direct/predictions.parquet").to_pydict() == scores.to_pydict()


@pytest.mark.parametrize("options", [["--label", "outcome"], []], ids=["named", "as the model's"])
def test_command_takes_several_sources(
    options: list[str], trained: TrainResult, raw: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    """Labels as booleans in a column of another name are those of the model all the same; null is not measured."""
    rows = pq.read_table(raw).slice(0, 60)
    labels = pa.array([None, *rows["label"].to_pylist()[1:]], pa.int8()).cast(pa.bool_())
    name = "outcome" if options else "label"
    for index in range(2):
        part = rows.drop_columns("label").append_column(name, labels).slice(30 * index, 30)
        pq.write_table(part, tmp_path / f"{index}.parquet")
    sources = [tmp_path / "0.parquet", f"file://{tmp_path}/1.parquet", tmp_path / "?.parquet"]
    arguments = ["evaluate", trained.model, *sources, "--out", tmp_path / "eval", "--no-explain", *options]
    assert dkan(*arguments, monkeypatch=monkeypatch) == 0
    metrics = json.loads((tmp_path / "eval/metrics.json").read_text())
    assert metrics["rows"] == 60 and metrics["labels"]["label"]["rows"] == 59
    assert metrics["split"] == f"{sources[0]} and 2 more"


def test_rows_that_the_model_was_trained_on_are_named(
    trained: TrainResult, source: Path, raw: Path, tmp_path: Path
) -> None:
    known = evaluate(trained.model, source, tmp_path / "known", explain=False)
    unseen = evaluate(trained.model, raw, tmp_path / "unseen", explain=False)
    (warning,) = set(known.metrics["warnings"]) - set(unseen.metrics["warnings"])
    because = f"{source.name} was among its training files"
    assert warning == f"the model may have been trained on these rows: {because}"


def test_credentials_of_rows_and_of_an_earlier_model_are_not_written(
    trained: TrainResult, raw: Path, tmp_path: Path
) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(raw / "a.parquet"), "/key:secret@bucket/rows.parquet")
    memory.put(str(trained.model), "/key:secret@bucket/model", recursive=True)
    places = [f"memory://key:secret@bucket/{name}" for name in ("rows.parquet", "model", "none")]
    metrics = evaluate(trained.model, places[0], tmp_path / "eval", previous=places[1]).metrics
    assert metrics["split"] == "memory://***@bucket/rows.parquet" and "previous_average_precision" in metrics
    evaluate(trained.model, places[0], tmp_path / "alone", previous=places[2], explain=False)
    written = [path for path in tmp_path.glob("*/*") if path.suffix in (".json", ".html")]
    assert len(written) == 4 and not [path for path in written if "key:secret" in path.read_text()]


def test_one_class_alone_has_no_average_precision(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    rows = pq.read_table(raw)
    pq.write_table(rows.filter(pa.compute.equal(rows["label"], 1)), tmp_path / "ones.parquet")
    found = evaluate(trained.model, tmp_path / "ones.parquet", tmp_path / "eval", explain=False)
    assert found.metrics["average_precision"] is None and found.metrics["prevalence"] == 1


def test_label_without_a_measured_row_is_named(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    rows = pq.read_table(raw)
    unknown = rows.set_column(rows.schema.names.index("label"), "label", pa.nulls(len(rows)))
    pq.write_table(unknown, tmp_path / "unknown.parquet")
    found = evaluate(trained.model, tmp_path / "unknown.parquet", tmp_path / "eval", explain=False)
    assert found.metrics["warnings"] == ["label 'label' is measured in no row, so it has no metrics"]


def same(table: pa.Table) -> pa.Table:
    return table


def put(name: str, values: Callable[[pa.Table], Any]) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        column = pa.array(values(table))
        if name not in table.schema.names:
            return table.append_column(name, column)
        return table.set_column(table.schema.names.index(name), name, column)

    return change


REFUSED: dict[str, tuple[Callable[[pa.Table], pa.Table], list[str], str]] = {
    "split": (same, ["{raw}", "--split", "test"], r"split test: .*raw is raw Parquet, which has no splits"),
    "no label": (
        lambda table: table.rename_columns(["late" if name == "label" else name for name in table.schema.names]),
        ["{raw}"],
        r"b\.parquet: label column 'label' does not exist; name it with --label: candidates are .*'late'",
    ),
    "other data": (
        lambda table: pa.table({"speed": table["mean_radius"]}),
        ["{raw}"],
        r"b\.parquet: column 'mean_radius' is missing; the model was trained with it .also missing: 'mean_t",
    ),
    "label of another spelling": (
        lambda table: table.rename_columns(["Labels" if name == "label" else name for name in table.schema.names]),
        ["{raw}"],
        r"label column 'label' does not exist; did you mean 'Labels'\? If not, name it with --label: candidates are",
    ),
    "feature of another spelling": (
        lambda table: table.rename_columns(["Sites" if name == "site" else name for name in table.schema.names]),
        ["{raw}"],
        r"b\.parquet: column 'site' is missing; the model was trained with it; rename 'Sites', if it is that; where",
    ),
    "no such label": (same, ["{raw}", "--label", "nothing"], r"label column 'nothing' does not exist.* candidates"),
    "a feature as label": (same, ["{raw}", "--label", "site"], r"label site: is a feature of the model"),
    "two labels": (
        same,
        ["{raw}", "--label", "label", "--label", "note"],
        r"label, note: the model has 1 label \(",
    ),
    "label of 2": (
        put("label", lambda table: np.full(len(table), 2)),
        ["{raw}"],
        r"b\.parquet: label column 'label' must hold 0, 1 or null; found 2 .*; the model was trained with 0 and 1",
    ),
    "column missing": (
        lambda table: table.drop_columns("site"),
        ["{raw}"],
        r"b\.parquet: column 'site' is missing; the model was trained with it; .* give nulls",
    ),
    "no rows": (lambda table: table.slice(0, 0), ["{raw}/b.parquet"], r"no rows in any file"),
    "no such place": (same, ["{raw}/none"], r"none: no such file or folder; expected raw Parquet, or prepared data"),
    "neither": (same, ["{tmp}/empty"], r"empty: no Parquet files .* expected raw Parquet, or prepared data: a folder"),
    "prepared and raw": (same, ["{prepared}", "{raw}"], r"is prepared data, which is evaluated on alone"),
    "label of prepared data": (
        same,
        ["{prepared}", "--label", "note"],
        r"label note: .* is prepared data, with labels",
    ),
    "no such split": (same, ["{prepared}", "--split", "tset"], r"has no split 'tset'; did you mean 'test'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_evaluated_is_named(
    case: str, trained: TrainResult, prepared: Path, raw: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    change, arguments, message = REFUSED[case]
    (tmp_path / "empty").mkdir()
    pq.write_table(change(pq.read_table(raw / "b.parquet")), raw / "b.parquet")
    places = {"{raw}": raw, "{tmp}": tmp_path, "{prepared}": prepared}
    for place, path in places.items():
        arguments = [argument.replace(place, str(path)) for argument in arguments]
    code = dkan("evaluate", trained.model, *arguments, "--out", tmp_path / "eval", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "eval").exists()


def test_data_encoded_otherwise_names_the_way_out(
    trained: TrainResult, source: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    prepare(source, tmp_path / "other", PrepareConfig(label=("label",), seed=1))
    arguments = ["evaluate", trained.model, tmp_path / "other", "--out", tmp_path / "eval"]
    check(dkan(*arguments, monkeypatch=monkeypatch), capsys.readouterr().err, r"dkan prepare \.\.\. --like MODEL")


def test_rows_are_kept_as_they_pass() -> None:
    batches = [{"labels": np.arange(start, start + 10)} for start in range(0, 50, 10)]
    collector = RowCollector(np.array([0, 9, 10, 33, 49]))
    assert [*map(len, (batch["labels"] for batch in collector.watch(iter(batches))))] == [10] * 5
    assert collector.rows()["labels"].tolist() == [0, 9, 10, 33, 49]
    assert RowCollector(np.array([], dtype=np.int64)).rows() == {}


@pytest.mark.parametrize("is_raw", [True, False])
def test_first_rows_of_the_explained_sample_are_a_sample_too(
    is_raw: bool, trained: TrainResult, table: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Curves are the mean over its first rows only, which in stored order are the oldest ones of data that grew."""
    explained: list[npt.NDArray[np.uint8]] = []

    def explain(saved: SavedModel, sample: Arrays, labels: Sequence[str], split: str) -> Explanation:
        explained.append(sample["labels"][:, 0])
        return quick_explanation(saved, sample, labels, split)

    monkeypatch.setattr("dkan_core.evaluation.evaluate.quick_explanation", explain)
    rows = table.drop_columns("part").sort_by("label")
    old = len(rows) - pa.compute.sum(rows["label"]).as_py() + 2  # one row of 1 for each split, which needs both classes
    parts = ["train"] * len(rows)
    parts[0] = parts[old - 1] = "valid"
    rows = rows.append_column("part", pa.array(parts))
    files = [tmp_path / "old.parquet", tmp_path / "new.parquet"]
    pq.write_table(rows.slice(0, old), files[0])
    pq.write_table(rows.slice(old), files[1])
    if not is_raw:
        prepare(files[0], tmp_path / "data", PrepareConfig(like=trained.model, split_column="part"))
        append_rows(files[1], tmp_path / "data")
    data, split = (files, None) if is_raw else (tmp_path / "data", "train")
    evaluate(trained.model, data, tmp_path / "eval", split=split)
    (labels_N,) = explained
    assert labels_N[:150].mean() == pytest.approx(labels_N.mean(), abs=0.2) and 0.05 < labels_N.mean() < 0.95


def test_nothing_to_evaluate_on_is_refused(trained: TrainResult, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name prepared data or raw Parquet"):
        evaluate(trained.model, [], tmp_path / "eval")


def test_column_of_categories_without_a_value_may_be_one_of_floats(
    trained: TrainResult, source: Path, tmp_path: Path
) -> None:
    """As pandas reads an empty column of a CSV file."""
    rows = pq.read_table(source)
    place = rows.schema.get_field_index("site")
    found = {}
    for name, kind in (("texts", pa.string()), ("floats", pa.float64())):
        pq.write_table(rows.set_column(place, "site", pa.nulls(len(rows), kind)), tmp_path / f"{name}.parquet")
        predict(trained.model, tmp_path / f"{name}.parquet", tmp_path / f"{name}-scores.parquet")
        metrics = evaluate(trained.model, tmp_path / f"{name}.parquet", tmp_path / name, explain=False).metrics
        found[name] = pq.read_table(tmp_path / f"{name}-scores.parquet"), metrics["average_precision"]
    assert found["floats"] == found["texts"]
    wrong = rows.set_column(place, "site", pa.array([1.5] + [None] * (len(rows) - 1)))
    pq.write_table(wrong, tmp_path / "wrong.parquet", row_group_size=100)
    with pytest.raises(DataError, match="column 'site' is double; the model was trained with categories"):
        predict(trained.model, tmp_path / "wrong.parquet", tmp_path / "none.parquet")


def test_sample_of_a_split_has_rows_of_all_of_it(prepared: Path) -> None:
    """Rows that were added are the last ones."""
    rows = PreparedRows(prepared, read_manifest(prepared), "test")
    chosen = rows.sample(10)
    assert len({*chosen.tolist()}) == 10 and chosen[0] == 0 and rows.rows * 0.8 < chosen[-1] < rows.rows
    assert rows.sample(10**6).tolist() == [*range(rows.rows)]
