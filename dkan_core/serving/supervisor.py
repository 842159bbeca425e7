"""Supervision of a server's processes, where it has several."""

import signal
import socket
import time

from uvicorn.supervisors import multiprocess

from dkan_core.utils.signals import handle_signal

# How often a process that does not answer is looked at.
POLL_SECONDS = 1.0


class ServingProcess(multiprocess.Process):
    """A process that is replaced as soon as it is dead, and told to end answers what it has not finished.

    For the first, uvicorn's own waits for an answer until the time is up; it dies of SIGTERM before the second.
    """

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, in the process."""
        # Once the server has ended in order, uvicorn raises the signal again, before the requests that outlasted the
        # grace are answered. One that comes before the server listens for it ends the server, too.
        with handle_signal(signal.SIGTERM, lambda *_: setattr(self.server, "should_exit", True)):
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


def terminate_all(processes: multiprocess.Multiprocess) -> None:
    """Stop listening, and tell each process to end.

    Connections to a socket that is left open here would hang until all processes have ended.
    """
    for each in processes.sockets:
        each.close()
    for process in processes.processes:
        process.terminate()


def watch_processes() -> None:
    """Let uvicorn start its processes as ``ServingProcess``, and end them with ``terminate_all``."""
    # It has no settings for this.
    multiprocess.Process = ServingProcess  # type: ignore[misc]
    multiprocess.Multiprocess.terminate_all = terminate_all  # type: ignore[assignment, method-assign]
