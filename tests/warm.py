"""Processes that begin with everything imported: real processes, only without the seconds that importing torch takes.

Those seconds are most of what a small run costs, once for the command and once for its fork server. Here a process that
has imported all of it is forked for each. What it becomes has the environment, the working folder and the handles that
``subprocess`` would give it, and a ``sitecustomize`` on its PYTHONPATH is executed. Only its ``/proc/PID/environ`` and
its command line are those of the process it was forked from.

A process that is forked from here and starts others in turn first forks itself, while it has no thread: it has no other
way to a process with nothing but the imports in it.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from multiprocessing import util
from pathlib import Path
from typing import IO

from dkan_core.cli.startup import run_process
from dkan_core.report import templating
from dkan_core.training.launcher import fork_server, fork_server_client, fork_server_start
from dkan_core.utils.prctl import adopt_orphans, stop_adopting

ROOT = Path(__file__).parents[1]
IMPORTED = ("dkan_core.cli", "dkan_core.training.launcher.train", "dkan_core.evaluation.evaluate")
IMPORTED_LATER = (
    *("jinja2", "scipy.optimize", "tenacity", "torch.distributed.pipelining", "torch.distributed.tensor"),
    *("torch.fx.experimental.symbolic_shapes", "torch.nested._internal.nested_tensor"),
)
"""What processes of a run import only when they need it: up to two seconds in each rank that has a part of a model."""

EXECUTABLE = "DKAN_WARM_PYTHON"
"""Variable with the ``sys.executable`` of a process, where it is another one: see ``tests.warm_python``."""

SPAWN = util.spawnv_passfds

MAX_REQUEST = 1 << 17
MAX_HANDLES = 8
SAFE_THREADS = {"jemalloc_bg_thd"}
"""Threads that take care of forks themselves; pyarrow's allocator has one."""

HUGE_PAGE = 1 << 21
MADV_COLLAPSE = 25
"""Of Linux 6.1 and later, see ``_use_huge_pages``."""

ADOPTION_SECONDS = 0.001
"""How often a new process looks whether it is the child of the one that asked for it."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a forked process becomes."""

    argv: list[str]
    """Arguments of ``python``; none for a fork server."""

    env: dict[str, str]
    cwd: str
    launcher: int = 0
    """Process that a fork server works for; 0 for a command."""

    imported: list[str] = field(default_factory=list)
    """Modules that a process imports before others are forked from it; none for what is no such process."""

    numbers: list[int] = field(default_factory=list)
    """What its handles after stdout and stderr are to be, of a process of ``multiprocessing``."""

    blocked: list[int] = field(default_factory=list)
    """Signals that do not reach it."""


class Forked:
    """A process that was forked, as ``subprocess.Popen`` shows one."""

    def __init__(self, pid: int, stderr: IO[str] | None = None) -> None:
        self.pid = pid
        self.stderr = stderr
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        code = self._wait(0)
        assert code is not None
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class WarmServer:
    """The process that others are forked from, as the one that asks for them sees it."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def fork(self, task: Task, handles: Sequence[int]) -> int:
        """Fork a process with some handles, the first two as stdout and stderr; return its number: it is our child."""
        with self._lock:
            adopt_orphans()
            try:
                socket.send_fds(self._link, [json.dumps(asdict(task)).encode()], handles)
                return int(self._link.recv(16))
            finally:
                stop_adopting()

    def launch_fork_server(self, handle: int) -> Forked:
        """Start a fork server."""
        env = fork_server_start.fork_server_environment()
        return Forked(self.fork(Task(argv=[], env=env, cwd=str(Path.cwd()), launcher=os.getpid()), [1, 2, handle]))

    def spawn(self, path: bytes, words: Sequence[str], numbers: Sequence[int]) -> int:
        """Take the place of ``multiprocessing.util.spawnv_passfds``: the fork server of ``dkan serve`` begins here."""
        if "forkserver" not in words[-1]:  # it imports next to nothing
            return SPAWN(path, words, numbers)
        task = Task(
            argv=[*words[words.index("-c") :]],
            env=dict(os.environ),
            cwd=str(Path.cwd()),
            numbers=[*numbers],
            blocked=[*signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        )
        return self.fork(task, [1, 2, *numbers])

    def popen(self, words: Sequence[object], env: dict[str, str], cwd: Path | None = None) -> Forked:
        """Start the ``dkan`` command, or Python with ``-c``, ``-m`` or a script; its stderr is a pipe."""
        ours, theirs = os.pipe()
        try:
            pid = self.fork(_command(words, env, cwd), [1, theirs])
        finally:
            os.close(theirs)
        return Forked(pid, os.fdopen(ours))

    def start(self, words: Sequence[object], env: dict[str, str], log: IO[str]) -> Forked:
        """Start what ``popen`` starts; all its output goes to a file."""
        return Forked(self.fork(_command(words, env, None), [log.fileno(), log.fileno()]))

    def run(self, words: Sequence[object], cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run what ``popen`` starts, as ``subprocess.run`` would with its output captured."""
        task = _command(words, {**os.environ, **env}, cwd)
        with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
            process = Forked(self.fork(task, [output.fileno(), errors.fileno()]))
            code = process.wait()
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess([str(word) for word in words], code, output.read(), errors.read())


def _command(words: Sequence[object], env: dict[str, str], cwd: Path | None) -> Task:
    argv = [str(word) for word in words]
    if argv[0] not in ("-c", "-m") and not argv[0].endswith(".py"):
        argv = ["-m", "dkan_core", *argv]
    return Task(argv=argv, env=env, cwd=str(cwd or Path.cwd()))


@cache
def server(*imported: str) -> WarmServer:
    """Return the process that others are forked from; the first call starts it, and it ends with this process.

    Args:
        imported: Modules that it imports in addition to those of commands and runs; there is a process for each choice,
            forked from the one without any.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if imported:
        task = Task(argv=[], env=fork_server_start.fork_server_environment(), cwd=str(ROOT), imported=[*imported])
        process: Forked | subprocess.Popen[bytes] = Forked(server().fork(task, [1, 2, theirs.fileno()]))
    else:
        process = _start(theirs)
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return WarmServer(ours)


def _start(theirs: socket.socket) -> subprocess.Popen[bytes]:
    # The allocator and OpenMP read their settings when a program begins, so a fork server's are set here already. Its
    # streams are those that a program has by itself.
    env = {**fork_server_start.fork_server_environment(), "PYTHONUNBUFFERED": ""}
    # rich remembers the width that it begins with, and xdist sets one.
    env.pop("COLUMNS", None)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(),),
        env=env,
    )


def launch_fork_server(handle: int) -> Forked:
    """Take the place of ``fork_server_client.launch_fork_server``."""
    return server().launch_fork_server(handle)


def _serve(link: socket.socket) -> tuple[Task, list[int]]:
    """Fork a process for every request; return, in that process alone, what it becomes."""
    while True:
        try:
            content, handles, _, _ = socket.recv_fds(link, MAX_REQUEST, MAX_HANDLES)
        except ConnectionResetError:  # the process that asks was killed before it read an answer
            os._exit(0)
        if not content:
            os._exit(0)
        between = os.fork()
        if between == 0:
            # The process in between ends at once, and so its child becomes that of the process that asks.
            parent = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == parent:
                time.sleep(ADOPTION_SECONDS)
            try:
                link.send(str(os.getpid()).encode())
            except BrokenPipeError:  # the process that asked was killed meanwhile
                os._exit(0)
            link.close()
            return Task(**json.loads(content)), list(handles)
        os.waitpid(between, 0)
        for handle in handles:
            os.close(handle)


def _become(task: Task, handles: Sequence[int]) -> None:
    """Take over what a process of its own would begin with."""
    os.dup2(handles[0], 1)
    os.dup2(handles[1], 2)
    for handle in handles[:2]:
        os.close(handle)
    if task.numbers:
        _renumber(handles[2:], task.numbers)
    signal.pthread_sigmask(signal.SIG_BLOCK, task.blocked)
    before = set(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ.clear()
    os.environ.update(task.env)
    os.chdir(task.cwd)
    sys.executable = task.env.get(EXECUTABLE, sys.executable)
    tempfile.tempdir = None  # it is remembered from the environment
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if added := [path for path in task.env.get("PYTHONPATH", "").split(os.pathsep) if path and path not in before]:
        sys.path[:0] = added
        sys.modules.pop("sitecustomize", None)
        site.execsitecustomize()


def _renumber(handles: Sequence[int], numbers: Sequence[int]) -> None:
    # First to numbers that none of them is to have.
    moved = [fcntl.fcntl(handle, fcntl.F_DUPFD, max(*handles, *numbers) + 1) for handle in handles]
    for handle in handles:
        os.close(handle)
    for handle, number in zip(moved, numbers, strict=True):
        os.dup2(handle, number)
        os.close(handle)


def _own_server() -> WarmServer:
    """Fork the server of a command's own fork servers, which have to be its children."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        return WarmServer(ours)
    ours.close()
    run(*_serve(theirs))
    sys.exit()


def run(task: Task, handles: list[int]) -> None:
    if task.imported:
        _become(task, handles)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _import(task.imported)
        run(*_serve(socket.socket(fileno=handles[2])))
    elif task.launcher:
        _become(task, handles)
        os.setsid()
        sys.argv = ["fork_server", str(handles[2]), str(task.launcher)]
        fork_server.main()
    elif task.argv[0] == "-c":
        _become(task, handles)
        run_process(partial(_run_program, task.argv))
    else:
        server = _own_server()
        _become(task, handles)
        fork_server_client.launch_fork_server = server.launch_fork_server  # type: ignore[assignment, attr-defined]
        util.spawnv_passfds = server.spawn  # type: ignore[assignment]
        # Imported is all that it was.
        fork_server_start.has_torch = lambda: False
        run_process(partial(_run_program, task.argv))


def _run_program(argv: list[str]) -> None:
    """Run code, a module or a script, as ``python`` does."""
    if argv[0] == "-c":
        _, code, *arguments = argv
        sys.argv = ["-c", *arguments]
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    elif argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path.insert(0, str(Path(argv[0]).parent.resolve()))
        runpy.run_path(argv[0], run_name="__main__")
    sys.exit()


def _compile_templates() -> None:
    """Do what each process would do before it fills its first template; their environments keep what they compile."""
    for kind, environment in (("html", templating._environment()), ("md", templating._markdown_environment())):
        for name in environment.list_templates(extensions=["j2"]):
            if name.endswith(f".{kind}.j2"):
                environment.get_template(name)


def _use_huge_pages() -> None:
    """Put what is in memory into huge pages, where the system can: a fork copies an entry of a table for every page."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode, *_ = line.split()
        start, end = (int(address, 16) for address in addresses.split("-"))
        first, last = -(-start // HUGE_PAGE), end // HUGE_PAGE
        if rights == "rw-p" and inode == "0" and first < last:
            size = (last - first) * HUGE_PAGE
            madvise(ctypes.c_void_p(first * HUGE_PAGE), ctypes.c_size_t(size), MADV_COLLAPSE)


def _import(modules: Sequence[str]) -> None:
    """Import what processes that are forked from this one begin with."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    _compile_templates()
    gc.freeze()
    gc.enable()
    _use_huge_pages()
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert len(set(threads) - SAFE_THREADS) == 1, f"a process with threads cannot be forked safely: {threads}"


def main() -> None:
    _, handle = sys.argv
    # Some libraries read the options of the process when they are imported.
    del sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ahead = [f"dkan_core.training.{fork_server.MODULES[role]}" for role in fork_server.IMPORTED_AHEAD]
    _import([*IMPORTED, *IMPORTED_LATER, *ahead])
    run(*_serve(socket.socket(fileno=int(handle))))


if __name__ == "__main__":
    main()
