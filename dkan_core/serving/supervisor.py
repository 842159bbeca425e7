"""Supervision of a server's processes, where it has several."""

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from dataclasses import asdict
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from uvicorn import _subprocess
from uvicorn.supervisors import multiprocess

from dkan_core.config import ServeConfig
from dkan_core.utils.logs import log_levels, set_up_logging, show_start_and_end
from dkan_core.utils.signals import handle_signal

# Seconds between checks of a process that does not answer.
POLL_SECONDS = 1.0

IMPORTED_AHEAD = "dkan_core.serving.worker"
# Environment variables that tell the serving processes what to serve and which messages to show: uvicorn starts them by
# a function's name.
MODEL, CONFIG, LOG_LEVELS = "DKAN_SERVE_MODEL", "DKAN_SERVE_CONFIG", "DKAN_SERVE_LOG_LEVELS"


class ServingProcess(multiprocess.Process):
    """A serving process that is replaced as soon as it is dead, and that finishes its requests when told to end.

    uvicorn's own class waits for a dead process to answer until a timeout, and dies of a SIGTERM without finishing.
    """

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, in the process."""
        # After an orderly end, uvicorn raises the signal again while requests that outlasted the grace period are still
        # being answered. A signal before the server handles it should end the server as well.
        with handle_signal(signal.SIGTERM, lambda *_: setattr(self.server, "should_exit", True)):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            threading.Thread(target=_end_with_parent, daemon=True).start()
            super().target(sockets)

    def is_alive(self, timeout: float = 5) -> bool:
        """Return whether the process answers within ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self.process.is_alive():
            if self.ping(POLL_SECONDS):
                return True
            if time.monotonic() >= deadline:
                return False
        return False


def _end_with_parent() -> None:
    """End this process when its supervisor dies: nothing would replace it, and it would keep the port."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os._exit(1)


def start_fork_server(model: Path, config: ServeConfig) -> None:
    """Start the process that serving processes are forked from, which imports what they need once for all of them.

    The serving processes inherit its environment, which is that of this moment. It imports in the background.
    """
    os.environ |= {MODEL: str(model), CONFIG: json.dumps(asdict(config)), LOG_LEVELS: json.dumps(log_levels())}
    multiprocessing.set_forkserver_preload([IMPORTED_AHEAD])
    # A SIGTERM to all processes, as from systemd, must not end the fork server while the others finish their requests.
    # The resource tracker is started first, as it would unblock the signal when it starts.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def application_from_environment() -> Any:
    """Return a serving process's application."""
    from dkan_core.serving.scorer import load_scorer
    from dkan_core.serving.worker import application

    set_up_logging(*json.loads(os.environ[LOG_LEVELS]))
    show_start_and_end()
    config = ServeConfig(**json.loads(os.environ[CONFIG]))
    return application(load_scorer(Path(os.environ[MODEL]), config), config)


def terminate_all(processes: multiprocess.Multiprocess) -> None:
    """Stop listening, and tell each process to end.

    If this process kept the socket open, new connections would hang until all processes have ended.
    """
    for each in processes.sockets:
        each.close()
    for process in processes.processes:
        process.terminate()


def watch_processes() -> None:
    """Make uvicorn fork ``ServingProcess`` and end its processes with ``terminate_all``."""
    # uvicorn has no setting for this.
    _subprocess.spawn = multiprocessing.get_context("forkserver")  # type: ignore[assignment]
    multiprocess.Process = ServingProcess  # type: ignore[misc]
    multiprocess.Multiprocess.terminate_all = terminate_all  # type: ignore[assignment, method-assign]
