"""Generated Parquet to measure on: float32 columns without repeated values, and a label."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# Of decoded numbers: the default of Spark and parquet-mr.
ROW_GROUP_BYTES = 128 << 20


def write_rows(path: Path, rows: int, features: int) -> Path:
    """Write normally distributed columns ``f0000`` on and ``label``, a row group at a time."""
    rng = np.random.default_rng(0)
    schema = pa.schema([*((f"f{index:04d}", pa.float32()) for index in range(features)), ("label", pa.int8())])
    # Plain values, as writers store columns that hardly repeat; Arrow alone tries a dictionary first.
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        group = ROW_GROUP_BYTES // (4 * features)
        for start in range(0, rows, group):
            count = min(group, rows - start)
            x_FN = rng.standard_normal((features, count), dtype=np.float32)
            label = x_FN[0] * x_FN[-1] + rng.standard_normal(count) > 1.5
            writer.write_table(pa.table([*x_FN, label.astype(np.int8)], schema=schema))
    return path
