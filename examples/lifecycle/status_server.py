"""The status endpoint that Kubeflow Trainer 2.2 provides to the pods of a TrainJob: HTTPS, with a token."""

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from kubeflow_trainer_api.models import TrainerV1alpha1UpdateTrainJobStatusRequest

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/run/status"
SECRET = "token-of-this-pod"
VARIABLES = (
    "KUBEFLOW_TRAINER_STATUS_URL",
    "KUBEFLOW_TRAINER_STATUS_CA_CERT",
    "KUBEFLOW_TRAINER_STATUS_TOKEN",
)


class StatusEndpoint:
    """The environment variables with which a pod finds the endpoint, and what was posted to it."""

    def __init__(self) -> None:
        self.variables: dict[str, str] = {}
        self.posts: list[dict[str, Any]] = []


@contextmanager
def status_endpoint(folder: Path) -> Iterator[StatusEndpoint]:
    """Serve in a thread of this process.

    Args:
        folder: Folder of certificate and token.
    """
    key, certificate, token = folder / "key.pem", folder / "certificate.pem", folder / "token"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    token.write_text(SECRET)
    endpoint = StatusEndpoint()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(endpoint))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    address = f"https://127.0.0.1:{server.server_port}{PATH}"
    endpoint.variables = dict(zip(VARIABLES, (address, str(certificate), str(token)), strict=True))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(endpoint: StatusEndpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Authorization"] != f"Bearer {SECRET}" or self.path != PATH:
                self._answer(401)
                return
            # Content that does not match the schema of the API is an error, which the client sees.
            TrainerV1alpha1UpdateTrainJobStatusRequest.model_validate_json(content, strict=False)
            endpoint.posts.append(json.loads(content)["trainerStatus"])
            self._answer(200)

        def _answer(self, status: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Print nothing; the summary has what was posted."""

    return Handler
