"""How fast ``dkan serve`` answers, under load from wrk on this machine.

    python -m benchmarks.serving run/model flights

The server and wrk share the cores of the machine, which lowers the figures. wrk has to be installed (Debian: apt-get
install wrk).
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.source.files import find_parquet
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.model.saved_model import SavedModel

START_SECONDS = 120
# Posts the body of a file; wrk calls it when it has read the script.
SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = io.open("{body}"):read("*a")
"""

app = typer.Typer(add_completion=False)


class Measured(NamedTuple):
    """What wrk found."""

    requests_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int


@app.command()
def main(
    model: Annotated[str, typer.Argument(metavar="RUN/model", help="Model to serve.")],
    source: Annotated[str, typer.Argument(metavar="SRC", help="Parquet whose rows are sent.")],
    seconds: Annotated[int, typer.Option(help="How long each case runs.")] = 5,
    connections: Annotated[int, typer.Option(help="Clients that each wait for their answer.")] = 32,
) -> None:
    """Print a row of figures for each number of rows per request, with and without batching."""
    if shutil.which("wrk") is None:
        typer.echo("wrk is not installed, so nothing was measured; on Debian: apt-get install wrk", err=True)
        raise typer.Exit(1)
    preprocessor = SavedModel(Path(model)).preprocessor
    typer.echo("| batching | rows per request | clients | requests/s | rows/s | p50 ms | p99 ms |")
    typer.echo("|---|---|---|---|---|---|---|")
    for name, options in (
        ("off", ("--max-batch-rows", "1")),
        ("on", ()),
        ("on, waiting 2 ms", ("--max-wait-ms", "2")),
    ):
        with served(model, *options) as port:
            for rows in (1, 100):
                for clients in (1, connections):
                    found = measure(port, request_body(preprocessor, source, rows), seconds, clients)
                    figures = f"{found.requests_per_second:.0f} | {rows * found.requests_per_second:.0f}"
                    assert not found.errors, found
                    typer.echo(f"| {name} | {rows} | {clients} | {figures} | {found.p50_ms:.1f} | {found.p99_ms:.1f} |")


def measure(port: int, body: bytes, seconds: int, connections: int) -> Measured:
    """Return what wrk finds with one body, posted again and again by clients that each wait for their answer."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "body.json").write_bytes(body)
        script = Path(folder) / "post.lua"
        script.write_text(SCRIPT.format(body=Path(folder) / "body.json"))
        url = f"http://127.0.0.1:{port}/v1/models/model:predict"
        # What is slow the first time is not what is measured.
        for duration in (1, seconds):
            command = [
                "wrk",
                "--latency",
                "--timeout",
                "30s",
                "-t1",
                f"-c{connections}",
                f"-d{duration}s",
                "-s",
                str(script),
                url,
            ]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return parse(text)


def parse(text: str) -> Measured:
    """Return the figures in what wrk prints."""
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    assert rate, text
    wrong = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return Measured(float(rate[1]), _percentile(text, 50), _percentile(text, 99), int(wrong[1]) if wrong else 0)


def _percentile(text: str, percent: int) -> float:
    found = re.search(rf"^\s+{percent}%\s+([\d.]+)(us|ms|s)\s*$", text, re.MULTILINE)
    assert found, text
    return float(found[1]) * {"us": 0.001, "ms": 1.0, "s": 1000.0}[found[2]]


def request_body(preprocessor: Preprocessor, source: str, rows: int) -> bytes:
    """Return a request with the first rows of a source."""
    batch = next(read_batches(open_file(find_parquet([source])[0]), preprocessor.columns))
    instances: list[dict[str, Any]] = batch.slice(0, rows).to_pylist()
    return json.dumps({"instances": instances}).encode()


@contextmanager
def served(model: str, *options: str) -> Iterator[int]:
    """Yield the port of a server of the model."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "dkan_core", "serve", model, "--host", "127.0.0.1", "--port", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            yield port
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError("the server did not start")


if __name__ == "__main__":
    app()
