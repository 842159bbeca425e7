"""Folders for what a process needs only while it runs; those that killed processes have left are removed.

A lock tells that a folder's process is alive: the kernel lets go of it however the process ends.
"""

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dkan_core.utils.storage.failures import failure_inside

# Of this machine: where several share a disk, their locks may not be seen.
PREFIX = f"dkan-{socket.gethostname()}-"
LOCK, FILES = "lock", "files"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder in ``TMPDIR``; it is removed in the end, or after a kill by the next process that needs one.

    Raises:
        OutputError: It cannot be made.
    """
    _remove_stale()
    parent = Path(tempfile.gettempdir())
    try:
        folder, handle = _create()
    except OSError as error:
        raise failure_inside(parent, parent, error) from error
    try:
        yield folder / FILES
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _create() -> tuple[Path, int]:
    """Return a new folder, and the descriptor of its lock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        with suppress(OSError):  # a file system without locks: nothing is removed there
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            (folder / FILES).mkdir()
            return folder, handle
        except FileNotFoundError:  # taken for a dead process's before it was locked
            os.close(handle)
        except OSError:
            os.close(handle)
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _remove_stale() -> None:
    """Remove this user's folders that no process holds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # in use, somebody else's, or gone by now
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.lstat().st_uid == os.getuid():
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
