"""The component prepares real files and says in its metadata what it made of them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kfp import dsl

from components.data_processing.prepare_parquet import prepare_parquet
from dkan_core.errors import ConfigError, DataError


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    """Two files of 200 rows: a feature, a column to drop, a split column and a label."""
    generator = np.random.default_rng(0)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        feature = generator.normal(size=200)
        table = pa.table(
            {
                "feature": feature,
                "leak": feature,
                "part": np.resize(["train", "train", "valid", "test"], 200),
                "label": (feature + generator.normal(size=200) > 0).astype(np.int8),
            }
        )
        pq.write_table(table, path)
    return paths


@pytest.mark.parametrize("separator", [",", ", ", "\n", ",\n"])
def test_several_sources_and_options(sources: list[Path], tmp_path: Path, separator: str) -> None:
    prepared = dsl.Dataset(uri=str(tmp_path / "prepared"))
    data_uri = separator.join(map(str, sources))
    prepare_parquet.python_func(prepared, data_uri=data_uri, label="label", drop="leak", split_column="part")
    assert (tmp_path / "prepared" / "manifest.json").is_file()
    rows = {name: prepared.metadata[f"{name}_rows"] for name in ("train", "valid", "test")}
    assert rows == {"train": 200, "valid": 100, "test": 100}
    assert prepared.metadata["fingerprint"]


def test_missing_source_is_named(tmp_path: Path) -> None:
    prepared = dsl.Dataset(uri=str(tmp_path / "prepared"))
    with pytest.raises(DataError, match="nowhere"):
        prepare_parquet.python_func(prepared, data_uri=str(tmp_path / "nowhere"), label="label")
    assert not (tmp_path / "prepared" / "manifest.json").exists()


def test_label_left_empty_in_the_form_is_an_error(sources: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="label"):
        prepare_parquet.python_func(dsl.Dataset(uri=str(tmp_path / "prepared")), data_uri=str(sources[0]), label=" ")
