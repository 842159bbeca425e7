"""The component takes a part through a stage, its number as a loop hands it over."""

from pathlib import Path

import pytest

from components.data_processing.prepare_part import prepare_part
from dkan_core import ConfigError, DataError, PrepareConfig, plan_preparation


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
