"""The sample is Parquet that the next step prepares."""

from pathlib import Path

from kfp import dsl

from components.data_processing.prepare_parquet import prepare_parquet
from components.data_processing.sample_parquet import sample_parquet


def test_sample_is_prepared_from_the_artifact(tmp_path: Path) -> None:
    source, prepared = dsl.Dataset(uri=str(tmp_path / "source")), dsl.Dataset(uri=str(tmp_path / "prepared"))
    sample_parquet.python_func(source)
    prepare_parquet.python_func(prepared, source=source, label="malignant")
    assert sum(prepared.metadata[f"{split}_rows"] for split in ("train", "valid", "test")) == 569
