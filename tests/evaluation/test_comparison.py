"""``evaluate --previous``: an earlier model on the same rows, whatever encoding it knows."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, TrainConfig, TrainResult, append_rows, evaluate, prepare, train
from dkan_core.data.format.manifest import PreparedData, read_manifest
from dkan_core.data.format.origin import KEPT_FILES, origin_of, overlap
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.evaluation.comparison import compare, comparison_section
from dkan_core.evaluation.labelled_rows import PreparedRows
from dkan_core.explanation.inverse_transform import inverse_transform

SMALL = TrainConfig(
    blend=False, epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02, seed=1
)


def test_model_compared_with_itself_scores_the_same(trained: TrainResult, prepared: Path, tmp_path: Path) -> None:
    metrics = evaluate(trained.model, prepared, tmp_path / "eval", previous=trained.model, explain=False).metrics
    assert metrics["previous_average_precision"] == metrics["average_precision"]
    assert metrics["difference_to_previous_interval"] == {"average_precision": [0.0, 0.0], "roc_auc": [0.0, 0.0]}
    low, high = metrics["average_precision_interval"]
    assert low < metrics["average_precision"] <= high
    report = (tmp_path / "eval" / "report.html").read_text()
    assert "Comparison with the previous best model" in report and "+0.000 to +0.000" in report


def test_model_with_another_encoding_scores_as_on_raw_rows(source: Path, prepared: Path, tmp_path: Path) -> None:
    """The earlier model knows a third of the rows; on the prepared rows it does as well as on the raw ones."""
    pq.write_table(pq.read_table(source).slice(0, 190), tmp_path / "older.parquet")
    older = tmp_path / "older"
    prepare(tmp_path / "older.parquet", older, PrepareConfig(label=("label",)))
    earlier = train(older, tmp_path / "run", SMALL)
    prepare(source, tmp_path / "raw", PrepareConfig(label=("label",), numeric_dtype="float32"))
    assert read_manifest(older).preprocessor != read_manifest(prepared).preprocessor
    coarse = compare(earlier.model, PreparedRows(prepared, read_manifest(prepared), "test"))
    fine = compare(earlier.model, PreparedRows(tmp_path / "raw", read_manifest(tmp_path / "raw"), "test"))
    assert coarse.metrics["rows"] == fine.metrics["rows"]
    assert coarse.metrics["average_precision"] == pytest.approx(fine.metrics["average_precision"], abs=0.01)
    assert coarse.metrics["log_loss"] == pytest.approx(fine.metrics["log_loss"], abs=0.02)


def test_values_are_read_back_as_they_were(source: Path, prepared: Path) -> None:
    manifest, raw = read_manifest(prepared), pq.read_table(source)
    with open_split(prepared, manifest, "train") as reader:
        rows = next(all_batches(reader, 10_000))
        table = inverse_transform(rows, manifest.preprocessor)
    assert set(table.column_names) == set(raw.column_names) - {"label"}
    assert {*table["site"].to_pylist()} == {"left", "right", None}
    for name in ("mean_radius", "mean_area"):
        found, known = table[name].to_numpy(), np.unique(raw[name].drop_null().to_numpy())
        nearest = np.abs(found[~np.isnan(found), None] - known).min(axis=1)
        assert np.median(nearest / known.std()) < 0.01


def test_first_run_has_nothing_to_compare_with(trained: TrainResult, prepared: Path, tmp_path: Path) -> None:
    found = evaluate(trained.model, prepared, tmp_path / "eval", previous=tmp_path / "none", explain=False)
    assert found.metrics["previous_average_precision"] is None and found.scalars()["previous_model_found"] == 0
    assert re.search(r"^Not compared with .*none\\: there is no model yet\.$", found.summary(), re.MULTILINE)
    assert "there is no model yet" in (tmp_path / "eval" / "report.html").read_text()


@pytest.mark.parametrize("damage", ["folder", "bytes", "scheme"])
def test_earlier_model_that_cannot_be_read_is_not_compared(prepared: Path, tmp_path: Path, damage: str) -> None:
    place, config = str(tmp_path / "best"), tmp_path / "best" / "config.json"
    config.parent.mkdir()
    if damage == "folder":
        config.mkdir()
    elif damage == "bytes":
        config.write_bytes(b"\xff")
    else:
        place = "nosuch://bucket/best"
    compared = compare(place, PreparedRows(prepared, read_manifest(prepared), "test"))
    assert compared.is_there and not compared.metrics and place in compared.why_not


def test_model_of_other_columns_is_not_compared(source: Path, prepared: Path, tmp_path: Path) -> None:
    renamed = pq.read_table(source).rename_columns(
        ["radius" if name == "mean_radius" else name for name in pq.read_schema(source).names]
    )
    pq.write_table(renamed, tmp_path / "renamed.parquet")
    prepare(tmp_path / "renamed.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    earlier = train(tmp_path / "data", tmp_path / "run", SMALL)
    compared = compare(earlier.model, PreparedRows(prepared, read_manifest(prepared), "test"))
    assert not compared.metrics and "'radius' is missing" in compared.why_not


def test_labels_in_another_order_are_compared_by_name(source: Path, tmp_path: Path) -> None:
    table = pq.read_table(source)
    large = pc.cast(pc.greater(table["mean_area"], 600), pa.int8())
    pq.write_table(table.append_column("large", large), tmp_path / "rows.parquet")
    made = {}
    for first, second in (("label", "large"), ("large", "label")):
        data = tmp_path / first
        prepare(tmp_path / "rows.parquet", data, PrepareConfig(label=(first, second)))
        made[first] = train(data, tmp_path / f"{first}-run", replace(SMALL, epochs=1)).model
    found = evaluate(made["large"], tmp_path / "large", tmp_path / "eval", explain=False)
    compared = compare(made["large"], PreparedRows(tmp_path / "label", read_manifest(tmp_path / "label"), "test"))
    assert list(compared.metrics["labels"]) == ["label", "large"]
    for name, metrics in compared.metrics["labels"].items():
        assert metrics.items() <= found.metrics["labels"][name].items()
    both = evaluate(made["label"], tmp_path / "label", tmp_path / "both", previous=made["large"], explain=False).metrics
    assert both["comparable"] and both["previous_average_precision"] == found.metrics["average_precision"]


@pytest.mark.parametrize("split_by", ["row", "content"])
def test_model_that_was_trained_on_rows_of_test_is_said_to_be(
    split_by: Literal["row", "content"], source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file that is added, and sorts first, moves the rows of the others to other splits unless content decides."""
    table, raw = pq.read_table(source), tmp_path / "raw"
    raw.mkdir()
    config = PrepareConfig(label=("label",), split_by=split_by)
    pq.write_table(table.slice(0, 400), raw / "2.parquet")
    first = prepare(raw, tmp_path / "first", config)
    earlier = train(tmp_path / "first", tmp_path / "run", replace(SMALL, epochs=1))
    on_its_own = compare(earlier.model, PreparedRows(tmp_path / "first", first, "test"))
    assert not on_its_own.overlap
    pq.write_table(table.slice(400), raw / "1.parquet")
    second = prepare(raw, tmp_path / "second", config)
    compared = compare(earlier.model, PreparedRows(tmp_path / "second", second, "test"))
    section = comparison_section(compared.metrics, compared)
    found = "1 of these 2 files was among its training files, split by the numbers of rows"
    if split_by == "row":
        assert found in caplog.text and "--split-by content" in caplog.text and found in section
    else:
        assert "training files" not in caplog.text + section
    third = replace_rule(second, {"by": "group", "column": "patient"})
    assert "split by another rule" in overlap(origin_of(first), origin_of(third))


def test_rows_that_are_added_behind_the_others_stay_in_their_splits(source: Path, tmp_path: Path) -> None:
    table, raw, config = pq.read_table(source), tmp_path / "raw", PrepareConfig(label=("label",))
    raw.mkdir()
    pq.write_table(table.slice(0, 400), raw / "1.parquet")
    first = origin_of(prepare(raw, tmp_path / "data", config))
    pq.write_table(table.slice(400), raw / "2.parquet")
    appended = origin_of(append_rows(raw / "2.parquet", tmp_path / "data"))
    whole = origin_of(prepare(raw, tmp_path / "whole", config))
    assert appended == whole and not overlap(first, appended) and not overlap(appended, first)
    turned = whole.model_copy(update={"files": whole.files[::-1]})
    assert "split by the numbers of rows" in overlap(whole, turned)


def replace_rule(manifest: PreparedData, rule: dict[str, str]) -> PreparedData:
    return manifest.model_copy(update={"split_rule": rule})


def test_other_files_are_no_overlap_and_copies_of_a_file_are(prepared: Path) -> None:
    manifest = read_manifest(prepared)
    (file,) = manifest.sources
    copied = file.model_copy(update={"path": f"s3://elsewhere/{Path(file.path).name}", "modified": "later"})
    other = file.model_copy(update={"rows": file.rows + 1})
    moved = manifest.model_copy(update={"sources": [other, copied]})
    assert "1 of these 2 files" in overlap(origin_of(manifest), origin_of(moved))
    assert not overlap(origin_of(manifest), origin_of(manifest.model_copy(update={"sources": [other]})))
    many = [file.model_copy(update={"rows": rows}) for rows in range(3 * KEPT_FILES)]
    assert len(origin_of(manifest.model_copy(update={"sources": many})).files) == KEPT_FILES
