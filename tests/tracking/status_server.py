"""The status server of Kubeflow Trainer 2.2, as a pod of a TrainJob sees it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from dkan_core.tracking import trainjob
from tests.certificates import server_context
from tests.local_server import serving


@dataclass
class StatusServer:
    """What the server has been told, and how it is to answer."""

    token: Path
    """File of the token that a pod is given."""

    trouble: str = ""
    """What the server does instead of answering: "hang", "nonsense" or "redirect"."""

    accepted: str = "first"
    """The token that it takes."""

    posts: list[dict[str, Any]] = field(default_factory=list)
    """Each status that was taken."""

    paths: list[str] = field(default_factory=list)
    """Of every request."""

    released: threading.Event = field(default_factory=threading.Event)
    """Ends what hangs."""


def status_of(content: bytes) -> dict[str, Any]:
    """Return the status that a body holds, once it is known to fit the schema, without anything beyond it."""
    # Its hundreds of models take most of a second, which every process that collects the tests would spend.
    from kubeflow_trainer_api.models import TrainerV1alpha1UpdateTrainJobStatusRequest

    body = json.loads(content)
    parsed = TrainerV1alpha1UpdateTrainJobStatusRequest.model_validate_json(content, strict=False)
    known = json.loads(parsed.model_dump_json(by_alias=True, exclude_unset=True))
    assert known == body, (known, body)
    status: dict[str, Any] = body["trainerStatus"]
    assert 0 <= status["progressPercentage"] <= 100 and 0 <= status.get("estimatedRemainingSeconds", 0) < 2**31
    return status


@contextmanager
def serve_status(
    folder: Path, certificate: tuple[Path, Path], patch: pytest.MonkeyPatch, accepted: str = "first"
) -> Iterator[StatusServer]:
    """Serve, with this process's environment that of a pod."""
    state = StatusServer(folder / "token", accepted=accepted)
    state.token.write_text("first\n")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            state.paths.append(self.path)
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if state.trouble == "hang":
                state.released.wait()
            elif state.trouble == "nonsense":
                self.wfile.write(b"\0nonsense\r\n\r\n")
            elif state.trouble == "redirect":
                self._answer(302, Location=f"https://{self.headers['Host']}/elsewhere")
            elif self.headers["Authorization"] != f"Bearer {state.accepted}":
                self._answer(401)
            else:
                state.posts.append(status_of(content))
                self._answer(200)

        do_GET = do_POST

        def _answer(self, code: int, **headers: str) -> None:
            self.send_response(code)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    key, path = certificate
    with serving(Handler, server_context(key, path)) as address:
        patch.setenv(trainjob.URL, f"{address}/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/run/status")
        patch.setenv(trainjob.CA_CERTIFICATE, str(path))
        patch.setenv(trainjob.TOKEN, str(state.token))
        try:
            yield state
        finally:
            state.released.set()
