"""A server with certificates of its own: trusted by ``--ca``, refused without."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.__main__ import app
from tests.certificates import server_context
from tests.pipelines.kubeflow import GIVEN, Kubeflow, serve


@pytest.fixture
def submit(certificate: tuple[Path, Path]) -> Callable[..., Result]:
    def submit(*options: str) -> Result:
        with serve(Kubeflow(), server_context(*certificate)) as kubeflow:
            return CliRunner().invoke(app, ["submit", "--host", kubeflow.host, *GIVEN, *options])

    return submit


def test_certificates_given_are_trusted(submit: Callable[..., Result], certificate: tuple[Path, Path]) -> None:
    result = submit("--ca", str(certificate[1]))
    assert result.exit_code == 0, result.output
    assert "https://127.0.0.1" in result.stdout


def test_unknown_certificates_are_not_trusted(submit: Callable[..., Result]) -> None:
    result = submit()
    assert result.exit_code == 5 and "certificate verify failed" in result.stderr.lower(), result.output
