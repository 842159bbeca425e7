"""A manifest alone, which says where the data are; the fingerprint of sources."""

import os
from pathlib import Path

import pytest

from dkan_core import DataError, PrepareConfig, TrainResult, evaluate, fingerprint_sources, prepare, save_pointer
from dkan_core import write_sample as sample
from dkan_core.data.manifest import open_prepared, read_manifest


def test_data_are_found_where_the_manifest_says(prepared: Path, trained: TrainResult, tmp_path: Path) -> None:
    save_pointer(tmp_path / "pointer", read_manifest(prepared), str(prepared))
    assert [path.name for path in (tmp_path / "pointer").iterdir()] == ["manifest.json"]
    with open_prepared(tmp_path / "pointer") as (folder, manifest):
        assert folder == prepared and manifest == read_manifest(prepared)
    there = evaluate(trained.model, prepared, tmp_path / "there", explain=False)
    assert evaluate(trained.model, tmp_path / "pointer", tmp_path / "here", explain=False).metrics == there.metrics


@pytest.mark.s3
def test_data_in_a_bucket_are_found(prepared: Path, source: Path, s3: str, tmp_path: Path) -> None:
    result = prepare(source, f"{s3}/data", PrepareConfig(label=("label",)))
    save_pointer(tmp_path / "pointer", result, f"{s3}/data")
    with open_prepared(tmp_path / "pointer") as (folder, manifest):
        assert manifest == result
        assert all((folder / shard.path).exists() for shard in manifest.splits["train"].shards)


def test_data_prepared_since_are_refused(prepared: Path, source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    save_pointer(tmp_path / "pointer", prepare(source, data, PrepareConfig(label=("label",))), str(data))
    prepare(source, data, PrepareConfig(label=("label",), seed=1), overwrite=True)
    with (
        pytest.raises(DataError, match=r"data: holds other data .* prepare them again"),
        open_prepared(tmp_path / "pointer"),
    ):
        pass


def test_fingerprint_changes_with_the_files_and_the_settings_alone(tmp_path: Path) -> None:
    sample(tmp_path / "raw" / "a.parquet")
    first = fingerprint_sources([tmp_path / "raw"])
    assert fingerprint_sources(str(tmp_path / "raw" / "*.parquet")) == first == fingerprint_sources(tmp_path / "raw")
    assert fingerprint_sources([tmp_path / "raw"], "seed=1") != first
    os.utime(tmp_path / "raw" / "a.parquet", (1, 1))
    second = fingerprint_sources([tmp_path / "raw"])
    sample(tmp_path / "raw" / "b.parquet")
    assert len({first, second, fingerprint_sources([tmp_path / "raw"])}) == 3


def test_sample_is_ready_to_be_prepared(tmp_path: Path) -> None:
    sample(tmp_path / "raw" / "sample.parquet")
    manifest = prepare(tmp_path / "raw", tmp_path / "data", PrepareConfig(label=("malignant",)))
    assert sum(split.rows for split in manifest.splits.values()) == 569
    assert sum(split.classes["malignant"]["1"] for split in manifest.splits.values()) == 212
