"""Temporary folders of a process; those of killed processes are removed by later ones.

A lock shows that a folder's process is alive: the kernel releases it however the process ends.
"""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dkan_core.errors import OutputError
from dkan_core.utils.storage.failures import failure_inside

# Names the machine, because machines that share a disk may not see each other's locks. Host names have no underscore.
PREFIX = f"dkan-{socket.gethostname()}_"
LOCK, FILES = "lock", "files"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in ``TMPDIR``; it is removed in the end, or after a kill by the next process that needs one.

    Raises:
        OutputError: It cannot be made.
    """
    try:
        parent = Path(tempfile.gettempdir())
    except OSError as error:  # none of the folders that Python tries is usable
        raise OutputError(f"TMPDIR: no folder for temporary files can be written ({error.strerror})") from error
    _remove_stale(parent)
    try:
        folder, handle = _create()
    except OSError as error:
        raise failure_inside(parent, parent, error) from error
    try:
        yield folder / FILES
    finally:
        _remove(folder, handle)


def _create() -> tuple[Path, int]:
    """Return a new folder, and the descriptor of its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        try:
            # Without locks in the file system no folder is ever removed as stale, as it cannot be locked.
            is_ours = _lock(handle) is not False
            (folder / FILES).mkdir()
            (folder / LOCK).stat()
        except FileNotFoundError:
            is_ours = False
        except OSError:
            _remove(folder, handle)
            raise
        if is_ours:
            return folder, handle
        _remove(folder, handle)  # another process has removed it as stale before it was locked


def _lock(handle: int) -> bool | None:
    """Return whether a file is locked now; None where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove(folder: Path, handle: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(handle)
    # On NFS an open file stays under another name, so errors are ignored.
    shutil.rmtree(folder, ignore_errors=True)


def _remove_stale(parent: Path) -> None:
    """Remove this user's folders that no process holds."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, of another user, or removed meanwhile
            if folder.lstat().st_uid != os.getuid():
                continue
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            if _lock(handle):
                _remove(folder, handle)
            else:
                os.close(handle)
