"""File failures as errors that name the file, with exit code 2 and one message."""

import errno
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from dkan_core.errors import DkanError, OutputError, UnreadableError
from dkan_core.utils.storage.paths import is_remote

# Seconds until a notice: clients retry silently for many minutes when a server does not answer.
NOTICE_SECONDS = 30.0

_may_tell = threading.Lock()

logger = logging.getLogger(__name__)


@contextmanager
def readable(uri: str | Path) -> Iterator[None]:
    """Turn a failure to reach ``uri`` into an UnreadableError; log a notice if a remote one takes long."""
    try:
        with _notices(str(uri)) if is_remote(uri) else nullcontext():
            yield
    except DkanError:
        raise
    except Exception as error:
        # Remote file systems raise errors of their client libraries, which need not be OSError. Arrow raises
        # UnicodeEncodeError for a name that is not UTF-8.
        if not is_remote(uri) and not isinstance(error, OSError | UnicodeEncodeError):
            raise
        raise UnreadableError(f"{uri}: cannot be read ({_reason(uri, error)})") from error


@contextmanager
def writable(uri: str | Path) -> Iterator[None]:
    """Turn a failure to write to ``uri`` into an OutputError."""
    try:
        yield
    except DkanError:
        raise
    except Exception as error:
        raise OutputError(f"{uri}: cannot be written ({_reason(uri, error)})") from error


@contextmanager
def _notices(uri: str) -> Iterator[None]:
    """Log regularly that ``uri`` is waited for; if the process waits for several, only one of them is logged."""
    done, start = threading.Event(), time.monotonic()

    def tell() -> None:
        while not done.wait(NOTICE_SECONDS):
            if _may_tell.acquire(blocking=False):
                logger.info("still waiting for %s, for %.0f s", uri, time.monotonic() - start)
                done.wait(NOTICE_SECONDS / 2)
                _may_tell.release()

    threading.Thread(target=tell, name="dkan-notices", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _reason(uri: str | Path, error: Exception) -> str:
    if not str(error):
        return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    # Servers answer a request for the head of an object without a word more than "Forbidden".
    is_refused = isinstance(error, PermissionError) and is_remote(uri)
    return f"{error}; check the credentials and what they allow" if is_refused else str(error)


# Limits of the process, by errno, with the remedy: no folder is the cause of these.
LIMITS = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
    errno.EAGAIN: "raise the limit on processes and threads (ulimit -u; of a container, its pids limit)",
    errno.ENOMEM: "give more memory (ulimit -v; of a container, its memory limit)",
}


def is_disk_full(error: BaseException | None) -> bool:
    """Return whether an error says that a disk, or a user's quota of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def output_error(path: str | Path, error: OSError) -> OutputError:
    """Describe why ``path`` could not be written."""
    # In plain words, as it is the most frequent failure, and only free space helps.
    if is_disk_full(error):
        return OutputError(f"{path}: the disk is full; nothing half-written was left")
    return OutputError(f"{path}: cannot be written ({error.strerror or error})")


def failure_inside(out: str | Path, folder: Path, error: OSError) -> DkanError:
    """Describe an error in a block that writes an output, as a failure of the output if it is one.

    Limits of the process are not caused by a file, and a file that the error names may lie in another folder.

    Args:
        out: Where the output goes, for messages.
        folder: The local folder that the block writes to.
        error: What was raised in it.
    """
    if limit := LIMITS.get(error.errno or 0):
        return DkanError(f"{error.strerror}: {limit}")
    if not isinstance(error.filename, str):
        return output_error(out, error)
    named, folder = Path(error.filename).absolute(), folder.absolute()
    # A parent folder counts as the output, too, in case that it could not be created.
    if named.is_relative_to(folder) or folder.is_relative_to(named):
        return output_error(out, error)
    return UnreadableError(f"{error.filename}: cannot be read ({error.strerror})")
