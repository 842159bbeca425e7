"""A Kubeflow server for each test that asks for one, and the command that submits to it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.__main__ import app
from pipelines.caller import look_at_names_alone
from pipelines.submission import submit
from pipelines.submission.server import Pace
from tests.pipelines.kubeflow import GIVEN, Kubeflow, serve

look_at_names_alone()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wait for hundredths of seconds, and let the SDK read no settings of this user."""
    monkeypatch.setattr(submit, "PACE", Pace(first=0.01, slowest=0.02, patience=0.3, setup_patience=0.3))
    monkeypatch.setattr("kfp.Client._LOCAL_KFP_CONTEXT", str(tmp_path / "home" / "context.json"))
    monkeypatch.setattr("kfp.Client._NAMESPACE_PATH", str(tmp_path / "namespace"))


@pytest.fixture
def kubeflow() -> Iterator[Kubeflow]:
    with serve(Kubeflow()) as server:
        yield server


@pytest.fixture
def run(kubeflow: Kubeflow) -> Callable[..., Result]:
    def run(*options: str) -> Result:
        return CliRunner().invoke(app, ["submit", "--host", kubeflow.host, *GIVEN, *options])

    return run
