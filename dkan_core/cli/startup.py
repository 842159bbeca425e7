"""Fast start and exit of commands: options are built when they are needed, and pyarrow does not import pandas.

The garbage collector does not scan imported objects, and they are not freed at exit.
"""

import atexit
import functools
import gc
import io
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.abc import MetaPathFinder
from typing import Any

import typer
from typer.core import TyperCommand

from dkan_core.cli.usage_errors import Command
from dkan_core.errors import OutputError
from dkan_core.utils.signals import disarm_signals

# New objects between two runs of the collector. Python's default of 700 makes it scan imported objects a thousand
# times, which takes a fifth of the time to import torch.
COLLECTED_OBJECTS = 50_000


def run_process(command: Callable[[], None]) -> None:
    """Run a command as the only work of this process.

    Args:
        command: Raises SystemExit with an exit code when it is done.
    """
    gc.set_threshold(COLLECTED_OBJECTS)
    open_closed_streams()
    sys.stdout = _opened_anew(sys.stdout)
    code: int | None = None

    def leave() -> None:
        # Freeing torch's objects one by one takes half a second; the system frees the whole process at once.
        if code is not None:
            logging.shutdown()
            sys.stdout.flush()
            # A closed terminal takes no messages; the exit code says how the command ended.
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    # The first function to be registered runs last, after threads have ended and all other exit handlers have run.
    atexit.register(leave)
    try:
        command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else None if end.code else 0
        disarm_signals()
        raise


def open_closed_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, on the null device.

    Otherwise a file opened later would get the number of a closed stream, and the output meant for it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            # Gets the lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


class _StandardOutput(io.FileIO):
    """Standard output whose write failures become one message and an exit code, for all code that writes."""

    def write(self, content: Any) -> int:
        """Write bytes; after a failure, they and all later ones are lost."""
        try:
            return super().write(content)
        except BrokenPipeError:  # the reader has closed the pipe, which is no failure
            raise
        except OSError as error:
            # Buffers are flushed once more at exit, so the descriptor is redirected.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            raise OutputError(f"standard output: cannot be written ({error.strerror})") from error


def _opened_anew(stdout: Any) -> io.TextIOWrapper:
    """Return standard output with its own settings, except for failures and characters that its encoding lacks."""
    return io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(stdout.fileno(), "w", closefd=False)),
        encoding=stdout.encoding,
        errors="backslashreplace",
        line_buffering=stdout.line_buffering or stdout.write_through,
    )


# Key of a context's ``meta``: whether advanced options are shown.
WHOLE_HELP = "dkan.whole_help"


def show_whole_help(context: Any, wanted: bool) -> None:
    """If wanted, show a command's help with its advanced options, and exit."""
    if wanted:
        context.meta[WHOLE_HELP] = True
        typer.echo(context.get_help(), color=context.color)
        raise typer.Exit


class LazyCommand(Command):
    """A command with only its help until its options are needed; the list of commands does not need them.

    Args:
        make: Makes the command with its options.
        advanced: Returns the names of the options that its help leaves out, but for ``--help-all``.
        known: Properties known before.
    """

    def __init__(
        self, *, make: Callable[[], TyperCommand], advanced: Callable[[], frozenset[str]], **known: Any
    ) -> None:
        self._make, self._advanced = make, advanced
        super().__init__(**known)

    @functools.cached_property
    def whole(self) -> TyperCommand:
        """The command with its options."""
        return self._make()

    @property
    def params(self) -> list[Any]:
        """Arguments and options."""
        return self.whole.params

    @params.setter
    def params(self, _: list[Any]) -> None:
        """Ignore the assignment in ``__init__``, as options are built when they are needed."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without advanced options; completion and the reference see every option."""
        left_out = frozenset() if ctx.meta.get(WHOLE_HELP) else self._advanced()
        options = [option for option in self.params if option.name in left_out]
        try:
            for option in options:
                option.hidden = True
            super().format_help(ctx, formatter)
        finally:
            for option in options:
                option.hidden = False

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        return self.whole.invoke(ctx)


def import_pyarrow_without_pandas() -> None:
    """Import pyarrow so that it does not import pandas, which takes two to four times as long as pyarrow itself.

    Creating its first array imports pandas, to recognize a Series, which no command uses. Other imports of pandas
    still work.

    Its allocator is set to keep freed memory for seconds: the next row group needs as much again, and getting pages
    from the kernel again would take a fifth of a preparation's CPU time.
    """
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", "5000")
    if "pandas" in sys.modules:
        return
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _WithoutPandas(MetaPathFinder):
    """Hides pandas from Python's import."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raise the error of a missing pandas; leave other modules to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError("not looked for", name=name)
