"""The component reads the form's texts as prepare_parquet does, and plans parts of real files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.data_processing.plan_preparation import plan_preparation
from dkan_core import PrepareConfig, prepare
from dkan_core.data.preparation.plan import PreparationPlan, open_plan
from dkan_core.errors import ConfigError, DataError, OutputError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of 200 rows in row groups of 50."""
    feature = np.arange(200.0)
    table = pa.table({"feature": feature, "leak": feature, "label": (np.arange(200) % 2).astype(np.int8)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=50)
    return tmp_path / "rows.parquet"


@pytest.mark.parametrize(("num_parts", "planned"), [(1, 1), (2, 2), (64, 4)])
def test_plan_has_the_parts_and_the_settings_of_the_form(
    source: Path, tmp_path: Path, num_parts: int, planned: int
) -> None:
    uri = str(tmp_path / "prepared")
    parts = plan_preparation.python_func(str(source), "label", uri, num_parts=num_parts, drop="leak,", seed=5)
    assert parts == list(range(planned))
    _, plan = open_plan(uri)
    assert isinstance(plan, PreparationPlan)
    task = plan.task
    assert task.roles.numeric == ("feature",)
    assert (task.config.seed, task.config.group) == (5, None)


def test_encoding_is_that_of_the_model_to_continue_from(source: Path, tmp_path: Path) -> None:
    # An encoding alone is enough here, and prepared data have one as a model has.
    earlier = prepare(source, tmp_path / "earlier", PrepareConfig(label=("label",), drop=("leak",)))
    uri = str(tmp_path / "prepared")
    plan_preparation.python_func(str(source), "label", uri, initial_model_uri=str(tmp_path / "earlier"))
    _, plan = open_plan(uri)
    assert isinstance(plan, PreparationPlan) and plan.task.encoding == earlier.preprocessor


def test_mistakes_in_the_form_are_named(source: Path, tmp_path: Path) -> None:
    uri = str(tmp_path / "prepared")
    with pytest.raises(ConfigError, match="label"):
        plan_preparation.python_func(str(source), " ", uri)
    with pytest.raises(DataError, match="nowhere"):
        plan_preparation.python_func(str(tmp_path / "nowhere"), "label", uri)
    plan_preparation.python_func(str(source), "label", uri)
    with pytest.raises(OutputError, match="in progress"):
        plan_preparation.python_func(str(source), "label", uri, seed=1)
    plan_preparation.python_func(str(source), "label", uri, seed=1, overwrite=True)
