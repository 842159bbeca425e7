"""Copies of whole files from and to remote file systems."""

import sys
from pathlib import Path
from typing import Any

from dkan_core.utils.retry import RetryPolicy, call_with_retries
from dkan_core.utils.storage.time_limits import time_limit

# Clients of buckets repeat requests, but s3fs does not repeat the reading of an answer where a file is read in parts,
# as those above 50 MB are: one lost connection would end a command that copies many.
RETRIES = RetryPolicy(first_pause=0.5, attempts=4)


def get_file(fs: Any, path: str, target: Path) -> None:
    """Copy a file of a remote file system to a local one; what the client raises is raised."""
    call_with_retries(lambda: fs.get_file(path, str(target)), RETRIES, _is_broken_off, name=f"reading {path}")


def cat_file(fs: Any, path: str) -> bytes:
    """Return the content of a file of a remote file system; what the client raises is raised."""
    content: bytes = call_with_retries(lambda: fs.cat_file(path), RETRIES, _is_broken_off, name=f"reading {path}")
    return content


def put_file(fs: Any, file: Path, path: str) -> None:
    """Copy a local file to a remote file system.

    Raises:
        TimeoutError: It takes longer than a minute and four seconds per megabyte.
    """
    fs.put_file(str(file), path, **time_limit(fs, file.stat().st_size))


def _is_broken_off(error: BaseException) -> bool:
    client = sys.modules.get("aiohttp")  # of the extras s3 and gcs
    return client is not None and isinstance(error, client.ClientPayloadError)
