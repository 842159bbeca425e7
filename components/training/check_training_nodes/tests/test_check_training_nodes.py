"""What nodes would refuse is refused before there are prepared data; no cluster is needed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.training.check_training_nodes import check_training_nodes
from dkan_core import ConfigError

URIS = {"run_uri": "s3://bucket/run", "image": "dkan"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": -1}, "epochs must be from 1 to"),
        ({"strategy": "single"}, "strategy single: is for one node"),
        ({"strategy": "hybrid", "nodes": 3}, "workers 3: strategy hybrid takes a multiple of"),
        ({"memory_per_node": "64GB"}, "memory_per_node must be a quantity of at least 64Mi"),
        ({"tolerations": [{"keys": "gpu"}]}, "tolerations must be a JSON list of tolerations"),
        ({"run_uri": "/tmp/run"}, "run_uri must be on storage that 2 nodes share: a URI such as .* got '/tmp/run'"),
        ({"prepared_uri": ""}, "prepared_uri must be on storage that 2 nodes share: a URI such as .* got ''"),
        ({"prepared_uri": "minio://b/p", "pvc_name": "claim"}, "prepared_uri must be on storage that 2 nodes share"),
        ({"gpu_type": ""}, "gpu_type must be a resource name"),
        ({"labels": {"a b": "c"}}, "labels must be a JSON object of labels"),
        ({"label": "late", "label_weights": "1,2"}, "label_weights: 2 numbers for 1 label"),
        ({"model_kind": "additive", "monotone": "agee:+"}, "monotone: 'agee' is not a numeric column"),
    ],
)
def test_wrong_setting_is_named(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table({"age": [30, 40], "late": [0, 1]}), tmp_path / "rows.parquet")
    given = {**URIS, "data_uri": str(tmp_path / "rows.parquet"), **settings}
    with pytest.raises(ConfigError, match=message):
        check_training_nodes.python_func(**given)


def test_right_settings_are_let_through() -> None:
    uris = {**URIS, "prepared_uri": "/data/prepared", "pvc_name": "claim"}
    check_training_nodes.python_func(**uris, strategy="hybrid", gpus_per_node=2, label="late", label_weights="1")
