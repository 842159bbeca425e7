"""Facts about the current request, for its line in the log and for the metrics."""

import logging
import time
from contextvars import ContextVar
from dataclasses import dataclass, field

from dkan_core.serving.metrics import REQUESTS, ROWS, SECONDS

logger = logging.getLogger(__name__)


@dataclass
class RequestFacts:
    """A request, from its first byte to the last of its answer."""

    protocol: str
    """REST or gRPC."""

    what: str
    """Method and path."""

    rows: int = 0
    error: str = ""
    """Why it was refused; empty if it was not."""

    is_gone: bool = False
    """Whether the client hung up and no longer waits for the answer."""

    start: float = field(default_factory=time.perf_counter)

    def finish(self, model: str, code: int | str) -> None:
        """Count the request, and log it in a line with the code that was answered."""
        seconds = time.perf_counter() - self.start
        REQUESTS.labels(model, self.protocol, str(code)).inc()
        SECONDS.labels(model, self.protocol).observe(seconds)
        if self.rows:
            ROWS.labels(model).inc(self.rows)
        # repr, so that a client's text cannot begin a new line in the log.
        error = f" error={self.error!r}" if self.error else ""
        level = logging.WARNING if self.error else logging.INFO
        logger.log(level, "request %s status=%s rows=%d ms=%.2f%s", self.what, code, self.rows, 1000 * seconds, error)


_current: ContextVar[RequestFacts] = ContextVar("request")


def begin_request(protocol: str, what: str) -> RequestFacts:
    """Return the facts of a request that begins now, in this task."""
    facts = RequestFacts(protocol, what)
    _current.set(facts)
    return facts


def current_request() -> RequestFacts:
    """Return the facts of the request of this task."""
    return _current.get()
