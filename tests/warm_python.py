"""A ``python3`` whose imports are done, for programs that start others by the path of an interpreter, as kfp does.

It is a script that has ``tests.warm`` fork a process with its arguments, environment, working folder and streams, waits
for it, and ends with its exit code; SIGTERM is passed on. Nothing is buffered with -u, which torchrun gives, or without
it.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from dkan_core.utils.prctl import die_with_parent
from tests import warm

SCRIPT = """#!{python} -IS
import json, os, signal, socket, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect({address!r})
words = [word for word in sys.argv[1:] if word != "-u"]
socket.send_fds(link, [json.dumps([words, dict(os.environ), os.getcwd()]).encode()], [0, 1, 2])
pid = int(link.recv(16))
signal.signal(signal.SIGTERM, lambda number, _: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
sys.exit(int(link.recv(16) or 1))
"""
SERVER = "import sys; from tests.warm_python import serve; serve(sys.argv[1])"


def run(words: Sequence[object], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script or ``-m`` with a module, as ``subprocess.run`` does; its ``sys.executable`` is the one here."""
    return warm.server().run(words, cwd, **env, **{warm.EXECUTABLE: executable()})


@cache
def executable() -> str:
    """Return the path of the script; the first call starts what it talks to, which ends with this process."""
    folder = tempfile.TemporaryDirectory(prefix="dkan-python-")
    address, script = Path(folder.name) / "socket", Path(folder.name) / "python3"
    script.write_text(SCRIPT.format(python=sys.executable, address=str(address)))
    script.chmod(0o755)
    script.with_name("python").symlink_to(script)
    process = warm.server().popen(["-c", SERVER, address], dict(os.environ))
    while not address.exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.01)

    def end() -> None:
        process.kill()
        folder.cleanup()

    atexit.register(end)
    return str(script)


def serve(address: str) -> None:
    """Fork a process for every script that asks."""
    die_with_parent(os.getppid())
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{address}.partial")
    listener.listen()
    Path(f"{address}.partial").rename(address)
    # The processes that wait for others are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        link, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return _answer(link)
        link.close()


def _answer(link: socket.socket) -> None:
    """Fork what a script asks for, and wait for it; in the forked process, run it."""
    content, handles, _, _ = socket.recv_fds(link, warm.MAX_REQUEST, warm.MAX_HANDLES)
    argv, env, cwd = json.loads(content)
    if pid := os.fork():
        link.send(str(pid).encode())
        link.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)
    link.close()
    os.dup2(handles[0], 0)
    os.close(handles[0])
    warm.run(warm.Task(argv=argv, env=env, cwd=cwd), handles[1:])
