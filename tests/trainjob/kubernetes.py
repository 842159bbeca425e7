"""A stand-in for a Kubernetes API server that knows TrainJobs and their pods, over real HTTP."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.local_server import serving

JOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs"
PODS = "/api/v1/namespaces/team/pods"
VERSION = "/api/v1/namespaces/kubeflow-system/configmaps/kubeflow-trainer-public"
STAMP = "2026-01-02T03:04:05.{:09d}Z"


def ended(kind: str, reason: str, message: str) -> dict[str, Any]:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


COMPLETE = ended("Complete", "JobsCompleted", "jobset completed successfully")
FAILED = ended("Failed", "JobsFailed", "jobset failed due to one or more job failures")


class Refusal(NamedTuple):
    """What the server says no with."""

    status: int
    message: str


@dataclass
class Kubernetes:
    """What the server has, what it was asked, and what it will answer."""

    conditions: list[Any] = field(default_factory=lambda: [None, COMPLETE])
    """Of a new job, one for each time that it is asked for, the last one forever: a condition, None while it runs, a
    status code, "drop", or a function that says which."""

    faults: dict[str, list[Any]] = field(default_factory=dict)
    """By method and path: a status code or "drop" for the next requests."""

    pods: list[dict[str, Any]] = field(default_factory=lambda: [pod(0), pod(1)])
    log: list[str] = field(default_factory=lambda: ["training", "done"])
    breaks: list[int] = field(default_factory=list)
    """After so many lines, and half of the next, the log's connection breaks off."""

    work: Callable[[dict[str, Any]], None] = lambda job: None
    """Done when a job is created, as its nodes would."""

    unknown: tuple[str, ...] = ()
    """Fields of a job's spec that this version of Trainer lacks: refused if validation is strict, else left out."""

    lingering: int = 0
    """So often a deleted job is still there when it is asked for."""

    trainer_statuses: list[dict[str, Any]] = field(default_factory=list)
    """What a job's first node has posted, one for each look at the job."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    created: list[dict[str, Any]] = field(default_factory=list)
    selectors: list[str] = field(default_factory=list)
    url: str = ""

    def asked(self, what: str) -> int:
        return sum(request.startswith(what) for request in self.requests)

    def add(self, name: str, *conditions: Any) -> None:
        """Have a job there from the beginning."""
        self.jobs[name] = {"metadata": {"name": name}, "spec": {}, "conditions": list(conditions) or [None]}

    def answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> Any:
        if path == VERSION:
            return {"data": {"kubeflow_trainer_version": "2.3.0"}}
        if path == PODS:
            self.selectors.append(query["labelSelector"])
            return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": self.pods}
        if path == JOBS and method == "POST":
            return self._create(json.loads(body), strict=query.get("fieldValidation") == "Strict")
        if match := re.fullmatch(rf"{JOBS}/([^/]+)", path):
            return self._get(match[1]) if method == "GET" else self._delete(match[1])
        return 404

    def _create(self, job: dict[str, Any], *, strict: bool) -> Any:
        name = job["metadata"]["name"]
        if unknown := [field for field in self.unknown if field in job["spec"]]:
            if strict:
                return Refusal(400, f'strict decoding error: unknown field "spec.{unknown[0]}"')
            job = {**job, "spec": {name: value for name, value in job["spec"].items() if name not in unknown}}
        if name in self.jobs:
            return 409
        self.created.append(job)
        self.work(job)
        self.jobs[name] = {**job, "conditions": list(self.conditions)}
        return job

    def _get(self, name: str) -> Any:
        if name not in self.jobs:
            return 404
        job = self.jobs[name]
        if "deletionTimestamp" in job["metadata"]:
            self.lingering -= 1
            if self.lingering < 0:
                del self.jobs[name]
                return 404
        waiting = job["conditions"]
        condition = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        if callable(condition):
            condition = condition()
        if isinstance(condition, int | str):
            return condition
        known = {name: value for name, value in job.items() if name != "conditions"}
        posted = {"trainerStatus": self.trainer_statuses.pop(0)} if self.trainer_statuses else {}
        return {**known, "status": {"conditions": [condition] if condition else [], **posted}}

    def _delete(self, name: str) -> Any:
        if name not in self.jobs:
            return 404
        self.jobs[name]["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
        if not self.lingering:
            del self.jobs[name]
        return {"kind": "Status", "status": "Success"}


def pod(index: int, phase: str = "Running", **status: Any) -> dict[str, Any]:
    labels = {"batch.kubernetes.io/job-completion-index": str(index)}
    metadata = {"name": f"pod-{index}", "labels": labels, "creationTimestamp": f"2026-01-02T03:04:0{index}Z"}
    return {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": phase, **status}}


def container(restarts: int = 0, **state: Any) -> dict[str, Any]:
    facts = {"name": "node", "image": "dkan", "imageID": "", "ready": False, "restartCount": restarts}
    return {**facts, "state": state}


def response_of(answer: Any) -> tuple[int, Any]:
    """Return status and content; a number is a status that refuses."""
    if isinstance(answer, int):
        answer = Refusal(answer, f"trouble {answer}")
    if isinstance(answer, Refusal):
        return answer.status, {"kind": "Status", "message": answer.message, "code": answer.status}
    return 200, answer


def handler_of(kubernetes: Kubernetes) -> type[BaseHTTPRequestHandler]:
    """Return what answers for a server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            what = f"{self.command} {parts.path}"
            kubernetes.requests.append(what if parts.query == "" else f"{what}?{parts.query}")
            faults = next((faults for start, faults in kubernetes.faults.items() if what.startswith(start)), None)
            if faults:
                answer = faults.pop(0)
            elif parts.path.endswith("/log"):
                return self.send_log()
            else:
                answer = kubernetes.answer(self.command, parts.path, query, body)
            if answer == "drop":
                self.close_connection = True
                return
            status, content = response_of(answer)
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def send_log(self) -> None:
            lines = [f"{STAMP.format(number)} {line}\n".encode() for number, line in enumerate(kubernetes.log)]
            broken = kubernetes.breaks.pop(0) if kubernetes.breaks else None
            self.send_response(200)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in lines[:broken]:
                self.send_chunk(line)
            if broken is None:
                self.send_chunk(b"")
            else:
                self.send_chunk(lines[broken][: len(lines[broken]) // 2])
                self.close_connection = True

        def send_chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
            time.sleep(0.01)

        do_GET = do_POST = do_DELETE = handle_one

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextmanager
def serve(kubernetes: Kubernetes) -> Iterator[Kubernetes]:
    """Serve on a free port of this machine."""
    with serving(handler_of(kubernetes)) as kubernetes.url:
        yield kubernetes


def write_kubeconfig(path: Path, url: str, certificate: Path | None = None) -> Path:
    """Write a kubeconfig whose namespace is "team"; a server with a certificate is trusted by that alone."""
    trusted = {"certificate-authority": str(certificate)} if certificate else {}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "stub",
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub", "namespace": "team"}}],
        "clusters": [{"name": "stub", "cluster": {"server": url, **trusted}}],
        "users": [{"name": "stub", "user": {"token": "not-a-real-token"}}],
    }
    path.write_text(json.dumps(config))
    return path
