"""A random label is ranked no better than by chance, whatever the codes allow to be learned by heart."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, TrainConfig, evaluate, prepare, train

ROWS, PREVALENCE = 12_000, 0.3
ROWS_OF_A_GROUP = 8


def write_rows(path: Path, label: npt.NDArray[np.bool_]) -> None:
    """Write columns of many codes that repeat, values that repeat, and a code and number for each group."""
    rng = np.random.default_rng(0)
    group = np.arange(ROWS) // ROWS_OF_A_GROUP
    columns = {
        "seller": [f"seller {code}" for code in rng.integers(800, size=ROWS)],
        "country": [f"country {code}" for code in rng.integers(60, size=ROWS)],
        "price": np.round(rng.normal(size=ROWS), 1),
        "customer": [f"customer {code}" for code in group],
        "age": (group * 37) % 500,
        "group": group,
        "label": label,
    }
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("grouped", [False, True])
def test_random_label_is_ranked_as_by_chance(grouped: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.random(ROWS) < PREVALENCE
    # Rows of a group have one label: whoever finds a group's rows in train knows it, but split by group nobody does.
    label = drawn[np.arange(ROWS) // ROWS_OF_A_GROUP] if grouped else drawn
    write_rows(tmp_path / "rows.parquet", label)
    config = PrepareConfig(label=("label",), **({"group": "group"} if grouped else {"drop": ("group",)}))
    prepare(tmp_path / "rows.parquet", tmp_path / "prepared", config)
    run = train(tmp_path / "prepared", tmp_path / "run", TrainConfig(device="cpu", workers=1, epochs=3))
    found = evaluate(run.model, tmp_path / "prepared", tmp_path / "scores", explain=False).metrics
    assert found["average_precision"] == pytest.approx(found["prevalence"], abs=0.05)
