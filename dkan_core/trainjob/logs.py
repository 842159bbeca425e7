"""Streams the first node's log by line; each line appears once, even if the connection breaks."""

import logging
import threading
from collections import deque
from datetime import UTC, datetime

from dkan_core.errors import ClusterUnreachableError, ConfigError
from dkan_core.trainjob.cluster import Cluster, index_of

# Lines that are repeated with a failure: enough for a traceback.
LINES_KEPT = 40
POLL_SECONDS = 2.0
DRAIN_SECONDS = 5.0
# Seconds of the log to request again after a lost connection, as clocks differ.
OVERLAP_SECONDS = 60

logger = logging.getLogger(__name__)


class LogFollower:
    """Follows the log of a job's first node in a thread, over lost connections and restarts of the container."""

    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster, self._job = cluster, job
        self._kept: deque[str] = deque(maxlen=LINES_KEPT)
        self._pod, self._newest = "", ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> list[str]:
        """Read what is left, and return the last lines."""
        self._ended.set()
        self._thread.join(DRAIN_SECONDS)
        return list(self._kept)

    def _run(self) -> None:
        ended = False
        while not ended:
            # Read the log once more after the end, for lines that came since.
            ended = self._ended.is_set()
            try:
                self._read()
            except ClusterUnreachableError as error:
                logger.warning("%s; asking again", error)
            except ConfigError as error:
                logger.warning("no logs are shown: %s", error)
                return
            self._ended.wait(POLL_SECONDS)

    def _read(self) -> None:
        first = next((pod for pod in self._cluster.pods(self._job) if index_of(pod) == 0), None)
        if first is None:
            return
        name = first.metadata.name
        if name != self._pod:
            self._pod, self._newest = name, ""
        rest = b""
        for piece in self._cluster.log(name, seconds_since(self._newest)):
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._show(line)
        self._show(rest)

    def _show(self, line: bytes) -> None:
        """Show a line unless it was shown before; a line that a broken connection cut is read again."""
        stamp, blank, text = line.decode(errors="replace").partition(" ")
        if not is_time(stamp):  # a message of the node itself about the log
            text = line.decode(errors="replace").strip()
        elif not blank or stamp <= self._newest:
            return
        else:
            self._newest = stamp
        if not text:
            return
        self._kept.append(text)
        logger.info("node 0 | %s", text)


def is_time(text: str) -> bool:
    """Return whether a text is a time as Kubernetes writes it.

    >>> is_time("2026-11-21T20:00:00.123456789Z"), is_time("failed")
    (True, False)
    """
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return "T" in text


def seconds_since(stamp: str) -> int | None:
    """Return how far back to ask for a log whose newest line has this time; None for all of it."""
    if not stamp:
        return None
    age = datetime.now(UTC) - datetime.fromisoformat(stamp)
    return max(1, int(age.total_seconds()) + OVERLAP_SECONDS)
