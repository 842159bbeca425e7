"""``main(train_loader, test_loader)``: what a notebook or a flat script calls."""

import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient
from torch.utils.data import DataLoader, TensorDataset

from dkan_core import DataError, MainResult, TrainConfig, main

CONFIG = TrainConfig(epochs=4, hidden=(8,), batch_size=64, device="cpu", learning_rate=0.02)

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
print(f"AP {result.average_precision:.3f} {result.path}")
"""


def rows(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] ** 2 > 1).astype(np.int64)


@pytest.fixture(scope="module")
def from_arrays(tmp_path_factory: pytest.TempPathFactory) -> MainResult:
    return main(rows(800), rows(200, seed=1), CONFIG, run=tmp_path_factory.mktemp("arrays") / "run")


def test_numpy_pairs_give_average_precision_model_and_path(from_arrays: MainResult) -> None:
    assert from_arrays.average_precision > 0.8
    assert Path(from_arrays.path, "model.safetensors").exists()
    assert from_arrays.model(torch.zeros(3, 4, dtype=torch.uint8)).shape == (3, 1)


def test_loaders_tensors_and_arrays_give_the_same_model(from_arrays: MainResult, tmp_path: Path) -> None:
    train, test = (tuple(map(torch.from_numpy, pair)) for pair in (rows(800), rows(200, seed=1)))
    result = main(DataLoader(TensorDataset(*train), batch_size=7), test, CONFIG, run=tmp_path / "run")
    assert result.average_precision == from_arrays.average_precision
    for left, right in zip(result.model.parameters(), from_arrays.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_several_labels_may_be_unmeasured(tmp_path: Path) -> None:
    x, y = rows(600)
    labels = np.stack([y, 1 - y], axis=1).astype(np.float64)
    labels[::3, 1] = np.nan
    result = main((x[:400], labels[:400]), (x[400:], labels[400:]), CONFIG, run=tmp_path / "run")
    assert result.average_precision > 0.7


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        (rows(50), (rows(20)[0][:, :3], rows(20)[1]), "train_loader has 4 features"),
        ((rows(50)[0], rows(40)[1]), rows(20), "train_loader: expected features"),
        (rows(50), 7, "test_loader: expected a DataLoader or a pair"),
        (rows(50), [], "test_loader: holds no batch"),
        ((rows(50)[0], rows(50)[1] + 5), rows(20), "train_loader: labels must be 0, 1 or NaN .*; found 5"),
    ],
)
def test_wrong_input_is_named(train: object, test: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        main(train, test, CONFIG, run=tmp_path / "run")


def test_script_needs_no_main_guard(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(CODE)
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("AP 0."), done.stderr
    assert done.stdout.count("AP") == 1


@pytest.mark.filterwarnings("ignore")
def test_runs_in_a_jupyter_kernel() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = "".join(output.get("text", "") for output in notebook.cells[0].outputs if output.get("name") == "stdout")
    assert printed.startswith("AP 0.")
