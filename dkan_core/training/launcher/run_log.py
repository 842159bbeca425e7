"""The log of a run: it captures what the launcher logs, and ends with why the run ended and how to continue it."""

import logging
import math
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any, Self

from dkan_core.errors import redact
from dkan_core.training.state.endings import STOP_CRITERIA
from dkan_core.utils.messages import counted

LOG = "train.log"
# The advice for a model whose tables are fitted after gradient training: on no data set tried did gradients alone reach
# a better validation AP with so many rows.
FITTED = "a larger limit would not help, as all terms are fitted again after training"

logger = logging.getLogger(__name__)


@dataclass
class EndLogger:
    """A context manager that logs how its block, a run, has ended: in order or by an exception.

    Args:
        run: Path or URI of the run.
        model: Folder of the best model.
        checkpoint: The checkpoint that the run resumes from, later the newest one; empty for none.
        options: Options of ``dkan train`` that resume the run.
        is_fitted: Whether the model is fitted after gradient training, so that more training is not worth its time.
    """

    run: str
    model: Path
    checkpoint: str
    options: str
    _: KW_ONLY
    is_fitted: bool = False
    reason: str = ""
    """The stop criterion, one of ``ENDINGS``, which the block sets."""

    has_unsaved_best: bool = False
    """Whether the best model is not in its folder yet; it is in the newest checkpoint, unless that failed as well."""

    history: Sequence[Mapping[str, Any]] = ()
    """The evaluations, for the message about early stopping."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        why = STOP_CRITERIA[self.reason].log if error is None else describe(error)
        if error is None and self.reason == "patience":
            why = describe_patience(self.history)
        where = f"{self.run}/{self.model.name}"
        best = f"best model in {where}" if self.model.exists() else "no model yet"
        if self.has_unsaved_best and self.checkpoint:
            best = f"the best model is not in {where} yet, and resuming saves it there"
        newest = f"newest checkpoint {self.checkpoint}" if self.checkpoint else "no checkpoint"
        logger.info("run ended (%s): %s; %s; %s", why, best, newest, self.next_step())

    def next_step(self) -> str:
        """Return how to continue the run, or to start it again."""
        limit = STOP_CRITERIA[self.reason].option if self.reason else ""
        if limit and self.is_fitted:
            return FITTED
        # A finished run is replaced only with --overwrite.
        again = "start again with --overwrite" if limit else "start again with --resume auto or --overwrite"
        how = f"continue with {self.options}" if self.checkpoint else again
        return how + (f" and a larger {limit}" if limit else "")


def describe_patience(history: Sequence[Mapping[str, Any]]) -> str:
    """Return the message about a run that early stopping ended.

    >>> history = [{"epoch": 1.0, "average_precision": 0.4}, {"epoch": 1.5, "average_precision": 0.3}]
    >>> describe_patience(history)
    'early stopping: the 1 evaluation after epoch 1.00 was no better than its average precision of 0.4000'
    """
    due = [entry for entry in history if entry.get("due", True)]
    best = max(due, key=lambda entry: (entry["average_precision"], -entry.get("validation_loss", math.inf)))
    since = len(due) - 1 - due.index(best)
    verb = "was" if since == 1 else "were"
    later = f"the {counted(since, 'evaluation')} after epoch {best['epoch']:.2f}"
    return f"early stopping: {later} {verb} no better than its average precision of {best['average_precision']:.4f}"


def describe(error: BaseException) -> str:
    """Return in a few words what an exception means for a run.

    >>> describe(SystemExit(143)), describe(ValueError("disk full"))
    ('SIGTERM or SIGHUP', 'error: disk full')
    """
    if isinstance(error, SystemExit):
        return "SIGTERM or SIGHUP" if error.code == 128 + signal.SIGTERM else f"exit code {error.code}"
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    return f"error: {(str(error).splitlines() or [type(error).__name__])[0]}"


class _LogFile(logging.FileHandler):
    """A log file without credentials. A full disk does not add a traceback per line: other messages report it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return redact(super().format(record))

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop the line."""


class _Forward(logging.Handler):
    """Passes records on to the handlers that a logger had before, from the level on that they showed."""

    def __init__(self, package: logging.Logger) -> None:
        shown = package.getEffectiveLevel()
        super().__init__(shown if shown > logging.INFO else logging.NOTSET)
        self._before = logging.Logger(package.name)
        self._before.handlers = package.handlers
        self._before.propagate = package.propagate
        self._before.parent = package.parent

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on; without any handler, Python itself shows warnings."""
        self._before.callHandlers(record)


@contextmanager
def capture_log() -> Iterator[Callable[[Path], None]]:
    """Capture what dkan logs inside the block; call the yielded function with the path of the file to write it to.

    A script that has not set up logging gets the same file, and sees nothing more on its terminal.
    """
    package = logging.getLogger("dkan_core")
    # The file is created once the folder has been checked; what is logged before that is buffered.
    buffer = MemoryHandler(sys.maxsize, flushLevel=sys.maxsize)
    files: list[logging.Handler] = []

    def write_to(path: Path) -> None:
        file = _LogFile(path, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        files.append(file)
        buffer.setTarget(file)
        buffer.flush()
        buffer.capacity = 1

    handlers = package.handlers
    level = package.level
    propagate = package.propagate
    package.handlers = [_Forward(package), buffer]
    package.propagate = False
    package.setLevel(min(package.getEffectiveLevel(), logging.INFO))
    try:
        yield write_to
    finally:
        package.handlers = handlers
        package.propagate = propagate
        package.setLevel(level)
        for handler in (buffer, *files):
            # If the disk is full, the last lines are lost.
            with suppress(OSError):
                handler.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the log of runs, except for warnings."""
    runs = logging.getLogger("dkan_core.training")
    before = runs.level
    runs.setLevel(logging.WARNING)
    try:
        yield
    finally:
        runs.setLevel(before)
