"""``main(train_loader, test_loader)``: what a notebook or a flat script calls."""

import logging
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from nbclient import NotebookClient
from sklearn.metrics import average_precision_score
from torch.utils.data import DataLoader, TensorDataset

from dkan_core import ConfigError, DataError, FastKANClassifier, MainResult, OutputError, TrainConfig, main
from dkan_core.integrations.notebook.rows import read_labelled_rows
from tests import warm
from tests.integrations.notebook.known import CONFIG, TEST, TRAIN, rows

CODE = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from dkan_core import TrainConfig, main

torch.manual_seed(0)
x = torch.randn(600, 4)
y = (x[:, 0] + x[:, 1] ** 2 > 1).float()
train_loader = DataLoader(TensorDataset(x[:500], y[:500]), batch_size=50, shuffle=True)
test_loader = DataLoader(TensorDataset(x[500:], y[500:]), batch_size=50)
result = main(train_loader, test_loader, TrainConfig(epochs=3, hidden=(8,), batch_size=64, device="cpu"))
print(f"AP {result.validation_average_precision:.3f} {result.path}")
"""


def lacking(index: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = rows(50)
    x[:, index] = np.nan
    return x, y


def test_numpy_pairs_give_average_precision_model_and_path(from_arrays: MainResult) -> None:
    assert from_arrays.validation_average_precision > 0.8
    assert Path(from_arrays.path, "model.safetensors").exists()
    assert from_arrays.holdout_average_precision is None
    classifier = FastKANClassifier.load(from_arrays.path)
    np.testing.assert_array_equal(
        classifier.predict_proba(pd.DataFrame(TEST[0], columns=from_arrays.model.feature_names))[:, 1],
        from_arrays.predict_proba(TEST),
    )


def loader(x: np.ndarray, y: np.ndarray) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), batch_size=7)


def halves(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x[part], y[part]) for part in (slice(None, len(x) // 2), slice(len(x) // 2, None))]


@pytest.mark.parametrize(
    "form",
    [
        loader,
        lambda x, y: (torch.from_numpy(x), torch.from_numpy(y)),
        lambda x, y: [loader(*half) for half in halves(x, y)],
        lambda x, y: (halves(x, y)[0], loader(*halves(x, y)[1])),
        lambda x, y: (pair for pair in halves(x, y)),
        lambda x, y: [pd.DataFrame(x), pd.Series(y)],
        lambda x, y: [pd.DataFrame(x), pd.Series(y).astype("boolean")],
    ],
    ids=["loader", "tensors", "list of two loaders", "pair and loader", "generator", "frame", "booleans"],
)
def test_every_kind_of_loader_has_the_same_rows(form: Any) -> None:
    expected, found = (read_labelled_rows(source, "rows") for source in (TEST, form(*TEST)))
    assert found.features.equals(expected.features)
    np.testing.assert_array_equal(found.labels_NL, expected.labels_NL)


def test_list_of_loaders_gives_the_same_model_and_holdout_rows_are_scored_by_the_best(
    from_arrays: MainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    holdout, uri = rows(300, seed=2), "memory://notebook/run"
    test = [loader(*half) for half in halves(*TEST)]
    result = main(loader(*TRAIN), test, CONFIG, holdout_loader=[holdout], run=uri)
    assert result.path == f"{uri}/model" and not list(tmp_path.iterdir())
    assert result.validation_average_precision == from_arrays.validation_average_precision
    for left, right in zip(result.model.parameters(), from_arrays.model.parameters(), strict=True):
        assert torch.equal(left, right)
    expected = average_precision_score(holdout[1], from_arrays.predict_proba(holdout))
    assert result.holdout_average_precision == pytest.approx(expected, abs=1e-9)
    with pytest.raises(OutputError, match="already holds an earlier result"):
        main(TRAIN, TEST, CONFIG, run=uri)


def test_frames_keep_the_names_and_kinds_of_their_columns(tmp_path: Path) -> None:
    def frame(count: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
        x, y = rows(count, seed)
        return pd.DataFrame(x, columns=["size", "label", "split", "rest"]).assign(site=np.where(y, "a", "b")), y

    result = main(frame(200, 0), frame(100, 1), CONFIG, run=tmp_path / "run")
    assert result.validation_average_precision == 1
    assert result.model.feature_names == ("size", "label", "split", "rest", "site")
    x, y = frame(50, 2)
    assert average_precision_score(y, result.predict_proba(x)) == 1
    none, nan = (result.predict_proba(x.assign(site=nothing)) for nothing in (None, np.nan))
    np.testing.assert_array_equal(none, nan)
    with pytest.raises(DataError, match=r"rows: feature 0 is 'site'; the model was trained with 'size' there"):
        result.predict_proba(x[list(x)[::-1]])
    with pytest.raises(DataError, match=r"test_loader: feature 0 is 'site'; train_loader has 'size' there"):
        main(frame(50, 0), (x[list(x)[::-1]], y), CONFIG, run=tmp_path / "other")
    with pytest.raises(DataError, match=r"test_loader: feature 4 \('site'\) is int64; in train_loader it is string"):
        main(frame(50, 0), (x.assign(site=1), y), CONFIG, run=tmp_path / "other")


@pytest.mark.s3
def test_run_may_be_on_s3(s3: str, from_arrays: MainResult) -> None:
    result = main(TRAIN, TEST, CONFIG, run=f"{s3}/run")
    assert result.path == f"{s3}/run/model"
    np.testing.assert_array_equal(result.predict_proba(TEST), from_arrays.predict_proba(TEST))


@pytest.mark.parametrize("kind", ["boolean", "Int64", "Float64", "object"])
def test_labels_may_be_na_in_every_type_of_pandas(kind: str) -> None:
    x, y = rows(6)
    values = [pd.NA, *y[1:].astype(bool).tolist()] if kind in ("boolean", "object") else [pd.NA, *y[1:].tolist()]
    column = pd.Series(values, dtype=kind)
    one = read_labelled_rows((x, column), "rows").labels_NL
    np.testing.assert_array_equal(one[:, 0], [255, *y[1:]])
    two = read_labelled_rows((x, pd.DataFrame({"a": column, "b": y})), "rows").labels_NL
    np.testing.assert_array_equal(two, np.c_[one, y])


def test_several_labels_may_be_unmeasured(tmp_path: Path) -> None:
    x, y = rows(600)
    labels = np.stack([y, 1 - y], axis=1).astype(np.float64)
    labels[::3, 1] = np.nan
    result = main((x[:400], labels[:400]), (x[400:], labels[400:]), CONFIG, run=tmp_path / "run")
    assert result.validation_average_precision > 0.7
    assert result.predict_proba(x[:9]).shape == result.model(x[:9]).shape == (9, 2)
    assert result.model.labels == ("label_0", "label_1")


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (rows(50), (rows(20)[0][:, :3], rows(20)[1]), "train_loader has 4 features"),
        ((rows(50)[0], rows(40)[1]), rows(20), "train_loader: expected features"),
        (rows(50), 7, "test_loader: expected a DataLoader, a pair of arrays"),
        (rows(50), [], "test_loader: holds no batch"),
        ((rows(50)[0], rows(50)[1] + 5), rows(20), "train_loader: labels must be 0, 1 or NaN .*; found 5"),
        ((rows(50)[0], np.full(50, "late")), rows(20), "train_loader: labels must be 0, 1 or NaN .*'late'"),
        ((*rows(50), rows(50)[1]), rows(20), r"train_loader: holds 3 arrays; expected a pair"),
        ([rows(50), 7], rows(20), r"train_loader\[1\]: expected a DataLoader, .*, got int"),
        ([rows(50), rows(50)[0]], rows(20), r"train_loader\[1\]: expected a pair .*, got features alone"),
        ([rows(50), (rows(20)[0][:, :3], rows(20)[1])], rows(20), "train_loader: .*4 features, batch 1 has 3"),
        (DataLoader(TensorDataset(torch.zeros(4, 2))), rows(20), "train_loader: batch 0: .* got features alone"),
        ({"x": rows(50)}, rows(20), "train_loader: expected a DataLoader, .*, got dict"),
        (lacking(2), rows(20), r"train_loader: feature 2 \('feature_2'\) holds no value in 50 rows; leave it out"),
        ((pd.DataFrame({"id": [*"abcd"]}), np.arange(4) % 2), rows(20), r"feature 0 \('id'\) holds no text that rep"),
        (rows(50), (rows(20)[0], np.ones(20)), r"test_loader: label 0 has one class only: 1 in 20 rows"),
        (rows(0), rows(20), r"train_loader: .* holds no value in 0 rows"),
    ],
)
def test_wrong_input_is_named(train: object, test: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as raised:
        main(train, test, CONFIG, run=tmp_path / "run")
    assert tempfile.gettempdir() not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_errors_of_the_preparation_speak_of_the_loaders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A feature of which the sample that encodings are chosen from holds no value."""
    x, y = rows(50)
    x[1:, 3] = np.nan
    monkeypatch.setattr("dkan_core.data.preparation.statistics.MIN_SAMPLE_ROWS", 4)
    monkeypatch.setattr("dkan_core.data.preparation.statistics.SAMPLE_ROWS", 4)
    with pytest.raises(DataError, match=r"^train_loader, test_loader: column 'feature_3' holds no value in 4 rows"):
        main((x, y), rows(20), CONFIG, run=tmp_path / "run")


@pytest.mark.slow
def test_times_that_all_differ_are_features() -> None:
    when = pd.date_range("2024", periods=400, freq="h")
    frame = pd.DataFrame({"when": when, "took": when - when[0], "x": np.arange(400) % 7})
    labels = (when.hour >= 12).astype(int)
    config = TrainConfig(epochs=1, hidden=(4,), device="cpu", workers=1)
    found = main((frame[:300], labels[:300]), (frame[300:], labels[300:]), config)
    assert "when.hour" in {feature.name for feature in found.model.preprocessor.numeric}


def test_error_leaves_no_folder_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x = np.arange(60, dtype=np.float32)[:, None]
    pair = x, np.arange(60) % 2
    with pytest.raises(ConfigError, match="label_weights"):
        main(pair, pair, TrainConfig(label_weights=(1, 2)))
    assert list(tmp_path.iterdir()) == []
    assert not logging.getLogger("dkan_core").handlers, "what follows logs as before"


def test_script_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CODE)
    # Of the two processes that import torch, the one that the script starts is as it is everywhere.
    done = warm.server().run(["-c", "import runpy; runpy.run_path('script.py', run_name='__main__')"], tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("AP 0."), done.stderr
    assert done.stdout.count("AP") == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_in_a_jupyter_kernel() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    NotebookClient(notebook, kernel_name="python3").execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[0].outputs if output.get("name") == "stdout")
    assert printed.startswith("AP 0.")
