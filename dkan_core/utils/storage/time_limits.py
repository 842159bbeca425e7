"""Time limits for calls to remote file systems: a server that accepts connections may never answer.

Time-outs of clients are for one request: with their retries they add up to many minutes, and an
upload that the server does not read has none.
"""

from typing import Any

# Longer than clients retry requests that a busy server refuses.
ANSWER_SECONDS = 60.0

# A transfer that is slower than this is taken for a lost connection.
SLOWEST_BYTES_PER_SECOND = 250e3


def time_limit(fs: Any, size: int = 0) -> dict[str, float]:
    """Return the argument that ends a call of a file system in time; it raises TimeoutError then.

    Not for ``isfile``, ``isdir`` and ``size``, which do not accept it on every file system.

    Args:
        fs: The file system; for one without a network, the result is empty, as it has no such argument.
        size: Bytes that are sent.

    >>> import fsspec
    >>> time_limit(fsspec.filesystem("http"), size=30_000_000), time_limit(fsspec.filesystem("memory"))
    ({'timeout': 180.0}, {})
    """
    return {"timeout": ANSWER_SECONDS + size / SLOWEST_BYTES_PER_SECOND} if fs.async_impl else {}
