"""The component says where the shards lie, and hands on the manifest alone."""

import json
from pathlib import Path

from kfp import dsl

from components.data_processing.finish_preparation import finish_preparation
from dkan_core import PrepareConfig, fit_preparation, plan_preparation, prepare, prepare_part


def test_artifact_is_the_manifest_and_says_where_the_shards_lie(source: Path, tmp_path: Path) -> None:
    uri = str(tmp_path / "shared")
    parts = plan_preparation(source, uri, PrepareConfig(label=("label",)), parts=3)
    for stage in ("survey", "encode", "assemble"):
        if stage == "encode":
            fit_preparation(uri)
        for part in parts:
            prepare_part(uri, stage, part)
    prepare(source, tmp_path / "alone", PrepareConfig(label=("label",)))
    for attempt in ("first", "again"):
        artifact = dsl.Dataset(uri=str(tmp_path / attempt))
        finish_preparation.python_func(artifact, uri)
        assert [path.name for path in Path(artifact.path).iterdir()] == ["manifest.json"]
        manifest = json.loads((tmp_path / attempt / "manifest.json").read_text())
        assert manifest.pop("location") == uri
        assert manifest == json.loads((tmp_path / "shared" / "manifest.json").read_text())
        assert (tmp_path / "shared" / "manifest.json").read_bytes() == (
            tmp_path / "alone" / "manifest.json"
        ).read_bytes()
        rows = {split: artifact.metadata[f"{split}_rows"] for split in ("train", "valid", "test")}
        assert sum(rows.values()) == 400
        assert artifact.metadata["uri"] == uri
        assert artifact.metadata["fingerprint"] == manifest["fingerprint"]
