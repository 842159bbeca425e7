"""A progress bar on a terminal, plain lines in a log."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

# Seconds between lines of a log: enough to see that a pod makes progress, and some hundred lines for an hour of work.
LOG_SECONDS = 30
# Columns of a terminal with room for further facts.
WIDE = 110


class _Terminal:
    """Standard error that ignores failures to write to a closed terminal."""

    def write(self, text: str) -> None:
        """Write a text."""
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        """Flush what was written."""
        with suppress(OSError):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


console = Console(file=cast(IO[str], _Terminal()))
logger = logging.getLogger(__name__)

_wanted = True


def on_terminal() -> bool:
    """Return whether standard error is a terminal."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def show_progress(wanted: bool) -> None:
    """Show bars, or none, from here on."""
    global _wanted
    _wanted = wanted


def show_start() -> None:
    """Show at once on a terminal that a command has begun; the next output replaces it."""
    if _wanted and on_terminal():
        sys.stderr.write("starting\r")
        sys.stderr.flush()


def is_wide() -> bool:
    """Return whether a line takes more than the 80 columns of a usual terminal."""
    return console.width >= WIDE


def make_progress(*columns: ProgressColumn) -> Progress:
    """Return a bar for a terminal, with further columns after the percentage."""
    return Progress(
        # No markup, because a label in the text may have brackets.
        TextColumn("{task.description:>9}", markup=False),
        BarColumn(bar_width=28),
        TaskProgressColumn(),
        *columns,
        console=console,
        disable=not (_wanted and on_terminal()),
    )


@contextmanager
def progress(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar on a terminal, and writes a line now and then to a log.

    At the end of a block without an error, the bar is full, even if some units were not needed.

    Args:
        description: What is done, in a word.
        total: How many units there are.
        unit: What they are called.
    """
    # Only the main thread shows a bar, as a terminal shows one at a time.
    if not on_terminal() or threading.current_thread() is not threading.main_thread():
        yield from _log_lines(description, total, unit)
        return
    # The bar counts in floats, which are shown as whole numbers.
    counts = TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit)
    with make_progress(counts, TimeRemainingColumn(elapsed_when_finished=True)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)
        bar.update(task, completed=total)


def _log_lines(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    done, spoken = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, spoken
        done += count
        if done == total or time.monotonic() - spoken >= LOG_SECONDS:
            spoken = time.monotonic()
            logger.info("%s %s of %s %s", description, f"{done:,}", f"{total:,}", unit)

    yield advance
    if done < total:
        advance(total - done)
