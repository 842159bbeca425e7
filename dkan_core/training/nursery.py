"""Forks a run's processes from one that has already imported what they need.

Importing torch takes seconds. Done once, while the launcher still looks at the data, it costs a run less, and a process
that takes the place of a dead one is there in a moment. The nursery itself never starts a thread, which makes forking
safe. It dies with its launcher, and its children die with it.
"""

import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import sys

from dkan_core.training.channel import Channel
from dkan_core.training.job import Job, run_job

MAX_HANDLES = 250
ROLES = ("worker", "server", "member", "evaluator")


def main() -> None:
    """Fork a process for every job that comes over standard input's socket, and report how each ends."""
    die_with_parent(int(sys.argv[2]))
    link = socket.socket(fileno=int(sys.argv[1]))
    launcher = Channel(link)
    for role in ROLES:
        importlib.import_module(f"dkan_core.training.{role}")
    gc.freeze()
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    with selectors.DefaultSelector() as selector:
        for source in (link, woken):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(1 << 10)
                else:
                    _, handles, _, _ = socket.recv_fds(link, 1, MAX_HANDLES)
                    if not handles:
                        return
                    launcher.send(pid=_fork(handles), code=None)
            _report(launcher)


def _report(launcher: Channel) -> None:
    """Say which children have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        launcher.send(pid=pid, code=os.waitstatus_to_exitcode(status))


def _fork(handles: list[int]) -> int:
    """Fork a process that does a job; return its number."""
    nursery, pid = os.getpid(), os.fork()
    if pid == 0:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(nursery)
            code = _be_child(*handles)
        finally:
            os._exit(code)
    for handle in handles:
        os.close(handle)
    return pid


def _be_child(text: int, log: int, launcher: int, *inherited_handles: int) -> int:
    """Do a job; return the exit code."""
    os.dup2(log, 1)
    os.dup2(log, 2)
    with os.fdopen(text, "rb") as file:
        job = Job.from_json(file.read().decode()).with_handles(launcher, inherited_handles)
    _name_process(job.name)
    module = importlib.import_module(f"dkan_core.training.{job.role}")
    return run_job(job, module.work)


def _name_process(name: str) -> None:
    """Have ps and top show what a process is (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(15, f"dkan {name}"[:15].encode(), 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


if __name__ == "__main__":
    main()
