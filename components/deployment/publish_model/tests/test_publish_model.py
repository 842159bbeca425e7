"""What is published is a model that scores, with the test in its card."""

from pathlib import Path

import pytest
from kfp import dsl

from components.deployment.publish_model import publish_model
from dkan_core import DataError, TrainResult


@pytest.fixture
def run(trained: TrainResult) -> Path:
    return Path(trained.model).parent


def published(run: Path, folder: Path, **options: str) -> dsl.Model:
    artifact = dsl.Model(uri=str(folder / "published"))
    metrics = dsl.Metrics(uri=str(folder / "metrics"), metadata={"average_precision": 0.875})
    publish_model.python_func(dsl.Model(uri=str(run)), metrics, artifact, **options)
    return artifact


def test_model_is_published_with_its_card(run: Path, tmp_path: Path) -> None:
    artifact = published(run, tmp_path, publish_uri=str(tmp_path / "models" / "late"))
    assert artifact.metadata["uri"] == str(tmp_path / "models" / "late")
    for folder in (tmp_path / "published", tmp_path / "models" / "late"):
        assert "| average_precision | 0.875 |" in (folder / "README.md").read_text()
        assert (folder / "model.safetensors").is_file() and not (folder / "history.jsonl").exists()


def test_without_a_uri_the_artifact_is_all(run: Path, tmp_path: Path) -> None:
    assert published(run, tmp_path).metadata["uri"] == str(tmp_path / "published")


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        published(tmp_path / "nothing", tmp_path)
    assert not (tmp_path / "published").exists()
