"""The component scores a part, its number as a loop hands it over."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from components.deployment.predict_parquet import predict_parquet
from dkan_core import ConfigError, DataError, TrainResult, plan_scoring


def test_part_may_come_as_a_float(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    plan_scoring(trained.model, source, out)
    assert predict_parquet.python_func(out, 0.0)[0] == 569 == len(pq.read_table(tmp_path / "out" / source.name))
    with pytest.raises(ConfigError, match="part must be from 0 to 0, got 1"):
        predict_parquet.python_func(out, 1)


def test_place_without_a_plan_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="plan_scoring comes first"):
        predict_parquet.python_func(str(tmp_path / "out"), 0)
