"""A stand-in for the API server of Kubeflow Pipelines: the endpoints that the SDK calls, over real HTTP."""

import json
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

from click.testing import Result

from tests.local_server import serving

API = "/apis/v2beta1"
GIVEN = ["--experiment", "flights", "--params", "data_uri=s3://bucket/flights", "--params", "label=late"]
TIME = "2026-01-02T03:04:{:02d}Z"


def task(name: str, state: str, error: str = "", **more: Any) -> dict[str, Any]:
    times = {"create_time": TIME.format(5), "start_time": TIME.format(5), "end_time": TIME.format(17)}
    return {"display_name": name, "state": state, "error": {"code": 2, "message": error} if error else None} | (
        times | more
    )


def state(name: str, *tasks: dict[str, Any], error: str = "") -> dict[str, Any]:
    return {"state": name, "run_details": {"task_details": list(tasks)}, "error": {"message": error} if error else None}


@dataclass
class Kubeflow:
    """What the server has, what it was asked, and what it will answer."""

    states: list[Any] = field(default_factory=lambda: [state("SUCCEEDED")])
    """Answers about the run, in turn, the last one forever: a state, a status code, or "drop"."""

    faults: dict[str, list[Any]] = field(default_factory=dict)
    """By method and path: a status code, "drop" or "login" for the next requests."""

    echo: bool = False
    """Whether errors quote the headers of the request, as careless proxies do."""

    multi_user: bool = False
    pipelines: list[dict[str, Any]] = field(default_factory=list)
    versions: list[dict[str, Any]] = field(default_factory=list)
    experiments: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    requests: list[tuple[str, dict[str, str], dict[str, str]]] = field(default_factory=list)
    host: str = ""

    def asked(self, what: str) -> int:
        return sum(request == what for request, _, _ in self.requests)

    def answer(self, what: str, query: dict[str, str], body: bytes) -> Any:
        if what == "GET /healthz":
            return {"multi_user": self.multi_user}
        if what == "GET /pipelines":
            return {"pipelines": _named(self.pipelines, query)}
        if what == "POST /pipelines/upload":
            assert b"pipelineInfo" in body
            return _add(self.pipelines, "pipeline_id", query["name"])
        if re.fullmatch(r"GET /pipelines/[^/]+/versions", what):
            return {"pipeline_versions": _named(self.versions, query)}
        if what == "POST /pipelines/upload_version":
            assert b"pipelineInfo" in body and query["pipelineid"]
            return _add(self.versions, "pipeline_version_id", query["name"])
        if what == "GET /experiments":
            return {"experiments": _named(self.experiments, query)}
        if what == "POST /experiments":
            return _add(self.experiments, "experiment_id", json.loads(body)["display_name"])
        if what == "POST /runs":
            self.runs.append(json.loads(body))
            return {"run_id": f"run-{len(self.runs)}"}
        if what.startswith("GET /runs/"):
            now = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            return now if not isinstance(now, dict) else {"run_id": what.rpartition("/")[2], **now}
        return 404


def _named(entries: list[dict[str, Any]], query: dict[str, str]) -> list[dict[str, Any]]:
    (predicate,) = json.loads(query["filter"])["predicates"]
    return [entry for entry in entries if entry["display_name"] == predicate["stringValue"]]


def _add(entries: list[dict[str, Any]], key: str, name: str) -> dict[str, Any]:
    entries.append({key: f"{key}-{len(entries)}", "display_name": name})
    return entries[-1]


@contextmanager
def serve(kubeflow: Kubeflow, tls: ssl.SSLContext | None = None) -> Iterator[Kubeflow]:
    """Serve on a free port of this machine, under a path as behind a gateway; with ``tls`` over https."""

    class Handler(BaseHTTPRequestHandler):
        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            what = f"{self.command} {parts.path.removeprefix('/pipeline' + API)}"
            kubeflow.requests.append((what, query, dict(self.headers)))
            faults = kubeflow.faults.get(what)
            answer = faults.pop(0) if faults else kubeflow.answer(what, query, body)
            if answer == "drop":
                self.close_connection = True
                return
            status, content = 200, answer
            if isinstance(answer, int):
                quoted = str(dict(self.headers)) if kubeflow.echo else "said the server"
                status, content = answer, {"code": 1, "message": f"trouble {quoted}"}
            data = b"<html>Log in</html>" if answer == "login" else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if answer == "login" else "application/json")
            self.send_header("Set-Cookie", "session=from-the-server")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = handle_one

        def log_message(self, *_: Any) -> None:
            pass

    with serving(Handler, tls) as url:
        kubeflow.host = f"{url}/pipeline"
        yield kubeflow


def waited(
    run: Callable[..., Result], folder: Path, *options: str
) -> tuple[Result, dict[str, Any], ElementTree.Element]:
    """Run with --wait; return also the JSON summary and the test suite."""
    files = ["--summary", str(folder / "summary.json"), "--junit", str(folder / "junit.xml")]
    result = run("--wait", *files, *options)
    suite = ElementTree.parse(folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    return result, json.loads((folder / "summary.json").read_text()), suite
