"""Files that a living process holds, told by ``flock``: the lock on an output, and files that are being written.

The kernel lets go of a lock when its process ends, however that ends. So what a killed process has left is known to be
unused, and nothing needs a time limit. Locks hold between the processes of one machine.
"""

import fcntl
import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dkan_core.errors import OutputError

# In the folder that is held, so that it is seen on every path that leads there.
LOCK = ".lock"
# Bytes of a file's name that the name of its aside repeats: file systems allow 255.
MAX_KEPT_NAME = 200

# The name of the target is in it, so that what a killed process has left is known by it.
ASIDE = re.compile(r"\.(.*)\.[0-9a-f]{16}\.partial", re.DOTALL)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder, which is made where there is none, for this process alone; nothing of the lock stays.

    Raises:
        OutputError: Another process holds it; the message says which.
        OSError: The folder cannot be written.
    """
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    try:
        handle = _take(path)
    except BlockingIOError as error:
        raise OutputError(f"{folder}: {error}; wait for it to end, or choose another folder") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)
        if not existed:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _take(path: Path) -> int:
    """Return the descriptor of a lock file that is now ours."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _lock(handle, wait=False)
            if _is_there(handle, path):
                with suppress(OSError):  # another user's; what a killed process leaves is not to be in the way
                    os.fchmod(handle, 0o666)
                with suppress(OSError):  # a full disk: who holds it is then not said
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                return handle
        except BlockingIOError:
            holder = os.pread(handle, 200, 0).decode(errors="replace") or "another process"
            os.close(handle)
            raise BlockingIOError(f"{holder} is writing there") from None
        os.close(handle)


def _lock(handle: int, *, wait: bool) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:
        # A file system without locks: processes cannot be told apart there, as on a remote one.
        return


def _is_there(handle: int, path: Path) -> bool:
    """Return whether the file that was opened is still the one of that name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def held_aside(target: Path) -> Iterator[Path]:
    """Yield a new file beside ``target``, to be written and renamed; it is removed if it is still there in the end.

    Its name cannot be guessed and it is never a link, so that it cannot be written elsewhere, and two processes
    never write to the same one. Those that killed processes have left are removed.

    Raises:
        OSError: It cannot be made; the error names ``target``.
    """
    _remove_stale(target)
    while True:
        aside = target.with_name(f".{_kept(target.name)}.{secrets.token_hex(8)}.partial")
        try:
            handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            error.filename = str(target)
            raise
        _lock(handle, wait=True)
        if _is_there(handle, aside):
            break
        os.close(handle)  # taken for a dead process's before it was locked
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)
        os.close(handle)


def is_aside(name: str, target: str) -> bool:
    """Return whether a file of that name is one that ``held_aside`` makes for ``target``.

    >>> is_aside(".a.json.0123456789abcdef.partial", "a.json"), is_aside(".a.json.partial", "a.json")
    (True, False)
    """
    found = ASIDE.fullmatch(name)
    return found is not None and found[1] == _kept(target)


def _kept(name: str) -> str:
    return os.fsencode(name)[:MAX_KEPT_NAME].decode(errors="ignore")


def _remove_stale(target: Path) -> None:
    """Remove what killed processes have left beside ``target``."""
    names = []
    with suppress(OSError):  # a folder that may be written but not listed
        names = [name for name in os.listdir(target.parent) if is_aside(name, target.name)]
    for name in names:
        with suppress(OSError):  # somebody else's, or gone by now
            handle = os.open(target.parent / name, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (target.parent / name).unlink()
            finally:
                os.close(handle)
