"""Forks a run's processes from one that has already imported what they need.

Importing torch takes seconds. The fork server imports it once, while the launcher still checks the data, so a run
starts sooner and a dead process is replaced in a moment. The fork server never starts a thread, which makes forking
safe. On Linux the forked processes become the launcher's children: they survive the fork server and die with the
launcher.
"""

import gc
import importlib
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from dkan_core.errors import DkanError
from dkan_core.training.communication.messages import inherited
from dkan_core.utils.prctl import die_with_parent, name_process

# The kernel passes at most 253 descriptors in one message (SCM_MAX_FD).
MAX_HANDLES = 250
MODULES = {
    "worker": "roles.worker",
    "server": "roles.parameter_server",
    "collective-worker": "roles.collective_worker",
    "evaluator": "roles.evaluator",
    "gradient-probe": "planning.probes.gradient",
    "exchange-probe": "planning.probes.exchange",
    "allreduce-probe": "planning.probes.allreduce",
}
"""Role -> the module that does its work."""

IMPORTED_AHEAD = ("worker", "server", "collective-worker", "evaluator")
NAME = "forkserver"
READY = b'{"ready": true}\n'
GO = b"g"
# Pause between a new process's checks whether the launcher has adopted it, which takes a system call or two.
ADOPTION_SECONDS = 0.001


def main() -> None:
    """Serve the launcher that started this program."""
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))


def import_ahead() -> None:
    """Import what the processes of a run need, and exclude it from garbage collection, as none of it is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    for role in IMPORTED_AHEAD:
        importlib.import_module(f"dkan_core.training.{MODULES[role]}")
    # In every child, the collector would write to the pages of imported objects, and so copy them.
    gc.freeze()
    if was_enabled:
        gc.enable()


def serve(link: socket.socket, launcher: int) -> None:
    """Fork a process for every spec that comes over a socket, until its other end is closed.

    Args:
        link: To the launcher.
        launcher: Its process.
    """
    # Before the imports: they take seconds, and the launcher may die meanwhile.
    die_with_parent(launcher)
    name_process(f"dkan {NAME}")
    # The launcher ends the run in order; a service manager or a batch system may send Ctrl-C to every process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_ahead()
    # The system reaps the intermediate processes by itself.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    link.sendall(READY)
    while True:
        _, handles, _, _ = socket.recv_fds(link, 1, MAX_HANDLES)
        if not handles:
            return
        _start_child(handles, link, launcher)


def _start_child(handles: list[int], link: socket.socket, launcher: int) -> None:
    """Start a process that runs a spec; on Linux with a second fork, so that the launcher adopts it."""
    if sys.platform != "linux":
        _fork_child(handles, link, launcher)
    elif os.fork() == 0:
        try:
            # If the child ends before this process does, the launcher must still find its exit status.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _fork_child(handles, link, launcher)
        finally:
            os._exit(0)
    for handle in handles:
        os.close(handle)


def _fork_child(handles: list[int], link: socket.socket, launcher: int) -> None:
    """Fork a process that runs a spec, and tell the launcher its number."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.write(handles[2], b'{"pid": %d}\n' % pid)
        return
    code = 1
    try:
        # Only the fork server may hold the link to the launcher.
        link.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if sys.platform == "linux":
            while os.getppid() == parent:
                time.sleep(ADOPTION_SECONDS)
            die_with_parent(launcher)
        code = _run_child(*handles)
    finally:
        os._exit(code)


def _run_child(text: int, log: int, launcher: int, *inherited_handles: int) -> int:
    """Run a spec once the launcher has acknowledged this process; return the exit code, also written to ``text``."""
    # The launcher sends no GO if it has given this fork server up and asked another one for the process.
    with socket.socket(fileno=os.dup(launcher)) as channel:
        if channel.recv(1) != GO:
            return 1
    from dkan_core.training.roles.process_spec import ProcessSpec

    os.dup2(log, 1)
    os.dup2(log, 2)
    content = os.pread(text, os.fstat(text).st_size, 0)
    # The exit code is written to the same file, where the launcher reads it if it cannot wait for this process.
    os.ftruncate(text, 0)
    spec = ProcessSpec.from_json(content.decode()).with_handles(launcher, inherited_handles)
    name_process(f"dkan {spec.name}")
    # force: a fork server that was forked from a command has inherited that command's handlers.
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {spec.name} %(message)s", force=True)
    # Log which kernels compute, and how fast.
    logging.getLogger("dkan_core.model.kernels").setLevel(logging.DEBUG)
    main = importlib.import_module(f"dkan_core.training.{MODULES[spec.role]}").main
    code = _run(partial(main, spec), launcher)
    os.pwrite(text, str(code).encode(), 0)
    return code


def _run(work: Callable[[], None], launcher: int) -> int:
    """Run what a spec asks for; return the exit code.

    An error of ours that would recur in another process (a damaged shard, a full disk, a loss that is not finite) is
    sent to the launcher, which raises it.
    """
    try:
        work()
    except DkanError as error:
        inherited(launcher).send_error(error)
        _print_trace()
        return error.exit_code
    except Exception:
        # A forked process has no caller that would print the traceback, so it is printed here. The launcher shows the
        # end of the log, and starts another process or ends the run.
        _print_trace()
        return 1
    return 0


def _print_trace() -> None:
    # A full disk under the log must not hide the actual error.
    with suppress(OSError):
        traceback.print_exc()
        sys.stderr.flush()


if __name__ == "__main__":
    main()
