"""A server of a trained model, and rows for it."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import TrainResult
from tests.serving.server import OPTIONS, Server, serving

if importlib.util.find_spec("kserve") is None:
    # With a Python that it refuses.
    collect_ignore = ["test_interruptions.py", "test_refused_requests.py", "test_serve.py"]


@pytest.fixture(scope="module")
def server(trained: TrainResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    run = Path(trained.model).parent
    log = tmp_path_factory.mktemp("serve") / "log"
    with serving(run, log, *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def table(source: Path) -> pa.Table:
    """Return 40 rows, among them missing values and a category that training did not see."""
    rows = pq.read_table(source).drop_columns("label").slice(0, 40)
    index = rows.schema.get_field_index("site")
    sites = ["nowhere", *rows["site"].to_pylist()[1:]]
    return rows.set_column(index, "site", pa.array(sites, pa.string()))
