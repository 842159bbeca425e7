"""What training would refuse is refused before there are prepared data."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.training.check_training import check_training
from dkan_core import ConfigError


@pytest.fixture
def rows(tmp_path: Path) -> str:
    columns = {"age": [30, 40], "name": ["a", "b"], "seen": pa.array([0, 1], pa.timestamp("s")), "late": [0, 1]}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    return str(tmp_path / "rows.parquet")


ADDITIVE = {"model_kind": "additive", "monotone": "agee:+"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs must be from 1 to"),
        ({"members": 2, "model_kind": "fastkan"}, "members must be 1 with model fastkan"),
        ({"settings": {"epoch": 3.0}}, r"unknown setting 'epoch' \(did you mean 'epochs'\?\)"),
        ({"sweep": [{"learning_rate": 0.01}, {"learning_rate": "fast"}]}, "learning_rate must be"),
        ({"settings": []}, r"settings must be a JSON object such as .* got \[\]"),
        ({"sweep": []}, r"sweep must be a JSON list such as .* got \[\]"),
        ({"sweep": "x"}, "sweep must be a JSON list such as .* got 'x'"),
        ({"sweep": [1]}, r"sweep must be a JSON list such as .* got \[1\]"),
        (
            {"sweep": [{"hidden": [64]}, {"hidden": "64", "seed": 0.0}]},
            "sweep must be .* without the same settings twice, got",
        ),
        (
            {"sweep": [{"refit": True}, {"max_seconds": 60.0}]},
            r"sweep must be .* without the same settings twice \(max_seconds, refit aside\), got",
        ),
        ({"strategy": "single", "num_gpus": "4"}, "workers 4: strategy single has one"),
        ({"num_gpus": "2", "settings": {"workers": 4}}, "workers 4: with num_gpus 2 there is one per GPU"),
        ({"num_gpus": "2", "sweep": [{"seed": 1}, {"workers": 1}]}, "workers 1: with num_gpus 2 there is one per GPU"),
        ({"strategy": "hybrid", "workers": 3}, "workers 3: strategy hybrid takes a multiple of tensor_parallel_size 2"),
        ({"settings": {"device": "cpu,cpu", "slice_weights": [1.0]}}, "slice_weights: 1 number for 2 workers"),
        ({"settings": {"mode": "async"}, "strategy": "ring"}, "mode async: only strategy parameter-server"),
        ({"split": "80/20/0"}, "split must leave rows to test on, got '80/20/0'"),
        ({"num_gpus": "all"}, "num_gpus must be a whole number, 0 or more, got 'all'"),
        ({"gpu_type": "gpu"}, "gpu_type must be a resource name such as nvidia.com/gpu, got 'gpu'"),
        ({"num_gpus": "1", "gpu_type": ""}, "gpu_type must be a resource name such as nvidia.com/gpu, got ''"),
        ({"cpu": "four"}, "cpu must be a number of cores above 0"),
        ({"memory": "64GB"}, "memory must be a quantity of at least 64Mi such as 16Gi, got '64GB'"),
        ({"node_selector": {"pool": "a b"}}, "node_selector must be a JSON object of labels"),
        ({"tolerations": [{"value": "gpu"}]}, "tolerations must be a JSON list of tolerations"),
        ({"num_gpus": ""}, "num_gpus must be a whole number, 0 or more, got ''"),
        ({"label": "late, lost", "label_weights": "1,2,3"}, "label_weights: 3 numbers for 2 labels"),
        (ADDITIVE, r"monotone: 'agee' is not a numeric column of the data; did you mean 'age'\?"),
        ({**ADDITIVE, "monotone": "name:+"}, "monotone: 'name' is not a numeric column"),
        (
            {**ADDITIVE, "monotone": "late:+"},
            "monotone: 'late' is not a numeric column .* expected one of 'age', 'seen'",
        ),
        (
            {**ADDITIVE, "monotone": "age:+", "categorical": "age"},
            "monotone: 'age' is not a numeric column .* expected one of 'seen'",
        ),
        ({**ADDITIVE, "monotone": "age:+,age:-"}, "monotone: column 'age' is named twice"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], message: str, rows: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_training.python_func(**{"data_uri": rows, "label": "late", **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"split": "80/20/0", "split_column": "seen"},
        {"strategy": "hybrid", "num_gpus": "4"},
        {"num_gpus": "2", "settings": {"workers": 2}},
        {"num_gpus": "2", "settings": {"workers": 4, "device": "cuda:0,cuda:0,cuda:1,cuda:1"}},
        {"cpu": "500m", "memory": "64e9", "node_selector": {"pool": "gpu"}, "tolerations": [{"operator": "Exists"}]},
        {"sweep": [{"seed": 0}, {"seed": 1}]},
        # How many workers there are, the machine decides that trains.
        {"strategy": "tensor-parallel"},
        {"settings": {"mode": "average", "sync_interval": 4}},
        {**ADDITIVE, "monotone": "age:+,seen.month:-"},
        # Its columns are those of the earlier model.
        {**ADDITIVE, "monotone": "name:+", "initial_model_uri": "s3://bucket/model"},
        {"label": "", "label_weights": "1,2,3"},
    ],
)
def test_setting_that_may_be_right_is_let_through(settings: dict[str, Any], rows: str) -> None:
    check_training.python_func(**{"data_uri": rows, "label": "late", **settings})


def test_data_are_opened_only_where_a_setting_names_a_column() -> None:
    check_training.python_func(data_uri="/nowhere/rows.parquet", label="late", epochs=3)
