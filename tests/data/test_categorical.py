"""Integers that are codes: with ``categorical`` they are what the same codes as text are, to the bit, everywhere."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import (
    ConfigError,
    DataError,
    PrepareConfig,
    TrainConfig,
    append_rows,
    evaluate,
    explain_rows,
    export,
    inspect_data,
    measure_drift,
    plan_scoring,
    predict,
    prepare,
    score_part,
    train,
)
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.preprocessor import CategoryFeature
from dkan_core.data.format.manifest import read_manifest
from dkan_core.model.model_folder import WEIGHTS
from dkan_core.model.saved_model import SavedModel
from dkan_core.onnx_export.verification import graph_inputs
from dkan_core.serving.rows import Tensor, rows_of_instances, rows_of_tensors
from tests.data.stages import run
from tests.data.tables import contents, write

ROWS = 2000
IDS = ("user", "item")
CONFIG = PrepareConfig(label=("y",), categorical=IDS)
TEXT = PrepareConfig(label=("y",))


def make_rows(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "user": pa.array(rng.integers(0, 300, ROWS), pa.int32(), mask=rng.random(ROWS) < 0.05),
            "item": pa.array(rng.integers(-20, 100, ROWS), pa.int64()),
            "x": rng.normal(size=ROWS),
            "y": rng.integers(0, 2, ROWS).astype(np.int8),
        }
    )


def as_kind(table: pa.Table, kind: pa.DataType | None, names: tuple[str, ...] = IDS) -> pa.Table:
    """Return the rows with other types of their codes; None makes dictionaries."""
    for name in names:
        column = table[name].dictionary_encode() if kind is None else table[name].cast(kind)
        table = table.set_column(table.schema.names.index(name), name, column)
    return table


def as_text(table: pa.Table) -> pa.Table:
    return as_kind(table, pa.string())


def shards(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in contents(folder).items() if name.endswith(".safetensors")}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of the same codes as text."""
    folder = tmp_path_factory.mktemp("texts")
    prepare(write(as_text(make_rows()), folder / "raw"), folder / "out", TEXT)
    return folder / "out"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that was trained on integers; on the same texts, the training gives the same weights."""
    folder, found = tmp_path_factory.mktemp("model"), {}
    settings = TrainConfig(
        blend=False, epochs=1, hidden=(8,), members=1, workers=1, device="cpu", architecture_search=False
    )
    for name, rows, config in (("texts", as_text(make_rows()), TEXT), ("ints", make_rows(), CONFIG)):
        prepare(write(rows, folder / f"{name} raw"), folder / name, config)
        found[name] = train(folder / name, folder / f"{name} run", settings).model
    weights = {(Path(each) / WEIGHTS).read_bytes() for each in found.values()}
    assert len(weights) == 1
    return found["ints"]


@pytest.mark.parametrize(
    "kinds",
    [
        [pa.int64()],
        [pa.int16(), pa.uint16()],
        [None],
        [pa.decimal128(20, 0)],
        [pa.float64()],
        [pa.int32(), pa.float32(), pa.string(), None],
    ],
)
def test_integers_of_any_width_are_prepared_as_their_text(
    kinds: list[pa.DataType | None], texts: Path, tmp_path: Path
) -> None:
    rows = make_rows()
    source, start = tmp_path / "raw", 0
    source.mkdir()
    for index, kind in enumerate(kinds):
        stop = ROWS * (index + 1) // len(kinds)
        part, names = rows.slice(start, stop - start), IDS if kind != pa.uint16() else ("user",)
        pq.write_table(as_kind(part, kind, names), source / f"{index}.parquet", row_group_size=300)
        start = stop
    manifest = prepare(source, tmp_path / "out", CONFIG)
    assert manifest.preprocessor == read_manifest(texts).preprocessor
    assert manifest.preprocessor.categories == [*IDS]
    assert shards(tmp_path / "out") == shards(texts)
    assert shards(tmp_path / "out")


def test_integers_beside_text_are_said_to_be_categories_perhaps(tmp_path: Path) -> None:
    rows, texts = make_rows().select(["item", "x", "y"]), as_kind(make_rows(), pa.string(), ("item",))
    write(rows.append_column("zip code", rows["item"]), tmp_path / "raw")
    pq.write_table(texts.append_column("zip code", texts["item"]), tmp_path / "raw" / "text.parquet")
    config = PrepareConfig(label=("y",), drop=("item", "user"))
    with pytest.raises(DataError, match=r"one type, or read it as a category \(--categorical 'zip code'\)$"):
        prepare(tmp_path / "raw", tmp_path / "out", config)
    with pytest.raises(DataError, match=r"write all files with one type$"):
        prepare(tmp_path / "raw", tmp_path / "out", replace(config, group="zip code"))
    made = prepare(tmp_path / "raw", tmp_path / "out", replace(config, categorical=("zip code",)))
    assert made.preprocessor.categories == ["zip code"]


def test_parts_and_workers_give_the_same(texts: Path, tmp_path: Path) -> None:
    source = write(make_rows(), tmp_path / "raw", files=3)
    run(source, tmp_path / "parts", CONFIG, parts=3)
    prepare(source, tmp_path / "workers", CONFIG, workers=2)
    prepare(source, tmp_path / "one", CONFIG)
    assert shards(tmp_path / "parts") == shards(tmp_path / "workers") == shards(tmp_path / "one")
    assert read_manifest(tmp_path / "parts").preprocessor == read_manifest(texts).preprocessor


def test_like_extend_and_append_take_integers(texts: Path, tmp_path: Path) -> None:
    source = write(make_rows(1), tmp_path / "raw")
    as_texts = write(as_text(make_rows(1)), tmp_path / "raw texts")
    prepare(source, tmp_path / "like", PrepareConfig(like=str(texts)))
    prepare(source, tmp_path / "named", PrepareConfig(like=str(texts), categorical=("user",)))
    prepare(as_texts, tmp_path / "like texts", PrepareConfig(like=str(texts)))
    assert shards(tmp_path / "like") == shards(tmp_path / "like texts") == shards(tmp_path / "named")
    more = (
        make_rows(1).append_column("shop", pa.array(np.arange(ROWS) % 7)).append_column("hour", pa.array([1.0] * ROWS))
    )
    extended = prepare(
        write(more, tmp_path / "more"),
        tmp_path / "extended",
        PrepareConfig(like=str(texts), extend=True, categorical=("shop", "item")),
    )
    assert extended.preprocessor.categories == [*IDS, "shop"]
    for name, raw in (("first", source), ("second", as_texts)):
        prepare(write(as_text(make_rows()), tmp_path / f"{name} raw"), tmp_path / name, TEXT)
        append_rows(raw, tmp_path / name)
    assert shards(tmp_path / "first") == shards(tmp_path / "second")
    for name in ("x", "z"):
        with pytest.raises(ConfigError, match=rf"categorical {name}: .* its encoding says what is a category"):
            prepare(source, tmp_path / "wrong", PrepareConfig(like=str(texts), categorical=(name,)))


def test_data_of_other_categories_are_not_reused(tmp_path: Path) -> None:
    """Also where the order of all features is the same."""
    table = make_rows().select(["user", "item", "y"])
    source = write(as_kind(table, pa.string(), ("item",)), tmp_path / "raw")
    before = prepare(source, tmp_path / "out", PrepareConfig(label=("y",)))
    config = PrepareConfig(label=("y",), categorical=("user",))
    after = prepare(source, tmp_path / "out", config, reuse=True, overwrite=True)
    assert before.preprocessor.columns == after.preprocessor.columns
    assert (before.preprocessor.categories, after.preprocessor.categories) == (["item"], ["user", "item"])
    again = prepare(source, tmp_path / "out", config, reuse=True)
    assert again.fingerprint == after.fingerprint


def test_strings_booleans_and_names_of_folders_may_be_named(tmp_path: Path) -> None:
    table = as_text(make_rows()).append_column("flag", pa.array(np.arange(ROWS) % 3 == 0))
    for month, part in (("1", table.slice(0, 1000)), ("12", table.slice(1000))):
        (tmp_path / "raw").mkdir(exist_ok=True)
        write(part, tmp_path / "raw" / f"month={month}")
    plain = prepare(tmp_path / "raw", tmp_path / "plain", TEXT)
    assert "month" not in plain.preprocessor.categories
    named = prepare(
        tmp_path / "raw", tmp_path / "out", PrepareConfig(label=("y",), categorical=("month", "user", "flag"))
    )
    found = {each.name: each.names for each in named.preprocessor.coded if isinstance(each, CategoryFeature)}
    assert {*found} == {"month", "user", "item", "flag"} and {*found["month"]} == {"1", "12"}


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("x", None, r"raw/part-000.parquet: column 'x' is double and read as string, .*holds numbers with a fraction"),
        ("usr", None, r"part-000.parquet: categorical column 'usr' does not exist; did you mean 'user'"),
        ("ids", lambda t: t.append_column("ids", pa.array([[1]] * ROWS)), r"'ids' is .*list.*; expected integers, str"),
        (
            "n",
            lambda t: t.append_column("n", pa.array([Decimal("1.5")] * ROWS)),
            r"'n' is decimal.*; expected integers",
        ),
    ],
)
def test_columns_that_hold_no_codes_are_named(
    column: str, change: Callable[[pa.Table], pa.Table] | None, message: str, tmp_path: Path
) -> None:
    table = make_rows() if change is None else change(make_rows())
    with pytest.raises(DataError, match=message):
        prepare(write(table, tmp_path / "raw"), tmp_path / "out", PrepareConfig(label=("y",), categorical=(column,)))


@pytest.mark.parametrize("role", ["drop", "group", "weight", "label"])
def test_a_column_of_another_role_is_no_category(role: str) -> None:
    settings: dict[str, Any] = {"label": ("y",), "categorical": ("user",)}
    settings[role] = "user" if role in ("group", "weight") else ("user",)
    with pytest.raises(ConfigError, match=rf"column 'user' has two roles, .*{role}"):
        PrepareConfig(**settings)


def test_files_and_frames_are_scored_as_the_same_texts(model: str, tmp_path: Path) -> None:
    rows = make_rows(2).slice(0, ROWS // 5)
    wanted = predict(model, as_text(rows), reasons=2)
    assert len(wanted["y_probability"].unique()) > len(rows) // 2
    for index, kind in enumerate((pa.int64(), pa.int16(), None, pa.float64(), pa.float32())):
        found, raw = as_kind(rows, kind), tmp_path / f"{index}.parquet"
        assert predict(model, found, reasons=2).equals(wanted)
        pq.write_table(found, raw)
        predict(model, raw, tmp_path / f"scores {index}.parquet", reasons=2)
        assert pq.read_table(tmp_path / f"scores {index}.parquet").equals(wanted)
    frame = rows.to_pandas().assign(user=pd.array(rows["user"].to_pylist(), "Int64"))
    assert np.array_equal(predict(model, frame)["y_probability"], wanted["y_probability"].to_numpy())
    assert np.array_equal(predict(model, rows.to_pandas())["y_probability"], wanted["y_probability"].to_numpy())


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (0.5, pa.float64(), "column 'user' holds numbers with a fraction; the model was trained with categories there"),
        (2.0**54, pa.float64(), "column 'user' holds numbers beyond 9,007,199,254,740,992, where floats are no exact"),
        (2.0**25, pa.float32(), "column 'user' holds numbers beyond 16,777,216, where floats are no exact integers"),
    ],
)
def test_floats_that_are_no_integers_are_named(
    value: float, kind: pa.DataType, message: str, model: str, tmp_path: Path
) -> None:
    rows = make_rows(2)
    rows = rows.set_column(0, "user", pa.array([value] * ROWS, kind))
    pq.write_table(rows, tmp_path / "raw.parquet")
    with pytest.raises(DataError, match=f"raw.parquet: {message}"):
        predict(model, tmp_path / "raw.parquet", tmp_path / "never.parquet")
    datatype = "FP64" if kind == pa.float64() else "FP32"
    tensors = [Tensor(name, "FP64", [3], [1.0] * 3) for name in ("x", "item")]
    with pytest.raises(DataError, match=f"request: {message}"):
        rows_of_tensors([*tensors, Tensor("user", datatype, [3], [value] * 3)], SavedModel(Path(model)).preprocessor)


def test_parts_evaluation_drift_and_reasons_are_those_of_texts(model: str, tmp_path: Path) -> None:
    found = {}
    given = make_rows(2).slice(0, ROWS // 5)
    for name, rows in (("ints", given), ("floats", as_kind(given, pa.float64())), ("texts", as_text(given))):
        source = write(rows, tmp_path / name, files=2)
        plan_scoring(model, source, str(tmp_path / f"{name} scores"), parts=2)
        for part in range(2):
            score_part(str(tmp_path / f"{name} scores"), part)
        scores = pq.read_table(tmp_path / f"{name} scores")
        result = evaluate(model, source, tmp_path / f"{name} eval", explain=False)
        reasons = explain_rows(model, source, tmp_path / f"{name} rows")
        found[name] = scores, result.metrics["average_precision"], measure_drift(model, source), reasons
    assert found["ints"] == found["floats"] == found["texts"]
    values = {reason.column: reason.value for reason in found["ints"][3][0].reasons}
    assert values["item"] == str(make_rows(2)["item"][0].as_py())


def test_requests_may_have_integers(model: str) -> None:
    saved = SavedModel(Path(model))
    rows = make_rows(3).slice(0, 50)
    wanted = saved.preprocessor.transform(as_text(rows), "rows")
    mixed = rows.to_pylist()
    for row in mixed[::3]:
        row["item"] = str(row["item"])
    tensors = [
        Tensor("x", "FP64", [50], rows["x"].to_pylist()),
        Tensor("user", "INT32", [50], rows["user"].to_pylist()),
        Tensor("item", "INT64", [50, 1], rows["item"].to_numpy().reshape(-1, 1)),
    ]
    texts = [tensors[0], *(Tensor(name, "BYTES", [50], as_text(rows)[name].to_pylist()) for name in IDS)]
    floats = rows.to_pandas().astype({"user": float, "item": float})
    for found in (
        rows_of_instances(floats.to_dict("records"), saved.preprocessor),
        rows_of_tensors([Tensor(name, "FP64", [50], floats[name].tolist()) for name in floats], saved.preprocessor),
        rows_of_instances(rows.to_pylist(), saved.preprocessor),
        rows_of_instances(mixed, saved.preprocessor),
        rows_of_tensors(tensors, saved.preprocessor),
        rows_of_tensors(texts, saved.preprocessor),
    ):
        assert found.schema.field("user").type == found.schema.field("item").type == pa.string()
        arrays = saved.preprocessor.transform(found, "request")
        assert all(np.array_equal(arrays[name], wanted[name]) for name in wanted)
    huge = [{"x": 0.0, "user": 2**70, "item": None}]
    assert rows_of_instances(huge, saved.preprocessor)["user"].to_pylist() == [str(2**70)]


def test_mlflow_and_onnx_score_them(model: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="needs the onnx extra")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")
    from dkan_core.tracking.mlflow.model import MlflowScorer

    rows = make_rows(4)
    wanted = predict(model, rows)["y_probability"].to_numpy()
    frame = rows.to_pandas()
    frame["user"] = frame["user"].astype("Int64")
    assert np.array_equal(MlflowScorer(Path(model)).predict(frame)["y_probability"], wanted)
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    # A graph has columns of text for categories: integers are given as their digits.
    inputs = graph_inputs(rows, SavedModel(Path(model)).preprocessor, "")
    (found,) = session.run(None, inputs)
    np.testing.assert_allclose(found[:, 0], wanted, atol=1e-5)
    assert inputs["item"][0, 0] == str(rows["item"][0].as_py())


def test_integers_are_refused_where_no_category_is_one(tmp_path: Path) -> None:
    """Such as truth values, names, and codes with leading zeros, none of which an integer has."""
    for values in (["true", "false"], ["Oslo", "Rome"], ["00501", "07030"]):
        texts = pa.table({"c": values * 100})
        encoding = fit_preprocessor(texts, [], ["c"], "uint8", "rows")
        with pytest.raises(DataError, match="column 'c' is int64; the model was trained with categories there"):
            encoding.transform(pa.table({"c": [0, 1]}), "rows")


def test_an_inspection_takes_them_as_categories(tmp_path: Path) -> None:
    source = write(make_rows(), tmp_path / "raw")
    found = inspect_data(source, CONFIG).to_dict()
    same = inspect_data(write(as_text(make_rows()), tmp_path / "texts"), TEXT).to_dict()
    assert found["columns"] == same["columns"]
