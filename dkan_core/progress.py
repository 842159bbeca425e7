"""A progress bar on a terminal; nothing elsewhere, where log lines speak."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

console = Console(stderr=True)


def on_terminal() -> bool:
    """Tell whether a person watches standard error."""
    return sys.stderr.isatty()


def make_progress(*columns: TextColumn) -> Progress:
    """Return a bar for a terminal, with further columns after the percentage."""
    return Progress(
        TextColumn("{task.description:>9}"),
        BarColumn(bar_width=28),
        TaskProgressColumn(),
        *columns,
        TimeRemainingColumn(),
        console=console,
        disable=not on_terminal(),
    )


@contextmanager
def progress(description: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances a bar."""
    with make_progress(TextColumn("{task.completed:,.0f}/{task.total:,.0f} " + unit)) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)
