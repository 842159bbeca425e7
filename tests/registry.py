"""The stand-in for the Model Registry's server, as a process; what it holds; and a proxy before it that fails.

The real server is a Go program that no package within reach ships. ``examples/lifecycle/registry_server.py`` says what
a test against the stand-in shows, and what it does not.
"""

import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.local_server import serving


@contextmanager
def registry_server(folder: Path, *apis: str) -> Iterator[str]:
    """Run a server, with all versions of the API or the given ones; yield its address."""
    command = [
        sys.executable,
        "-m",
        "examples.lifecycle.registry_server",
        "--database",
        str(folder / "registry.sqlite"),
    ]
    command += [f"--api={api}" for api in apis]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address, "the server has ended"
        yield address
    finally:
        server.terminate()
        server.communicate()


def get(address: str, path: str, **query: str) -> Any:
    """Return what the server answers."""
    question = f"?{urllib.parse.urlencode(query)}" if query else ""
    with urllib.request.urlopen(f"{address}/api/model_registry/v1/{path}{question}") as response:
        return json.load(response)


def versions(address: str, name: str) -> list[dict[str, Any]]:
    """Return the versions of a registered model, each with its artifacts and plain properties."""
    model = get(address, "registered_model", name=name)
    found = get(address, f"registered_models/{model['id']}/versions")["items"]
    for version in found:
        version["artifacts"] = get(address, f"model_versions/{version['id']}/artifacts")["items"]
        version["plain"] = {key: _plain(value) for key, value in version["customProperties"].items()}
    return list(found)


def _plain(value: dict[str, Any]) -> Any:
    (key,) = {*value} - {"metadataType"}
    return int(value[key]) if key == "int_value" else value[key]


@contextmanager
def failing_proxy(address: str, faults: dict[int, Any]) -> Iterator[tuple[str, list[str]]]:
    """Pass requests on to a server, with faults at some of them; yield an address and what was asked.

    Args:
        address: Of the server.
        faults: By place from 0: the status of an answer, or "lost" for a request that the server has carried out and
            whose answer never comes.
    """
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def pass_on(self) -> None:
            fault = faults.get(len(asked))
            asked.append(f"{self.command} {self.path.partition('?')[0]}")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
            status, content = (
                (fault, b'{"code": "x", "message": "trouble"}') if isinstance(fault, int) else self.ask(body)
            )
            if fault == "lost":
                self.close_connection = True
                return
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def ask(self, body: bytes | None) -> tuple[int, bytes]:
            request = urllib.request.Request(address + self.path, body, {"Content-Type": "application/json"})
            request.method = self.command
            try:
                with urllib.request.urlopen(request) as response:
                    return response.status, response.read()
            except HTTPError as error:
                with error:
                    return error.code, error.read()

        do_GET = do_POST = do_PATCH = pass_on

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Proxy) as url:
        yield url, asked
