"""``prepare`` with the encoding of a model: what is refused, what is unknown, and the same scores as ``predict``."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import PrepareConfig, TrainResult, evaluate, predict, prepare
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.prepared import score_split
from dkan_core.scoring.probabilities import to_probability
from tests.command import check, dkan
from tests.data.stages import every_call, run
from tests.data.tables import contents

SPLIT = "60/20/20"


@pytest.fixture(scope="module")
def newer(source: Path) -> pa.Table:
    """Rows of the same columns with drifted values, a new category, a number for each row, and a column to ignore."""
    rng = np.random.default_rng(5)
    table = pq.read_table(source).take(rng.permutation(569)[:400])
    sites = np.where(rng.random(400) < 0.25, "middle", table["site"].to_pylist())
    table = table.set_column(table.schema.names.index("site"), "site", pa.array(sites.tolist(), pa.string()))
    radius = pa.array(table["mean_radius"].to_numpy(zero_copy_only=False) * 1.1, from_pandas=True)
    table = table.set_column(table.schema.names.index("mean_radius"), "mean_radius", radius)
    return table.append_column("row", pa.array(np.arange(400))).append_column("note", pa.array(["?"] * 400))


@pytest.fixture
def raw(newer: pa.Table, tmp_path: Path) -> Path:
    pq.write_table(newer, tmp_path / "newer.parquet", row_group_size=60)
    return tmp_path / "newer.parquet"


@pytest.mark.parametrize("of", ["model", "run", "prepared", "uri"])
def test_encoding_and_labels_are_those_of_the_model(
    of: str, trained: TrainResult, prepared: Path, raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Path(trained.model)
    places = {"model": model, "run": model.parent, "prepared": prepared, "uri": f"file://{model}"}
    with caplog.at_level(logging.INFO, "dkan_core"):
        prepare(raw, tmp_path / "data", PrepareConfig(like=str(places[of]), split=SPLIT, drop=("note",)))
    manifest = read_manifest(tmp_path / "data")
    assert manifest.preprocessor == read_manifest(prepared).preprocessor and manifest.labels == ["label"]
    assert manifest.encoding_from == manifest.preprocessor.digest
    assert str(model.parent) not in (tmp_path / "data/manifest.json").read_text()
    assert "are ignored: 'row'" in caplog.text
    unknown = sum(value == "middle" for value in pq.read_table(raw)["site"].to_pylist())
    assert f"column 'site': {unknown / 4:.2f}% of the rows ({unknown}) hold a value" in caplog.text
    assert manifest.preprocessor.counts is not None  # of the new rows: what a model trained on them compares with
    assert sum(manifest.preprocessor.counts["site"]) == manifest.splits["train"].rows
    evaluate(trained.model, tmp_path / "data", tmp_path / "eval", explain=False)


def test_floats_without_values_are_categories_without_values(
    trained: TrainResult, newer: pa.Table, tmp_path: Path
) -> None:
    """As pandas writes a column of categories that has none."""
    place = newer.schema.names.index("site")
    for name, kind in (("floats", pa.float64()), ("texts", pa.string())):
        rows = newer.set_column(place, "site", pa.nulls(len(newer), kind))
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        prepare(tmp_path / f"{name}.parquet", tmp_path / name, PrepareConfig(like=trained.model, split=SPLIT))
    floats, texts = (contents(tmp_path / name / "train") for name in ("floats", "texts"))
    assert floats == texts and floats


def test_scores_are_those_of_predict_to_the_bit(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    """The row number travels through the preparation as the weight."""
    prepare(raw, tmp_path / "data", PrepareConfig(like=trained.model, split=SPLIT, weight="row"))
    predict(trained.model, raw, tmp_path / "scores.parquet")
    predicted = pq.read_table(tmp_path / "scores.parquet")["label_probability"].to_numpy()
    manifest, saved, seen = read_manifest(tmp_path / "data"), SavedModel(Path(trained.model)), []
    for split in manifest.splits:
        with open_split(tmp_path / "data", manifest, split) as reader:
            found = score_split(saved.module, reader, torch.device("cpu"))
        assert found.weight_N is not None
        rows = found.weight_N.astype(int)
        seen += rows.tolist()
        np.testing.assert_array_equal(predicted[rows], to_probability(found.log_odds_NL)[:, 0])
    assert sorted(seen) == list(range(400))


@pytest.mark.parametrize("parts", [1, 4])
def test_by_parts_gives_the_same_bytes(
    parts: int, trained: TrainResult, raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = PrepareConfig(like=trained.model, split=SPLIT, weight="row")
    prepare(raw, tmp_path / "whole", config)
    with caplog.at_level(logging.INFO, "dkan_core"):
        run(raw, tmp_path / "parts", config, parts, seed=parts)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert "column 'site': " in caplog.text


def test_parts_keep_the_encoding_they_were_planned_with(
    trained: TrainResult, raw: Path, tmp_path: Path, prepared: Path
) -> None:
    """The model may be gone, or another, when a later stage runs."""
    shutil.copytree(trained.model, tmp_path / "model")
    config = PrepareConfig(like=str(tmp_path / "model"), split=SPLIT)
    first, *rest = every_call([raw], str(tmp_path / "parts"), config)
    first()
    shutil.rmtree(tmp_path / "model")
    for call in rest:
        call()
    assert read_manifest(tmp_path / "parts").preprocessor == read_manifest(prepared).preprocessor


def test_earlier_result_is_reused_only_with_the_same_encoding(trained: TrainResult, raw: Path, tmp_path: Path) -> None:
    config = PrepareConfig(like=trained.model, split=SPLIT, drop=("note", "row"))
    prepare(raw, tmp_path / "data", config)
    before = (tmp_path / "data/manifest.json").stat().st_mtime_ns
    prepare(raw, tmp_path / "data", config, reuse=True)
    assert (tmp_path / "data/manifest.json").stat().st_mtime_ns == before
    fitted = replace(config, like=None, label=("label",))
    prepare(raw, tmp_path / "data", fitted, reuse=True, overwrite=True)
    assert read_manifest(tmp_path / "data").encoding_from is None


def test_columns_to_ignore_may_be_in_some_files_only(
    trained: TrainResult, newer: pa.Table, raw: Path, tmp_path: Path
) -> None:
    config = PrepareConfig(like=trained.model, split=SPLIT)
    whole = prepare(raw, tmp_path / "whole", config)
    (tmp_path / "parts").mkdir()
    pq.write_table(newer.slice(0, 200).drop_columns("row"), tmp_path / "parts/a.parquet")
    second = newer.slice(200).append_column("user_id", pa.array(np.arange(200) % 20))
    pq.write_table(put(second, "note", pa.array([1.5] * 200)), tmp_path / "parts/b.parquet")
    parts = prepare(tmp_path / "parts", tmp_path / "out", config)
    assert parts.splits == whole.splits and parts.split_hints == whole.split_hints


def put(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return table.set_column(table.schema.names.index(name), name, values)


def drop(*names: str) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.drop_columns(list(names))


def cast(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.schema.names.index(name), name, table[name].cast(kind))


def same(table: pa.Table) -> pa.Table:
    return table


REFUSED: dict[str, tuple[Callable[[pa.Table], pa.Table], list[str], str]] = {
    "column missing": (
        drop("mean_area"),
        [],
        r"newer\.parquet: column 'mean_area' is missing; .*model was made with it",
    ),
    "columns missing": (
        drop("mean_area", "site"),
        [],
        r"column 'mean_area' is missing; .* with it \(also missing: 'site'\)",
    ),
    "text for numbers": (
        cast("mean_area", pa.string()),
        [],
        r"newer\.parquet: column 'mean_area' is string; .* was made with numbers there",
    ),
    "numbers for text": (
        lambda table: table.drop_columns("site").append_column("site", table["row"]),
        [],
        r"column 'site' is int64; .* was made with categories",
    ),
    "label missing": (drop("label"), [], r"newer\.parquet: label column 'label' does not exist"),
    "one class": (
        lambda table: table.drop_columns("label").append_column("label", pa.array([1] * len(table))),
        [],
        r"newer\.parquet: label column 'label' has one class only: 1 in every row with a value",
    ),
    "another label": (same, ["--label", "note"], r"label note: .* has label; leave out --label"),
    "another dtype": (same, ["--numeric-dtype", "float16"], r"numeric_dtype float16: .* stores uint8"),
    "feature dropped": (same, ["--drop", "site"], r"drop site: is a feature of .*model, .*; leave out that setting$"),
    "feature as group": (
        same,
        ["--group", "site"],
        r"group site: is a feature of .*; .*, or name a copy of the column$",
    ),
    "no model": (same, ["--like", "{tmp}"], r"neither a model .* nor prepared data"),
    "no such place": (same, ["--like", "{tmp}/none"], r"none: neither a model .* nor prepared data"),
    "damaged": (same, ["--like", "{tmp}/damaged"], r"damaged/preprocessor\.json: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_model_cannot_take_is_refused_by_name(
    case: str, trained: TrainResult, newer: pa.Table, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    change, options, message = REFUSED[case]
    shutil.copytree(trained.model, tmp_path / "damaged")
    (tmp_path / "damaged/preprocessor.json").write_text('{"numeric')
    pq.write_table(change(newer), tmp_path / "newer.parquet")
    options = [option.replace("{tmp}", str(tmp_path)) for option in options]
    like = [] if "--like" in options else ["--like", trained.model]
    arguments = ["prepare", tmp_path / "newer.parquet", "--out", tmp_path / "out", *like, *options]
    code = dkan(*arguments, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "out").exists()


def test_the_models_own_labels_may_be_named(trained: TrainResult, raw: Path, tmp_path: Path, monkeypatch: Any) -> None:
    options = ["--like", trained.model, "--label", "label", "--split", SPLIT, "--drop", "row", "--drop", "note"]
    assert dkan("prepare", raw, "--out", tmp_path / "out", *options, monkeypatch=monkeypatch) == 0
    assert json.loads((tmp_path / "out/manifest.json").read_text())["encoding_from"]
