"""A server with certificates of its own: trusted by ``--ca``, refused without."""

import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipelines.__main__ import app
from tests.pipelines.kubeflow import GIVEN, Kubeflow, serve


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Make a key and a certificate for 127.0.0.1, signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return key, certificate


@pytest.fixture
def submit(certificate: tuple[Path, Path]) -> Callable[..., Result]:
    def submit(*options: str) -> Result:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate[1], certificate[0])
        with serve(Kubeflow(), context) as kubeflow:
            return CliRunner().invoke(app, ["submit", "--host", kubeflow.host, *GIVEN, *options])

    return submit


def test_certificates_given_are_trusted(submit: Callable[..., Result], certificate: tuple[Path, Path]) -> None:
    result = submit("--ca", str(certificate[1]))
    assert result.exit_code == 0, result.output
    assert "https://127.0.0.1" in result.stdout


def test_unknown_certificates_are_not_trusted(submit: Callable[..., Result]) -> None:
    result = submit()
    assert result.exit_code == 5 and "certificate verify failed" in result.stderr.lower(), result.output
