"""The status of a TrainJob: Kubeflow Trainer 2.2 gives its pods an address to post progress and metrics to.

With the feature gate TrainJobStatus, each pod has three variables: the address, the path of the CA certificate that
identifies its server, and the path of the token that says which pods may post.
"""

import http.client
import json
import os
import ssl
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dkan_core.tracking.tracker import Progress, RunEnd, TrackedRun, Tracker

URL = "KUBEFLOW_TRAINER_STATUS_URL"
CA_CERTIFICATE = "KUBEFLOW_TRAINER_STATUS_CA_CERT"
TOKEN = "KUBEFLOW_TRAINER_STATUS_TOKEN"

# Seconds between posts, each of which goes on to the cluster's API server.
POST_SECONDS = 5.0
TIMEOUT_SECONDS = 10.0


class TrainJobTracker(Tracker):
    """Posts progress, remaining seconds and metrics."""

    progress_seconds = POST_SECONDS

    def __init__(self) -> None:
        self._metrics: dict[str, float] = {}
        self._percentage = 0

    def started(self, run: TrackedRun) -> None:
        self._metrics = {"step": run.step}
        self._percentage = min(99, 100 * run.step // run.steps)
        self._post()

    def progress(self, progress: Progress) -> None:
        self._metrics |= {
            "step": progress.step,
            "epoch": progress.epoch,
            "rows_per_second": progress.rows_per_second,
            "loss": progress.loss,
        }
        self._percentage = progress.percentage
        self._post(progress.remaining_seconds)

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        # Not posted at once, as progress or the end follows soon.
        shown = ("step", "epoch", "rows_per_second", "loss", "average_precision", "best_average_precision")
        self._metrics |= {name: entry[name] for name in shown}

    def finished(self, end: RunEnd) -> None:
        if end.metrics is not None:
            # The saved model's, which may be a blend with an additive model.
            self._metrics["best_average_precision"] = end.metrics["average_precision"]
        if end.metrics is not None and end.status == "finished":
            self._percentage = 100
            self._post(0)
        else:
            self._post()

    def _post(self, remaining_seconds: int | None = None) -> None:
        status: dict[str, Any] = {
            "progressPercentage": self._percentage,
            "metrics": [{"name": name, "value": f"{value:.6g}"} for name, value in self._metrics.items()],
            "lastUpdatedTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        if remaining_seconds is not None:
            status["estimatedRemainingSeconds"] = remaining_seconds
        post_status({"trainerStatus": status})


def post_status(body: Mapping[str, Any]) -> None:
    """Post a status.

    Raises:
        OSError: The server cannot be reached, or refuses it; or a variable or its file is missing.
    """
    url = os.environ[URL]
    if not url.startswith("https://"):
        raise OSError(f"{URL} is not an https address: the token is not sent there")
    # Both files are read for each post, as token and certificate are replaced before they expire.
    token = _file_of(TOKEN).read_text(encoding="utf-8").strip()
    context = ssl.create_default_context(cafile=str(_file_of(CA_CERTIFICATE)))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirects)
    with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
        if answer.status != http.client.OK:
            raise OSError(f"the server answers {answer.status}")


def _file_of(variable: str) -> Path:
    path = os.environ.get(variable)
    if not path:
        raise OSError(f"{variable} is not set")
    return Path(path)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, as the token is only for the server at the address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Make an error of it."""
