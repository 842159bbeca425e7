"""How a fork server begins: as a program of its own, or forked ahead from the ``dkan`` command.

The command has imported torch already, so forking from it saves a second import. That is safe only while the command
has no other thread, has computed nothing and has not looked for GPUs: it forks before anything else, or not at all. A
Python caller may have done all of that before. For such a caller, and to replace a fork server that has died, a new
program is started.
"""

import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dkan_core
from dkan_core.training.communication.messages import channel_pair
from dkan_core.training.launcher.fork_server import import_ahead, serve
from dkan_core.utils.signals import hold_signal

# Settings of glibc: arrays are freed and wanted again every step, and fresh pages are slow. They take a quarter off the
# wall time of a step. The first is the largest that every version takes.
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": 1 << 25, "MALLOC_TRIM_THRESHOLD_": 1 << 30}

# What ``mallopt`` calls these settings in a process that has begun: M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
MALLOC_OPTIONS = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}

# Threads that do not prevent a fork: this one is of pyarrow's allocator, which handles forks itself.
SAFE_THREADS = {"jemalloc_bg_thd"}


# Pause between two polls of a process that starts or ends, which takes hundredths of a second.
POLL_SECONDS = 0.01


class ForkedProcess:
    """A forked process, with the part of the interface of ``subprocess.Popen`` that is needed here.

    Args:
        pid: Its process ID.
        report: Handle of the file that it writes its exit code to, if it does.
    """

    def __init__(self, pid: int, report: int | None = None) -> None:
        self._pid = pid
        self._report = report
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._poll(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the process to end and return its exit code."""
        while (code := self._poll(0)) is None:
            time.sleep(POLL_SECONDS)
        return code

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _poll(self, options: int) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self._pid, options)
            except ChildProcessError:
                # Not on Linux, not adopted yet, or the caller's process lets the system reap its children.
                if not _exists(self._pid):
                    reported = b"" if self._report is None else os.pread(self._report, 16, 0)
                    self._code = int(reported) if reported.lstrip(b"-").isdigit() else -signal.SIGKILL
            else:
                self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


FirstServer = tuple[ForkedProcess, socket.socket]
_ahead: list[FirstServer] = []


@contextmanager
def fork_ahead() -> Iterator[None]:
    """Fork the fork server for the run in the block, if that is safe; a command calls this before anything else.

    As the import of torch starts OpenMP, its wait policy is set before, to that of a run's processes.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    is_new = not has_torch()
    import_ahead()
    try:
        if is_new and _can_fork():
            # Hold the signals: Python drops what a handler raises inside a fork hook, such as that of logging. A limit
            # on processes is reported when the run starts its own fork server, if it still holds then.
            with hold_signal(signal.SIGTERM), hold_signal(signal.SIGINT), suppress(OSError):
                _ahead.append(_fork())
        yield
    finally:
        # The command has ended without a run that took the fork server.
        while first := take_forked():
            process, link = first
            process.kill()
            process.wait()
            link.close()


def take_forked() -> FirstServer | None:
    """Return the fork server that was forked ahead, with the socket to it; None where there is none or it is taken."""
    return _ahead.pop() if _ahead else None


def launch_fork_server(handle: int) -> subprocess.Popen[bytes]:
    """Start a process that forks others as it is told over the socket with this handle."""
    # -P: import nothing from the working folder. A session of its own: only the launcher handles Ctrl-C.
    module = "dkan_core.training.launcher.fork_server"
    # If the caller has no stdout or stderr, this handle may have one of their numbers.
    handle = fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 3)
    command = [sys.executable, "-P", "-m", module, str(handle), str(os.getpid())]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=None if sys.stdout else subprocess.DEVNULL,
            stderr=None if sys.stderr else subprocess.DEVNULL,
            pass_fds=(handle,),
            env=fork_server_environment(),
            start_new_session=True,
        )
    finally:
        os.close(handle)


def fork_server_environment() -> dict[str, str]:
    """Return the environment of a run's processes."""
    package = str(Path(dkan_core.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    keep_memory = {name: str(value) for name, value in KEEP_MEMORY.items()}
    # Each child starts as many threads as its spec says; threads of numpy here would make forking unsafe.
    return {"OMP_WAIT_POLICY": "passive", **keep_memory, **os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def has_torch() -> bool:
    """Return whether torch was imported: nothing tells how it has been used since."""
    return "torch" in sys.modules


def _can_fork() -> bool:
    if sys.platform != "linux":
        return False
    threads = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    return len([name for name in threads if name not in SAFE_THREADS]) == 1


def _fork() -> FirstServer:
    ours, theirs = channel_pair()
    launcher = os.getpid()
    # Otherwise both processes would write what is in the buffers.
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            _begin_anew()
            serve(theirs, launcher)
        finally:
            # Never return into the command, of which this is a copy. After a failure, the launcher starts another one.
            os._exit(0)
    theirs.close()
    return ForkedProcess(pid), ours


def _begin_anew() -> None:
    """Set up this copy of the command as ``launch_fork_server`` sets up a new program."""
    import torch

    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if Path(sys.path[0]).resolve() == Path.cwd():
        del sys.path[0]
    libc = ctypes.CDLL(None)
    for name, value in KEEP_MEMORY.items():
        if name not in os.environ and hasattr(libc, "mallopt"):
            libc.mallopt(MALLOC_OPTIONS[name], value)
    environment = fork_server_environment()
    os.environ.update(environment)
    sys.path.insert(0, environment["PYTHONPATH"].split(os.pathsep)[0])
    torch.set_num_threads(1)
