"""Rows of a known additive function with a pair, of every kind of column, for tests of additive models."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core import PrepareConfig, TrainConfig, prepare

ROWS = 4_000

QUICK = TrainConfig(model="additive", device="cpu", epochs=4, batch_size=128, learning_rate=0.05, members=3)


def make_rows(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return rows whose log-odds are a sum of terms: a wave, a step, a category, a yes or no, and a pair."""
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=rows), rng.uniform(-2, 2, rows)
    count, yes = rng.integers(0, 6, rows), rng.integers(0, 2, rows)
    kind = rng.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1])
    log_odds = 1.5 * np.sin(2 * x) + 0.8 * (count > 3) + 0.7 * yes + (kind == "b") + 1.5 * np.sign(z) * np.sign(x) - 1
    columns = {
        "x": pa.array(np.where(rng.random(rows) < 0.05, np.nan, x), from_pandas=True),
        "z": z,
        "count": count,
        "yes": yes,
        "kind": pa.array(kind, mask=rng.random(rows) < 0.05),
        "noise": rng.normal(size=rows),
        "label": (rng.random(rows) < 1 / (1 + np.exp(-log_odds))).astype(int),
        "other": (rng.random(rows) < 1 / (1 + np.exp(1 - x))).astype(int),
    }
    return pa.table(columns)


def prepare_rows(folder: Path, labels: tuple[str, ...] = ("label", "other")) -> Path:
    """Write and prepare them; return the prepared folder."""
    unused = [name for name in ("label", "other") if name not in labels]
    pq.write_table(make_rows().drop_columns(unused), folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=labels))
    return folder / "data"
