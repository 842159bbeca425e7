"""Data, models and explanations that several tests read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import (
    PrepareConfig,
    TrainConfig,
    TrainResult,
    explain,
    prepare,
    train,
)
from dkan_core.data.format.manifest import PreparedData
from dkan_core.explanation.explain import read_rows
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.saved_model import save_model
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.utils.arrays import Arrays
from tests.explanation.known import HOSTILE, make_source
from tests.settings import resolved


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare rows whose log-odds are known."""
    folder = tmp_path_factory.mktemp("known")
    pq.write_table(make_source()[0], folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("label",)))
    return folder / "data"


@pytest.fixture(scope="session")
def learner(known: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Train a small model on them."""
    config = TrainConfig(epochs=10, hidden=(16,), workers=1, device="cpu", batch_size=128, learning_rate=0.02)
    # Narrow enough that a short training tells a value's own weight from the curve around it.
    config = replace(config, grid_min=-2.0, grid_max=2.0)
    return train(known, tmp_path_factory.mktemp("learner") / "run", config)


@pytest.fixture(scope="session")
def out(known: Path, learner: TrainResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an explanation of the trained model."""
    folder = tmp_path_factory.mktemp("explained") / "out"
    explain(learner.model, known, folder, split="train", rows=3000, top=7)
    return folder


@pytest.fixture(scope="session")
def found(out: Path) -> dict[str, Any]:
    """Return what its explanation.json holds of the label; NaN and infinity are refused."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    plain: dict[str, Any] = json.loads((out / "explanation.json").read_text(), parse_constant=refuse)
    learned: dict[str, Any] = plain["labels"]["label"]
    assert learned["importance"] == plain["importance"]
    return learned


@pytest.fixture(scope="session")
def rows(known: Path) -> tuple[PreparedData, Arrays]:
    """Return rows that are stored exactly."""
    config = PrepareConfig(label=("label",), numeric_dtype="float32")
    manifest = prepare(known.parent / "rows.parquet", known.parent / "exact", config)
    arrays = read_rows(known.parent / "exact", manifest, "train", 2000)
    del arrays["labels"]
    return manifest, arrays


@pytest.fixture(scope="session")
def small(rows: tuple[PreparedData, Arrays]) -> TabularFastKAN:
    """Return an untrained model that reads scores on both paths, with missing values and a calibration."""
    shape = ModelConfig.for_data(rows[0], resolved(hidden=(8,), members=2))
    assert shape.binary and shape.cardinalities
    torch.manual_seed(0)
    model = TabularFastKAN(shape).eval()
    model.calibrate(1.7, -0.4)
    return model


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a model of three labels with cells not measured, untrained, and its data; a column has a hostile name."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {HOSTILE: rng.normal(size=800), "b": rng.integers(0, 2, 800), "c": rng.normal(size=800)}
    split = np.array(["train"] * 500 + ["valid"] * 300)
    for name, rate in (("rare", 0.1), ("often", 0.5), ("never", 0.2 * (split == "train"))):
        labels = (rng.random(800) < rate).astype(float)
        labels[rng.random(800) < 0.3] = np.nan
        columns[name] = pa.array(labels, from_pandas=True)
    pq.write_table(pa.table({**columns, "split": split}), folder / "rows.parquet")
    config = PrepareConfig(label=("rare", "often", "never"), split_column="split")
    prepared = prepare(folder / "rows.parquet", folder / "data", config)
    shape = ModelConfig.for_data(prepared, resolved(hidden=(8,), members=2))
    metrics = {"labels": {name: {"threshold": 0.5} for name in prepared.labels}, "epoch": 1, "average_precision": 0.5}
    torch.manual_seed(0)
    save_model(folder / "model", TabularFastKAN(shape), prepared.preprocessor, metrics)
    return folder / "model", folder / "data"
