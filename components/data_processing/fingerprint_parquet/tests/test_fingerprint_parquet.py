"""The fingerprint changes with the files, not with what is called upon them."""

from pathlib import Path

import pytest

from components.data_processing.fingerprint_parquet import fingerprint_parquet
from dkan_core import DataError, write_sample


def test_fingerprint_changes_with_files_and_settings(tmp_path: Path) -> None:
    write_sample(tmp_path / "a.parquet")
    first = fingerprint_parquet.python_func(str(tmp_path))
    assert fingerprint_parquet.python_func(f" {tmp_path}/*.parquet,\n {tmp_path}") == first
    write_sample(tmp_path / "b.parquet")
    found = {
        first,
        fingerprint_parquet.python_func(str(tmp_path)),
        fingerprint_parquet.python_func(str(tmp_path), label="x"),
    }
    assert len(found) == 3


def test_fingerprint_changes_with_the_model_to_continue_from(tmp_path: Path) -> None:
    write_sample(tmp_path / "raw" / "a.parquet")
    (tmp_path / "model").mkdir()
    found = {fingerprint_parquet.python_func(str(tmp_path / "raw"))}
    for weights in (b"1", b"12"):
        (tmp_path / "model" / "model.safetensors").write_bytes(weights)
        for _ in range(2):
            model = str(tmp_path / "model")
            found.add(fingerprint_parquet.python_func(str(tmp_path / "raw"), initial_model_uri=model))
    assert len(found) == 3


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        fingerprint_parquet.python_func(str(tmp_path / "nowhere"))
    write_sample(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no-model"):
        fingerprint_parquet.python_func(str(tmp_path), initial_model_uri=str(tmp_path / "no-model"))
