"""Columns of lists from training to scores: what takes them, and what refuses them by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.sparse import csr_matrix

from dkan_core import (
    ConfigError,
    DataError,
    FastKANClassifier,
    PrepareConfig,
    TrainConfig,
    evaluate,
    explain,
    measure_drift,
    plan,
    predict,
    prepare,
    train,
)
from dkan_core.data.encoding import sparse
from dkan_core.inspection.inspect import inspect_data
from dkan_core.model.saved_model import SavedModel
from dkan_core.onnx_export.export import onnx_bytes
from dkan_core.serving.rows import rows_of_instances
from tests.data.sparse_tables import as_bits, as_lists, list_table, make_ones, make_others
from tests.data.tables import write

CONFIG = PrepareConfig(label=("y",), drop=("row",))
TRAIN = TrainConfig(epochs=2, hidden=(8,), members=1, workers=1, dropout=0.0, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """Prepared rows, a run, and the source."""
    root: Path = tmp_path_factory.mktemp("sparse")
    write(list_table(make_ones()), root / "raw")
    prepare(root / "raw", root / "data", CONFIG)
    train(root / "data", root / "run", TRAIN)
    return root


def probabilities(file: Path) -> Any:
    return np.asarray(pq.read_table(file)["y_probability"])


def test_raw_and_prepared_rows_have_the_same_scores(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="dkan_core")
    found = evaluate(folder / "run", folder / "data", folder / "eval", split="test", explain=False, worst_errors=0)
    assert "no worst errors" not in caplog.text, "none were asked for"
    assert found.metrics["average_precision"] > found.metrics["prevalence"] + 0.1
    raw = evaluate(folder / "run", folder / "raw", folder / "eval-raw", label="y")
    assert "no worst errors" in caplog.text
    predict(folder / "run", folder / "raw", folder / "scores.parquet")
    np.testing.assert_array_equal(probabilities(folder / "scores.parquet"), raw.probabilities[:, 0])


def test_ids_of_another_kind_are_warned_of(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(folder / "run", folder / "raw", tmp_path / "known.parquet")
    assert "IDs that the model knows" not in caplog.text
    rows = list_table(make_ones())
    predict(folder / "run", write(rows.slice(0, 0), tmp_path / "empty"), tmp_path / "empty.parquet")
    assert "IDs that the model knows" not in caplog.text, "no row was read"
    index = rows.column_names.index("tags")
    others = pa.array([[each + 10**9 for each in ids or []] for ids in rows["tags"].to_pylist()])
    moved = write(rows.set_column(index, "tags", others), tmp_path / "moved")
    predict(folder / "run", moved, tmp_path / "moved.parquet")
    (text,) = [record.getMessage() for record in caplog.records if "IDs that" in record.getMessage()]
    assert text.startswith("column 'tags': rows have 0 IDs that the model knows, on average; ")
    monkeypatch.setattr(sparse, "MAX_ROW_IDS", 5)
    with pytest.raises(DataError, match=r"column 'tags' has \d+ IDs in a row; expected at most 5: shorten its lists$"):
        predict(folder / "run", folder / "raw", tmp_path / "long.parquet")


def test_vectors_of_bits_learn_what_lists_learn(folder: Path) -> None:
    ones_NV = make_ones()
    table = pa.table({**make_others(ones_NV), "tags": as_bits(ones_NV)})
    prepare(write(table, folder / "raw-bits"), folder / "bits", CONFIG)
    train(folder / "bits", folder / "run-bits", TRAIN)
    first, second = (SavedModel(folder / run / "model").module.state_dict() for run in ("run", "run-bits"))
    assert all(first[name].equal(second[name]) for name in first)
    with pytest.raises(DataError, match=r"'tags' is large_list<.*trained with vectors of 5 bytes"):
        predict(folder / "run-bits", folder / "raw", folder / "refused.parquet")


@pytest.mark.parametrize("settings", [{"strategy": "allreduce"}, {"strategy": "ddp"}, {"strategy": "parameter-server"}])
def test_two_workers_learn_what_one_learns(settings: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    both = {**TRAIN.__dict__, **settings, "workers": 2}
    train(folder / "data", tmp_path / "run", TrainConfig(**both))
    first, second = (SavedModel(run / "model").module.state_dict() for run in (folder / "run", tmp_path / "run"))
    for name in first:
        np.testing.assert_allclose(first[name], second[name], atol=2e-4)


def test_rows_of_a_request_are_scored_as_those_of_a_file(folder: Path) -> None:
    encoding = SavedModel(folder / "run").preprocessor
    rows = [{"x": 0.5, "tags": [3, 1, 3]}, {"x": None, "tags": None}, {"x": 1.0, "tags": []}]
    arrays = encoding.transform(rows_of_instances(rows, encoding), "request")
    assert arrays["sparse"].tolist() == [[2, 4], [0, 0], [0, 0]]
    assert encoding.transform(rows_of_instances([rows[2]], encoding), "request")["sparse"].tolist() == [[0]]
    with pytest.raises(DataError, match="column 'tags'"):
        rows_of_instances([{"x": 0.5, "tags": "red"}], encoding)


def test_training_goes_on_with_a_further_column(folder: Path, tmp_path: Path) -> None:
    ones_NV = make_ones()
    more = list_table(ones_NV).append_column("items", as_lists(1 - ones_NV[:, :7]))
    roles = PrepareConfig(drop=("row",), like=str(folder / "run"), extend=True)
    encoding = prepare(write(more, tmp_path / "raw"), tmp_path / "data", roles).preprocessor
    assert [feature.name for feature in encoding.sparse] == ["tags", "items"]
    settings = {**TRAIN.__dict__, "init_from": str(folder / "run"), "learning_rate": 1e-12}
    train(tmp_path / "data", tmp_path / "run", TrainConfig(**settings))
    before, after = (SavedModel(run / "model").module.state_dict() for run in (folder / "run", tmp_path / "run"))
    old_VH, new_VH = (state["encoder.sparse.weight"].numpy() for state in (before, after))
    np.testing.assert_allclose(new_VH[: len(old_VH)], old_VH, atol=1e-6)
    assert len(new_VH) == len(old_VH) + 7 and abs(new_VH[len(old_VH) :]).max() < 1e-6


def test_what_does_not_take_ids_says_so(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataError, match=r"column 'tags' holds IDs; .* not held against others"):
        explain(folder / "run", folder / "data", tmp_path / "explained", against=folder / "run")
    with pytest.raises(DataError, match="column 'tags' holds IDs"):
        onnx_bytes(SavedModel(folder / "run"))
    with pytest.raises(ConfigError, match="model additive: column 'tags' holds IDs"):
        train(folder / "data", tmp_path / "run", TrainConfig(model="additive"))
    divided = {**TRAIN.__dict__, "strategy": "tensor-parallel", "workers": 2}
    with pytest.raises(ConfigError, match="strategy tensor-parallel: column 'tags' holds IDs"):
        train(folder / "data", tmp_path / "divided", TrainConfig(**divided))
    assert not plan(folder / "data", TRAIN, gpus=2, rows_per_second=1e6, device_memory="1MB").divided
    with pytest.raises(ConfigError, match="slice 'tags': holds IDs"):
        evaluate(folder / "run", folder / "data", out=tmp_path / "sliced", slices=["tags"])
    drift = measure_drift(folder / "run", [folder / "raw"])
    assert {column.name for column in drift.columns} == {"x", "y"}
    assert "drift is not measured of columns of IDs: tags" in caplog.text
    found = inspect_data(folder / "raw", CONFIG)
    assert next(each.becomes for each in found.columns if each.name == "tags") == "IDs, which are not inspected"


@pytest.mark.parametrize("model", ["auto", "fastkan"])
def test_classifier_takes_lists_and_sparse_matrices(model: str, tmp_path: Path) -> None:
    ones_NV = make_ones()
    y_N = make_others(ones_NV)["y"]
    given: dict[str, Any] = {"random_state": 0, "n_jobs": 1, "epochs": 2, "hidden": (8,), "members": 1}
    given["model"] = model
    of_matrix = FastKANClassifier(**given).fit(csr_matrix(ones_NV), y_N)
    of_lists = FastKANClassifier(**given).fit(pa.table({"columns": as_lists(ones_NV)}), y_N)
    found_N2 = of_matrix.predict_proba(csr_matrix(ones_NV.astype(float)))
    np.testing.assert_array_equal(found_N2, of_lists.predict_proba(pa.table({"columns": as_lists(ones_NV)})))
    assert np.ptp(found_N2) > 0.1 and of_matrix.n_features_in_ == ones_NV.shape[1]
    of_matrix.save(tmp_path / "model")
    again = FastKANClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(csr_matrix(ones_NV)), found_N2)
    with pytest.raises(ValueError, match=r"A sparse X must hold zeros and ones, as that of fit did, got 0\.5;"):
        of_matrix.predict(csr_matrix(ones_NV * 0.5))


@pytest.mark.parametrize("input_norm", ["none", "layer"])
def test_a_plain_fastkan_learns_from_ids_alone(input_norm: str, tmp_path: Path) -> None:
    ones_NV = make_ones()
    rows = pa.table({"tags": as_lists(ones_NV), "y": ones_NV[:, 3] | ones_NV[:, 7]})
    prepare(write(rows, tmp_path / "raw"), tmp_path / "data", PrepareConfig(label=("y",)))
    given: dict[str, Any] = {**TRAIN.__dict__, "model": "fastkan", "input_norm": input_norm, "epochs": 4}
    plan(tmp_path / "data", TrainConfig(**given), rows_per_second=1e6)
    train(tmp_path / "data", tmp_path / "whole", TrainConfig(**given))
    scheduled = {**given, "schedule_epochs": 4}
    train(tmp_path / "data", tmp_path / "run", TrainConfig(**{**scheduled, "epochs": 2}))
    train(tmp_path / "data", tmp_path / "run", TrainConfig(**{**scheduled, "resume": "auto"}))
    whole, resumed = (SavedModel(tmp_path / run).module.state_dict() for run in ("whole", "run"))
    assert all(tensor.equal(resumed[name]) for name, tensor in whole.items())
    found = evaluate(tmp_path / "run", tmp_path / "data", tmp_path / "eval", split="test", explain=False)
    assert found.metrics["average_precision"] > found.metrics["prevalence"] + 0.2
    predict(tmp_path / "run", tmp_path / "raw", tmp_path / "scores.parquet", reasons=1)
    (shown,) = explain(tmp_path / "run", tmp_path / "data", tmp_path / "explained").labels["y"].ids
    assert {each.id for each in shown.strongest[:2]} == {"3", "7"}


def test_raw_rows_whose_longest_lists_differ_are_evaluated(folder: Path, tmp_path: Path) -> None:
    rows = list_table(make_ones())
    index = rows.column_names.index("tags")
    short = pa.array([(ids or [])[:1] for ids in rows["tags"].to_pylist()], rows["tags"].type)
    (tmp_path / "raw").mkdir()
    for name, each in (("long", rows), ("short", rows.set_column(index, "tags", short))):
        pq.write_table(each, tmp_path / "raw" / f"{name}.parquet")
    found = evaluate(folder / "run", tmp_path / "raw", tmp_path / "eval", label="y")
    assert found.metrics["rows"] == 2 * len(rows)
