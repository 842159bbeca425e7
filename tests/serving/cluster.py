"""A stand-in for the API server of a cluster with KServe, over HTTPS: server-side apply, and a status that moves on."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.certificates import make_certificate, server_context
from tests.local_server import serving as serving_http
from tests.trainjob.kubernetes import write_kubeconfig

SERVICES = "/apis/serving.kserve.io/v1beta1/namespaces/team/inferenceservices/"
URL = "http://late.team.example.com"


def condition(kind: str, status: str, **details: str) -> dict[str, str]:
    return {"type": kind, "status": status, **details}


READY = {
    "conditions": [condition("Ready", "True")],
    "modelStatus": {"transitionStatus": "UpToDate"},
    "url": URL,
}
LOADING = {
    "conditions": [condition("Ready", "False", reason="MinimumReplicasUnavailable", message="no pod is ready")],
    "modelStatus": {"transitionStatus": "InProgress"},
}
# The earlier model still answers while the pods of the new one start.
EARLIER = {**READY, "modelStatus": {"transitionStatus": "InProgress"}}


@dataclass
class KServe:
    """What the cluster has, what it was asked, and what it will answer."""

    states: list[Any] = field(default_factory=lambda: [READY])
    """Status each time that a service is asked for, the last one forever; None: KServe has not looked yet; a number is
    a status code that refuses."""

    faults: list[int] = field(default_factory=list)
    """Status codes of the next answers to an apply."""

    message: str = "no"
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    applied: list[dict[str, Any]] = field(default_factory=list)
    queries: list[dict[str, list[str]]] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    def apply(self, name: str, body: dict[str, Any]) -> Any:
        self.applied.append(body)
        if self.faults:
            return self.faults.pop(0)
        before = self.services.get(name, {"metadata": {"generation": 0}})
        changed = before.get("spec") != body["spec"]
        metadata = {**body["metadata"], "generation": before["metadata"]["generation"] + changed}
        self.services[name] = {**body, "metadata": metadata}
        return self.services[name]

    def get(self, name: str) -> Any:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, int):
            return state
        service = self.services[name]
        generation = service["metadata"]["generation"]
        status = {**READY, "observedGeneration": generation - 1}
        return {**service, "status": status if state is None else {"observedGeneration": generation, **state}}


def handler_of(kserve: KServe) -> type[BaseHTTPRequestHandler]:
    """Return what answers for a server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send(kserve.get(self.name()))

        def do_PATCH(self) -> None:
            assert self.headers["Content-Type"] == "application/apply-patch+yaml"
            kserve.queries.append(parse_qs(urlsplit(self.path).query))
            kserve.tokens.add(self.headers["Authorization"])
            self.send(kserve.apply(self.name(), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def name(self) -> str:
            path = urlsplit(self.path).path
            assert path.startswith(SERVICES), path
            return path.removeprefix(SERVICES)

        def send(self, answer: Any) -> None:
            refused = isinstance(answer, int)
            data = json.dumps({"kind": "Status", "message": kserve.message} if refused else answer).encode()
            self.send_response(answer if refused else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def serving_cluster(kserve: KServe, folder: Path) -> Iterator[Path]:
    """Serve on a free port; yield a kubeconfig whose namespace is "team", and which trusts the server alone."""
    key, certificate = make_certificate(folder)
    with serving_http(handler_of(kserve), server_context(key, certificate)) as url:
        yield write_kubeconfig(folder / "kubeconfig", url, certificate)
