"""The component registers what was published, and names what it cannot do without."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kfp import dsl

from components.deployment.register_model import register_model
from dkan_core import ConfigError, TrainResult
from tests.registry import registry_server, versions


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry_server(tmp_path_factory.mktemp("registry")) as address:
        yield address


def register(model: str, registry: str, folder: Path, **options: str) -> str:
    metrics = dsl.Metrics(uri=str(folder / "metrics"), metadata={"average_precision": 0.875})
    made: str = register_model.python_func(metrics, model, registry, **options)
    return made


def test_published_model_is_registered_once(registry: str, trained: TrainResult, tmp_path: Path) -> None:
    given = {"registered_name": "late", "run_id": "run-1", "run_name": "nightly"}
    made = [register(trained.model, registry, tmp_path, **given) for _ in range(2)]
    (version,) = versions(registry, "late")
    assert made == [version["name"]] * 2 and version["plain"]["test_average_precision"] == 0.875
    (artifact,) = version["artifacts"]
    assert artifact["uri"] == Path(trained.model).as_uri() and artifact["modelSourceId"] == "run-1"


def test_version_has_the_name_that_is_given(registry: str, trained: TrainResult, tmp_path: Path) -> None:
    given = {"registered_name": "named", "registered_version": "2026-11"}
    assert register(trained.model, registry, tmp_path, **given) == "2026-11"
    assert "modelSourceId" not in versions(registry, "named")[0]["artifacts"][0]


def test_without_a_place_nothing_is_registered(registry: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model_uri is empty"):
        register("", registry, tmp_path)
