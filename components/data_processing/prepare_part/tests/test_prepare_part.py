"""The component takes a part through a stage, its number as a loop hands it over."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.data_processing.prepare_part import prepare_part
from dkan_core import ConfigError, DataError, PrepareConfig, plan_preparation


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of 400 rows in row groups of 100."""
    table = pa.table({"feature": np.arange(400.0), "label": (np.arange(400) % 2).astype(np.int8)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    return tmp_path / "rows.parquet"


def test_part_may_come_as_a_float(source: Path, tmp_path: Path) -> None:
    uri = str(tmp_path / "prepared")
    plan_preparation(source, uri, PrepareConfig(label=("label",)), parts=2)
    rows = [prepare_part.python_func(uri, "survey", part)[0] for part in (0.0, 1.0)]
    assert sum(rows) == 400
    with pytest.raises(DataError, match="fit_preparation comes first"):
        prepare_part.python_func(uri, "encode", 0)


def test_unknown_stage_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stage must be one of survey, encode, assemble, got 'fit'"):
        prepare_part.python_func(str(tmp_path / "prepared"), "fit", 0)
