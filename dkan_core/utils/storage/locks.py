"""Files locked by a living process, by ``flock``: the lock on an output, and files that are being written.

The kernel releases a lock when its process ends for any reason. So files of killed processes are known to be
unused, without time limits. Locks hold between the processes of one machine.
"""

import fcntl
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dkan_core.errors import OutputError

# Lies in the locked folder, so that it is found by every path to it.
LOCK = ".lock"
# Bytes of the target's name in the name of its temporary file: file systems allow 255.
MAX_KEPT_NAME = 200

# The target's name is in it, to recognize what a killed process has left for this target.
ASIDE = re.compile(r"\.(.*)\.[0-9a-f]{16}\.partial", re.DOTALL)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for this process, creating it if needed; no trace of the lock stays.

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
        with suppress(OSError):  # the disk may have become read-only; a file that nobody has locked does no harm
            path.unlink(missing_ok=True)
        os.close(handle)
        if not existed:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()


def _take(path: Path) -> int:
    """Return the descriptor of a lock file that this process now holds."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _lock(handle, wait=False)
            if _is_there(handle, path):
                with suppress(OSError):  # another user's; others may lock what a killed process leaves
                    os.fchmod(handle, 0o666)
                with suppress(OSError):  # a full disk: the lock then does not name its holder
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
        # The file system has no locks, so processes cannot exclude each other, as on a remote one.
        return


def _is_there(handle: int, path: Path) -> bool:
    """Return whether an opened file still has its name: its last holder may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


@contextmanager
def held_aside(target: Path) -> Iterator[Path]:
    """Yield a new file beside ``target``, to be written and renamed; it is removed if it is still there in the end.

    Its name is random and it is created as a new file, so no link can redirect it, and no two processes
    write to the same one. Files of killed processes are removed.

    Raises:
        OSError: It cannot be made; the error names ``target``.
    """
    remove_abandoned(target.parent, lambda name: name == _kept(target.name))
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
        os.close(handle)  # another process has removed it before it was locked
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


def remove_abandoned(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove the temporary files that killed processes have left in a folder; what cannot be removed does no harm.

    Args:
        folder: Local folder, which may be absent.
        is_ours: Whether the caller may remove those of a target, given as much of its name as they contain.
    """
    names = []
    with suppress(OSError):  # a folder that may be written but not listed
        names = [name for name in os.listdir(folder) if (found := ASIDE.fullmatch(name)) and is_ours(found[1])]
    for name in names:
        with suppress(OSError):  # of another user, or removed meanwhile
            handle = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / name).unlink()
            finally:
                os.close(handle)
