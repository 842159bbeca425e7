"""``serve``: a model behind HTTP, until the process is told to end."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

from dkan_core.config import ServeConfig, check_config
from dkan_core.errors import ConfigError
from dkan_core.model.model_folder import ModelFolder
from dkan_core.model.saved_model import SavedModel
from dkan_core.serving.kserve_library import import_kserve
from dkan_core.serving.scorer import load_scorer
from dkan_core.utils.extras import require
from dkan_core.utils.logs import show_start_and_end
from dkan_core.utils.signals import handle_signal
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.scratch import scratch_folder

# A server process that shows no sign of life for this long is replaced; imports are slow on a busy machine.
START_SECONDS = 60
# Longer than load balancers keep an idle connection (60 s), which might otherwise send a request as it closes.
KEEP_ALIVE_SECONDS = 65


def serve(model: str | Path, config: ServeConfig | None = None) -> None:
    """Serve a model over HTTP, and over gRPC if it has a port, until SIGTERM or SIGINT.

    Requests in progress are answered before it ends. The probabilities are those of ``predict``, to the bit on the same
    machine.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        config: Settings of the server.

    Raises:
        ConfigError: A port is taken, or KServe's library is not installed.
        DataError: There is no model, or it is damaged.
    """
    config = config or ServeConfig()
    check_config(ServeConfig, config)
    require("kserve", "serve")
    for setting, port in (("port", config.port), ("grpc_port", config.grpc_port)):
        if port is not None:
            _check_free(setting, config.host, port)
    with local_copy(model) as folder:
        if config.workers > 1:
            _run_workers(SavedModel(folder).files, config)
        else:
            scorer = load_scorer(folder, config)
            import_kserve()
            from dkan_core.serving.worker import application

            _run(application(scorer, config), config)


def _check_free(setting: str, host: str, port: int) -> None:
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise ConfigError(f"{setting} {port}: cannot listen there on {host} ({why})") from None


def _run_workers(model: ModelFolder, config: ServeConfig) -> None:
    with scratch_folder() as scratch:
        # A copy, so that a replaced process serves the same model as the others, even if the folder has changed.
        folder, counts = scratch / "model", scratch / "counts"
        for made in (folder, counts):
            made.mkdir()
        for name in sorted(model.files):
            (folder / name).write_bytes(model.read(name))
        # Set before the library is imported, which reads it then.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(counts)
        from dkan_core.serving.supervisor import application_from_environment as factory
        from dkan_core.serving.supervisor import start_fork_server, watch_processes

        start_fork_server(folder, config)
        # Loaded once in this process, so that a model that cannot score ends the command with a message.
        load_scorer(folder, config)
        watch_processes()
        _run(f"{factory.__module__}:{factory.__name__}", config)


def _run(app: Any, config: ServeConfig) -> None:
    """Serve an application, or with several workers what the function of that name returns in each of them."""
    import uvicorn

    show_start_and_end()
    # After an orderly end, uvicorn raises the signal again for its caller, but here nothing remains to be stopped.
    with handle_signal(signal.SIGTERM, lambda *_: None):
        uvicorn.run(
            app,
            factory=config.workers > 1,
            host=config.host,
            port=config.port,
            workers=config.workers,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=config.grace_seconds,
            timeout_worker_healthcheck=START_SECONDS,
        )
