"""Raw rows, for the tests of the components that prepare them on several pods."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of 400 rows in row groups of 100."""
    table = pa.table({"feature": np.arange(400.0), "label": (np.arange(400) % 2).astype(np.int8)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=100)
    return tmp_path / "rows.parquet"
