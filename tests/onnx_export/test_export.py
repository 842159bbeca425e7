"""``export``: the file gives the probabilities of ``predict``, for every kind of column and of model."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dkan_core import (
    ConfigError,
    DataError,
    OutputError,
    PrepareConfig,
    TrainConfig,
    TrainResult,
    export,
    predict,
    prepare,
    train,
)
from dkan_core.model.saved_model import SavedModel
from dkan_core.onnx_export import export as export_module
from dkan_core.onnx_export import verification
from dkan_core.scoring.probabilities import score
from tests import warm
from tests.command import check, dkan
from tests.onnx_export.models import CATEGORIES, NUMERIC, NumericDtype, new_rows, random_model, table

onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")


def session(path: Path) -> Any:
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run(path: Path, rows: pa.Table, missing_text: str = "") -> npt.NDArray[np.float32]:
    """Score a table as a user of onnxruntime would, who knows only the graph."""
    inputs = {}
    for column in session(path).get_inputs():
        values = rows[column.name].to_pylist()
        if column.type == "tensor(string)":
            texts = {None: missing_text, True: "true", False: "false"}
            inputs[column.name] = np.array([texts.get(value, value) for value in values], dtype=object)[:, None]
        else:
            assert column.type == "tensor(double)"
            numbers = [np.nan if value is None else float(value) for value in values]
            inputs[column.name] = np.array(numbers)[:, None]
    (probabilities,) = session(path).run(None, inputs)
    found: npt.NDArray[np.float32] = probabilities
    return found


def predicted(model: Path, rows: pa.Table, folder: Path) -> npt.NDArray[np.float32]:
    """Score a table with ``predict``."""
    pq.write_table(rows, folder / "rows.parquet")
    predict(model, folder / "rows.parquet", folder / "scores.parquet", overwrite=True)
    scores = pq.read_table(folder / "scores.parquet")
    return np.stack([column.to_numpy() for column in scores.columns], axis=1)


def check_equal(model: Path, folder: Path, missing_text: str = "") -> None:
    """Export a model, and compare it on rows that it knows and on rows that it does not."""
    path = folder / "model.onnx"
    result = export(model, path, missing_text=missing_text, overwrite=True)
    assert result.largest_difference <= verification.MAX_DIFFERENCE and result.size == path.stat().st_size
    onnx.checker.check_model(onnx.load(path), full_check=True)
    for rows in (table(), new_rows()):
        wanted = predicted(model, rows, folder)
        np.testing.assert_allclose(run(path, rows, missing_text), wanted, rtol=0, atol=1e-5)
        assert wanted.std() > 0.02, "rows that all score the same would show nothing"


@pytest.mark.parametrize("blend", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_every_storage_of_scores(dtype: NumericDtype, blend: bool, tmp_path: Path) -> None:
    check_equal(random_model(tmp_path / "model", dtype=dtype, blend=blend), tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"members": 1},
        {"members": 1, "hidden": ()},
        {"members": 4, "hidden": ()},
        {"hidden": (6, 4, 3)},
        {"input_norm": "layer", "num_centers": 7, "grid_min": -3.0, "grid_max": 1.5},
        {"one_hot_groups": (), "missing": ()},
        {"one_hot_groups": ((0,), (1, 3), (4, 2, 0)), "missing": (3, 4)},
        {"labels": ("late",)},
        {"sketch_rank": 2, "sketch_seed": 5},
        {"ignored_features": (0,)},
        {"ignored_features": (1,), "blend": True},
        {"model": "fastkan"},
        {"model": "fastkan", "hidden": ()},
        {"model": "fastkan", "hidden": (7, 4), "input_norm": "layer", "labels": ("late",)},
        {"blend": True, "one_hot_groups": (), "labels": ("late",)},
        {"model": "additive"},
    ],
    ids=str,
)
def test_every_architecture(changes: dict[str, Any], tmp_path: Path) -> None:
    check_equal(random_model(tmp_path / "model", **changes), tmp_path)


@pytest.mark.parametrize(
    ("numeric", "categories"),
    [(NUMERIC, ()), ((), CATEGORIES), (("member",), ()), (("income",), ()), (("share", "member"), ("opted in",))],
)
def test_columns_of_one_kind_alone(numeric: tuple[str, ...], categories: tuple[str, ...], tmp_path: Path) -> None:
    for kind in ({}, {"blend": True}, {"model": "additive"}):
        model = random_model(
            tmp_path / f"{len(kind)}-{'model' in kind}", numeric=numeric, categories=categories, **kind
        )
        check_equal(model, tmp_path)


def test_truth_values_match_however_they_are_written(tmp_path: Path) -> None:
    rows = table()
    index = rows.schema.get_field_index("opted in")
    texts = [str(value) for value in rows["opted in"].to_pylist()]
    as_text, upper = (rows.set_column(index, "opted in", pa.array(each)) for each in (texts, map(str.upper, texts)))
    for known in (rows, as_text):
        model = random_model(tmp_path / str(known["opted in"].type), rows=known)
        export(model, tmp_path / "model.onnx", overwrite=True)
        wanted = predicted(model, known, tmp_path)
        for each in (rows, as_text, upper):
            assert np.array_equal(predicted(model, each, tmp_path), wanted)
            np.testing.assert_allclose(run(tmp_path / "model.onnx", each), wanted, rtol=0, atol=1e-5)


def test_column_with_a_single_value(tmp_path: Path) -> None:
    rows = table().append_column("same", pa.array(np.full(len(table()), 4.5)))
    model = random_model(tmp_path / "model", numeric=("age", "same"), categories=(), rows=rows, blend=True)
    path = tmp_path / "model.onnx"
    export(model, path, overwrite=True)
    for same in (4.5, 4.0, None):
        changed = rows.drop_columns("same").append_column("same", pa.array([same] * len(rows), pa.float64()))
        np.testing.assert_allclose(run(path, changed), predicted(model, changed, tmp_path), rtol=0, atol=1e-5)


def test_column_names_that_nodes_have_too(tmp_path: Path) -> None:
    names = {"age": "Concat", "income": "indexes_2", "shop": "Gather", "plan": "", "opted in": "table"}
    renamed = {old: new for old, new in names.items() if new}
    rows = table().rename_columns([renamed.get(name, name) for name in table().schema.names])
    model = random_model(tmp_path / "model", numeric=("Concat", "indexes_2"), categories=("Gather", "table"), rows=rows)
    export(model, tmp_path / "model.onnx")
    found = run(tmp_path / "model.onnx", rows)
    np.testing.assert_allclose(found, predicted(model, rows, tmp_path), rtol=0, atol=1e-5)


@pytest.mark.parametrize("model", ["auto", "fastkan"])
def test_no_rows_give_no_probabilities(model: str, tmp_path: Path) -> None:
    export(random_model(tmp_path / "model", model=model), tmp_path / "model.onnx")
    assert run(tmp_path / "model.onnx", table().slice(0, 0)).shape == (0, 2)


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train an ensemble with crosses and weighted rows for a moment; return its run."""
    folder = tmp_path_factory.mktemp("trained")
    pq.write_table(table(2000), folder / "rows.parquet")
    data = PrepareConfig(label=("late", "returned"), weight="importance")
    prepare(folder / "rows.parquet", folder / "prepared", data)
    config = TrainConfig(epochs=3, hidden=(8,), members=3, workers=1, device="cpu", batch_size=64, learning_rate=0.02)
    train(folder / "prepared", folder / "run", config)
    return folder / "run"


def test_trained_model_with_its_crosses_and_calibration(trained_run: Path, tmp_path: Path) -> None:
    saved = SavedModel(trained_run)
    groups = saved.config.one_hot_groups
    assert any(len(group) > 1 for group in groups) and saved.config.binary and saved.config.missing
    assert {saved.preprocessor.coded[index].kind for group in groups for index in group} == {"category", "value"}
    assert saved.module.calibration_shift.abs().max() > 0
    check_equal(trained_run / "model", tmp_path)


def test_command_takes_the_folder_of_a_run(trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "deep/late.onnx"
    assert dkan("export", trained_run, "--out", out, monkeypatch=monkeypatch) == 0
    assert [path.name for path in out.parent.iterdir()] == ["late.onnx"]
    saved = SavedModel(trained_run)
    found = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
    assert json.loads(found["labels"]) == ["late", "returned"]
    assert found["data_fingerprint"] == saved.metrics["data"] and len(found["data_fingerprint"]) > 20
    assert float(found["average_precision"]) == saved.metrics["average_precision"]
    opened = session(out)
    assert [each.name for each in opened.get_inputs()] == [*NUMERIC, *CATEGORIES]
    assert [(each.name, each.shape, each.type) for each in opened.get_outputs()] == [
        ("probabilities", ["N", 2], "tensor(float)")
    ]


def test_export_is_the_same_bytes_again_also_to_a_uri(tmp_path: Path) -> None:
    model = random_model(tmp_path / "model")
    export(model, tmp_path / "a.onnx")
    export(f"file://{model}", f"file://{tmp_path}/b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def with_empty_category() -> pa.Table:
    rows = table()
    texts = ["" if text == "None" else text for text in rows["shop"].to_pylist()]
    return rows.set_column(rows.schema.get_field_index("shop"), "shop", pa.array(texts))


def test_category_that_is_the_empty_text_needs_another_text_for_missing_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = with_empty_category()
    model = random_model(tmp_path / "model", rows=rows)
    code = dkan("export", model, "--out", tmp_path / "model.onnx", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, "column 'shop': '' is one of its categories.*--missing-text")
    assert not (tmp_path / "model.onnx").exists()
    export(model, tmp_path / "model.onnx", missing_text="n/a")
    found = run(tmp_path / "model.onnx", rows, "n/a")
    np.testing.assert_allclose(found, predicted(model, rows, tmp_path), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["probabilities", ""])
def test_column_that_no_input_may_be_called_is_refused_by_name(name: str, tmp_path: Path) -> None:
    rows = table().rename_columns([name if column == "age" else column for column in table().schema.names])
    model = random_model(tmp_path / "model", numeric=(name, "share"), rows=rows)
    with pytest.raises(DataError, match=f"column '{name}': an input of an ONNX graph cannot"):
        export(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_graph_that_differs_from_the_model_is_refused_and_leaves_the_earlier_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, out = random_model(tmp_path / "model"), tmp_path / "model.onnx"
    export(model, out)
    before = out.read_bytes()
    # The graph of another model: one whose calibration is a little different.
    other = SavedModel(model)
    other.module.calibrate(1.3005, -0.2)
    content = export_module.onnx_bytes(other)
    monkeypatch.setattr(export_module, "onnx_bytes", lambda saved, missing_text: content)
    with pytest.raises(OutputError, match=r"differ by up to \d\.\de-0[345], as 0\.\d+ instead of 0\.\d+"):
        export(model, out, overwrite=True)
    assert out.read_bytes() == before and [*tmp_path.glob("*.onnx*")] == [out]


def test_model_larger_than_a_file_may_be_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "MAX_CONSTANT_BYTES", 1000)
    with pytest.raises(OutputError, match="an ONNX file holds 2 GB"):
        export(random_model(tmp_path / "model"), tmp_path / "model.onnx")


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "onnxruntime" else True)
    with pytest.raises(ConfigError, match=r"onnxruntime is not installed; .*pip install '\.\[onnx\]'"):
        export(tmp_path / "none", tmp_path / "model.onnx")


def test_folder_without_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = dkan("export", tmp_path, "--out", tmp_path / "model.onnx", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"no config\.json there; expected a model")


@pytest.fixture(scope="module")
def exported(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SavedModel, Any]:
    path = tmp_path_factory.mktemp("exported") / "late.onnx"
    export(trained_run, path)
    return SavedModel(trained_run), session(path)


NUMBERS = st.one_of(st.integers(-10, 80).map(float), st.floats(), st.none())
TEXTS = st.one_of(st.sampled_from(["north", "None", "a", "b", "true", "false"]), st.text(min_size=1), st.none())
ROW = st.fixed_dictionaries({**dict.fromkeys(NUMERIC, NUMBERS), **dict.fromkeys(CATEGORIES, TEXTS)})


@settings(max_examples=40)
@given(rows=st.lists(ROW, min_size=1, max_size=5))
def test_any_rows_have_the_same_probabilities(rows: list[dict[str, Any]], exported: tuple[SavedModel, Any]) -> None:
    saved, opened = exported
    kinds = [*((name, pa.float64()) for name in NUMERIC), *((name, pa.string()) for name in CATEGORIES)]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema(kinds))
    wanted = score(saved.module, saved.preprocessor.transform(batch, "rows"), torch.device("cpu"))
    (found,) = opened.run(None, verification.graph_inputs(batch, saved.preprocessor, ""))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_export_leaves_nothing_in_the_home(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where onnxruntime keeps what it would report to its makers."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    done = warm.server().run(["export", trained.model, "--out", tmp_path / "model.onnx"], HOME=str(home))
    assert done.returncode == 0 and os.listdir(home) == []
