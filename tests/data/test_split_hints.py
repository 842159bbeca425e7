"""Columns by which rows could have been split: found by type, name and values, logged, and kept in the manifest."""

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, inspect_data, prepare
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.preparation.task import find_task
from dkan_core.data.source.split_hints import split_warnings
from tests.data.stages import run
from tests.data.tables import make_rows, write

ROWS = 300
DAYS = pa.array((np.arange(ROWS) // 10).astype(np.int32)).cast(pa.date32())
REPEATED = pa.array([f"c{n}" for n in np.arange(ROWS) // 5])


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"arrived": DAYS}, {"time": "arrived"}),
        ({"birth_date": DAYS}, {}),
        # Of several dates, one that is called like the time of a row comes before the others, whatever their order.
        ({"signup": DAYS, "event_time": DAYS.cast(pa.timestamp("s"))}, {"time": "event_time"}),
        ({"signup": DAYS, "month": pa.array(np.arange(ROWS) % 12)}, {"time": "month"}),
        ({"signup": DAYS, "first call": DAYS}, {"times": "'signup', 'first call'"}),
        ({"month": pa.array(np.arange(ROWS) % 12)}, {"time": "month"}),
        ({"Month": REPEATED}, {}),  # rows cannot be split by a time of text
        ({"plane_year": pa.array(np.arange(ROWS) % 12)}, {}),
        (
            {"customer_id": REPEATED, "created_at": pa.array(np.arange(ROWS))},
            {"time": "created_at", "group": "customer_id"},
        ),
        (
            {"Customer ID": REPEATED, "order-date": pa.array(np.arange(ROWS))},
            {"time": "order-date", "group": "Customer ID"},
        ),
        ({"shop.id": REPEATED, "birth-date": DAYS}, {"group": "shop.id"}),
        ({"order_id": pa.array(np.arange(ROWS))}, {}),
        ({"user": pa.array(np.random.default_rng(0).normal(size=ROWS))}, {}),
        ({}, {}),
    ],
)
def test_columns_that_look_like_a_time_or_a_group_are_found(
    tmp_path: Path, columns: dict[str, pa.Array], found: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    table = make_rows(ROWS)
    for name, values in columns.items():
        table = table.append_column(name, values)
    paths = write(table, tmp_path / "raw")
    # Columns that are no features are candidates as well: times and customers often are none.
    config = PrepareConfig(label=("y",), drop=("row", *columns))
    made = prepare(paths, tmp_path / "out", config)
    assert made.split_hints == found == read_manifest(tmp_path / "out").split_hints
    inspected = inspect_data(paths, config).warnings
    assert inspected == inspect_data(tmp_path / "out").warnings == tuple(split_warnings(found))
    messages = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    warned = [text for text in messages if "split at random" in text]
    assert len(warned) == len(found)
    named = [name if kind == "times" else repr(name) for kind, name in found.items()]
    assert all(any(name in text for text in warned) for name in named)


def test_nothing_is_said_where_a_column_decides_and_parts_find_the_same(tmp_path: Path) -> None:
    table = make_rows(ROWS).append_column("customer_id", REPEATED)
    paths = write(table, tmp_path / "raw", files=2)
    by_group = PrepareConfig(label=("y",), drop=("row",), group="customer_id")
    assert prepare(paths, tmp_path / "group", by_group).split_hints == {}
    at_random = PrepareConfig(label=("y",), drop=("row",))
    assert run(paths, tmp_path / "parts", at_random, 2) == prepare(paths, tmp_path / "whole", at_random)
    assert read_manifest(tmp_path / "parts").split_hints == {"group": "customer_id"}
    # The first file of a job with many writers may have no rows.
    pq.write_table(table.slice(0, 0), tmp_path / "raw/empty.parquet")
    assert find_task(tmp_path / "raw", at_random).hints == {"group": "customer_id"}
