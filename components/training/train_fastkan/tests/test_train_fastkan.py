"""The component refuses what it cannot train; the pipeline's end-to-end test trains for real."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kfp import dsl

from components.data_processing.prepare_parquet import prepare_parquet
from components.training.train_fastkan import train_fastkan
from dkan_core import PrepareConfig, prepare
from dkan_core.errors import ConfigError, UserError
from dkan_core.model.saved_model import SavedModel


@pytest.fixture
def prepared(tmp_path: Path) -> dsl.Dataset:
    feature = np.random.default_rng(0).normal(size=300)
    pq.write_table(pa.table({"feature": feature, "label": (feature > 0).astype(np.int8)}), tmp_path / "raw.parquet")
    prepare(str(tmp_path / "raw.parquet"), str(tmp_path / "prepared"), PrepareConfig(label=("label",)))
    return dsl.Dataset(uri=str(tmp_path / "prepared"))


def test_fewer_gpus_than_asked_for_is_an_error(prepared: dsl.Dataset, tmp_path: Path) -> None:
    asked = str(torch.cuda.device_count() + 1)
    model = dsl.Model(uri=str(tmp_path / "run"))
    with pytest.raises(UserError, match="GPU"):
        train_fastkan.python_func(prepared, model, dsl.Metrics(uri=str(tmp_path / "metrics")), num_gpus=asked)
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize(("setting", "value"), [("dropout", 2.0), ("num_centers", 1), ("hidden", "0")])
def test_setting_out_of_range_is_named(setting: str, value: object, tmp_path: Path) -> None:
    prepared, model = dsl.Dataset(uri=str(tmp_path / "prepared")), dsl.Model(uri=str(tmp_path / "run"))
    with pytest.raises(ConfigError, match=setting):
        train_fastkan.python_func(prepared, model, dsl.Metrics(uri=str(tmp_path / "metrics")), **{setting: value})


@pytest.mark.slow
def test_step_that_is_tried_again_goes_on_from_its_checkpoint(
    prepared: dsl.Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What ends the first attempt is the clock; the second one has another pod, and so another artifact."""
    quick = {"hidden": "4", "members": 1, "epochs": 40, "batch_size": 8, "workers": 1, "patience": 1000}
    places = {"checkpoint_uri": str(tmp_path / "checkpoints"), "checkpoint_key": "flights"}
    scores = []
    for attempt, seconds in (("first", 0.5), ("second", 0.0)):
        model, metrics = dsl.Model(uri=str(tmp_path / attempt)), dsl.Metrics(uri=str(tmp_path / "metrics"))
        with caplog.at_level("INFO"):
            train_fastkan.python_func(prepared, model, metrics, **quick, **places, max_seconds=seconds)
        assert not (tmp_path / attempt / "checkpoints").exists(), "checkpoints are no part of the artifact"
        scores.append(model.metadata["validation_average_precision"])
    assert "resuming from" in caplog.text and scores[1] >= scores[0] > 0
    (run,) = (tmp_path / "checkpoints" / "flights").iterdir()
    assert list(run.glob("step-*.safetensors"))


def test_settings_of_a_sweep_win_over_the_form(prepared: dsl.Dataset, tmp_path: Path) -> None:
    model, metrics = dsl.Model(uri=str(tmp_path / "run")), dsl.Metrics(uri=str(tmp_path / "metrics"))
    train_fastkan.python_func(
        prepared, model, metrics, hidden="4", epochs=9, settings={"epochs": 1.0, "members": 1.0, "hidden": [3.0]}
    )
    training = json.loads((tmp_path / "run" / "metrics.json").read_text())["training"]
    assert (training["epochs"], training["members"], training["hidden"]) == (1, 1, [3])
    assert "run ended (all epochs done)" in (tmp_path / "run" / "logs" / "train.log").read_text()


def test_training_continues_from_an_earlier_model(prepared: dsl.Dataset, tmp_path: Path) -> None:
    earlier, later = (dsl.Model(uri=str(tmp_path / name)) for name in ("earlier", "later"))
    metrics = dsl.Metrics(uri=str(tmp_path / "metrics"))
    train_fastkan.python_func(prepared, earlier, metrics, hidden="4", members=1, epochs=1)
    feature = np.random.default_rng(1).normal(loc=3.0, size=300)
    pq.write_table(pa.table({"feature": feature, "label": (feature > 3).astype(np.int8)}), tmp_path / "new.parquet")
    new = dsl.Dataset(uri=str(tmp_path / "new"))
    prepare_parquet.python_func(new, data_uri=str(tmp_path / "new.parquet"), initial_model_uri=earlier.path)
    train_fastkan.python_func(new, later, metrics, epochs=1, initial_model_uri=earlier.path)
    training = json.loads((tmp_path / "later" / "metrics.json").read_text())["training"]
    assert training["init_from"].startswith("sha256:")
    assert (training["members"], training["hidden"]) == (1, [4]), "the architecture is the earlier model's"
    assert SavedModel(Path(later.path)).preprocessor == SavedModel(Path(earlier.path)).preprocessor
