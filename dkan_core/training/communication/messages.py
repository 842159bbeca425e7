"""Messages between a run's processes: JSON lines over socket pairs.

A socket shows at once that the process at its other end has died, whatever killed it.
"""

import contextlib
import json
import socket
from typing import Any

from dkan_core import errors
from dkan_core.errors import DkanError

Message = dict[str, Any]


class PeerLostError(Exception):
    """The process at the other end is gone."""


class Channel:
    """One end of a two-way channel."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._buffer = b""
        self.lost = False
        """Whether the other end was found closed."""

    def fileno(self) -> int:
        """Return the file descriptor, so that a selector can wait for messages."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end."""
        self._socket.close()

    def send(self, **message: Any) -> None:
        """Send a message.

        Raises:
            PeerLostError: The other end is closed.
        """
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise PeerLostError from error

    def receive(self) -> Message:
        """Wait for the next message.

        Raises:
            PeerLostError: The other end is closed and nothing is left to read.
        """
        while b"\n" not in self._buffer:
            self._fill()
        line, self._buffer = self._buffer.split(b"\n", 1)
        message: Message = json.loads(line)
        return message

    def waiting(self) -> list[Message]:
        """Return the messages that have arrived, without waiting; a closed end shows as ``lost``."""
        # Messages that arrived before the other end was closed are still to be read.
        with contextlib.suppress(BlockingIOError, PeerLostError):
            while not self.lost:
                self._fill(socket.MSG_DONTWAIT)
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def send_error(self, error: DkanError) -> None:
        """Send an error that would recur in another process, for ``error_of`` at the other end."""
        self.send(kind="error", error=type(error).__name__, text=str(error))

    @property
    def closed(self) -> bool:
        """Whether this end was closed."""
        return self._socket.fileno() < 0

    def _fill(self, flags: int = 0) -> None:
        try:
            data = self._socket.recv(1 << 16, flags)
        except BlockingIOError:
            raise
        except OSError:
            data = b""
        if not data:
            self.lost = True
            raise PeerLostError
        self._buffer += data


def error_of(message: Message) -> DkanError | None:
    """Return the error in a message; None if it holds no error."""
    if message["kind"] != "error":
        return None
    error: DkanError = getattr(errors, message["error"])(message["text"])
    return error


def with_tuples(value: Any) -> Any:
    """Return what was read from JSON with tuples instead of lists, as our dataclasses have them.

    >>> with_tuples({"hidden": [64, 32], "groups": {"rates": [[0, 9, 0.5]]}})
    {'hidden': (64, 32), 'groups': {'rates': ((0, 9, 0.5),)}}
    """
    if isinstance(value, dict):
        return {name: with_tuples(each) for name, each in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a channel, to be wrapped in ``Channel`` by the processes that own them."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def inherited(handle: int) -> Channel:
    """Return the channel of an inherited file descriptor."""
    return Channel(socket.socket(fileno=handle))
