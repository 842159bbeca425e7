"""The component refuses what it cannot train; the pipeline's end-to-end test trains for real."""

import inspect
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from kfp import dsl

from components.training.train_fastkan import train_fastkan
from dkan_core import PrepareConfig, TrainConfig, prepare
from dkan_core.errors import ConfigError, UserError


@pytest.fixture
def prepared(tmp_path: Path) -> dsl.Dataset:
    feature = np.random.default_rng(0).normal(size=300)
    pq.write_table(pa.table({"feature": feature, "label": (feature > 0).astype(np.int8)}), tmp_path / "raw.parquet")
    prepare(str(tmp_path / "raw.parquet"), str(tmp_path / "prepared"), PrepareConfig(label=("label",)))
    return dsl.Dataset(uri=str(tmp_path / "prepared"))


def test_defaults_are_those_of_the_trainer() -> None:
    parameters = inspect.signature(train_fastkan.python_func).parameters
    defaults = {field.name: field.default for field in fields(TrainConfig) if field.default not in (None, ())}
    shared = defaults.keys() & parameters.keys() - {"model"}
    assert len(shared) >= 6 and all(parameters[name].default == defaults[name] for name in shared)


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
