"""The component names the parts that it still needs."""

from pathlib import Path

import pytest

from components.data_processing.fit_preparation import fit_preparation
from dkan_core import DataError, PrepareConfig, plan_preparation, prepare_part


def test_parts_that_are_not_surveyed_are_named(source: Path, tmp_path: Path) -> None:
    uri = str(tmp_path / "prepared")
    for part in plan_preparation(source, uri, PrepareConfig(label=("label",)), parts=2):
        with pytest.raises(DataError, match="not surveyed yet"):
            fit_preparation.python_func(uri)
        prepare_part(uri, "survey", part)
    fit_preparation.python_func(uri)
    prepare_part(uri, "encode", 0)
