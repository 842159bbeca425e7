"""Whether MLflow is used, and how long its client waits for a server."""

import importlib.util
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dkan_core.config import TrainConfig
from dkan_core.errors import ConfigError
from dkan_core.utils.extras import not_installed

URI = "MLFLOW_TRACKING_URI"
MISSING = not_installed("mlflow", "mlflow")

# The client's own defaults, 120 s and seven retries, add up to half an hour for one request.
CLIENT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    # Otherwise the client would report its use to its makers.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Otherwise the client would log a uv.lock of the working directory with each model.
    "MLFLOW_UV_AUTO_DETECT": "false",
    "MLFLOW_LOG_UV_FILES": "false",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""The client's settings while dkan uses it, unless the user has set them."""

# This logger warns before each retry of a request.
CONNECTIONS = logging.getLogger("urllib3.connectionpool")

logger = logging.getLogger(__name__)


def check_mlflow(config: TrainConfig) -> None:
    """Raise ConfigError where MLflow is asked for by name and cannot be used."""
    if config.tracking != "mlflow":
        return
    if not _is_installed():
        raise ConfigError(f"tracking mlflow: {MISSING}")
    if not os.environ.get(URI):
        raise ConfigError(f"tracking mlflow: {URI} is not set; set it to the address of a server")


def is_mlflow_wanted(tracking: str = "auto") -> bool:
    """Return whether to log to MLflow; warn if its server is named but it is not installed."""
    if tracking == "none" or not os.environ.get(URI):
        return False
    if not _is_installed():
        logger.warning("%s is set, but nothing is logged there: %s", URI, MISSING)
        return False
    return True


@contextmanager
def impatient_client() -> Iterator[None]:
    """Make MLflow's client give up on a server after seconds, inside the block, without warnings of its own."""
    added = {name: value for name, value in CLIENT_SETTINGS.items() if name not in os.environ}
    os.environ.update(added)
    level = CONNECTIONS.level
    CONNECTIONS.setLevel(logging.ERROR)
    try:
        yield
    finally:
        CONNECTIONS.setLevel(level)
        for name in added:
            os.environ.pop(name, None)


def _is_installed() -> bool:
    return all(importlib.util.find_spec(name) for name in ("mlflow", "pandas"))
