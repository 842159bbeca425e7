"""Fast start and exit of commands: options are made when they are needed, and pyarrow is imported without pandas.

Imported objects are neither scanned by the garbage collector nor taken apart at the end.
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

from dkan_core.errors import OutputError

# New objects after which the collector looks at them. Python's 700 have it look a thousand times at what is imported,
# which takes a fifth of the time to import torch.
COLLECTED_OBJECTS = 50_000


def run_process(command: Callable[[], None]) -> None:
    """Run a command as all that this process does.

    Args:
        command: Raises SystemExit with an exit code when it is done.
    """
    gc.set_threshold(COLLECTED_OBJECTS)
    open_closed_streams()
    sys.stdout = _opened_anew(sys.stdout)
    code: int | None = None

    def leave() -> None:
        # Freeing what torch has loaded, object by object, takes half a second; the system takes it back at once.
        if code is not None:
            logging.shutdown()
            sys.stdout.flush()
            # A terminal that was closed takes no messages, and the code says how the command ended.
            with suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    # What is registered first comes last: threads have ended by then, and all other exit handlers have run.
    atexit.register(leave)
    try:
        command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else None if end.code else 0
        raise


def open_closed_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, on the null device.

    A file that is opened later would take the number of one, and get what is meant for it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            # The lowest number that is free: this one.
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


class _StandardOutput(io.FileIO):
    """Standard output, whoever writes there: what it does not take is one message and an exit code."""

    def write(self, content: Any) -> int:
        """Write bytes; those that cannot be written are lost, with all that comes after them."""
        try:
            return super().write(content)
        except BrokenPipeError:  # the reader has gone, which is no failure to write
            raise
        except OSError as error:
            # What is still in buffers is written at the end once more.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            raise OutputError(f"standard output: cannot be written ({error.strerror})") from error


def _opened_anew(stdout: Any) -> io.TextIOWrapper:
    """Return standard output as it was opened, but for failures, and for characters that its encoding lacks."""
    return io.TextIOWrapper(
        io.BufferedWriter(_StandardOutput(stdout.fileno(), "w", closefd=False)),
        encoding=stdout.encoding,
        errors="backslashreplace",
        line_buffering=stdout.line_buffering or stdout.write_through,
    )


# Of what pydantic calls the fault of a value, which typer shows as it is and without the value.
EXPECTED = {"int_parsing": "an integer", "int_from_float": "an integer", "float_parsing": "a number"}

# Of a context's ``meta``: whether advanced options are shown.
WHOLE_HELP = "dkan.whole_help"


def show_whole_help(context: Any, wanted: bool) -> None:
    """Show a command's help with its advanced options, and end, where that is asked for."""
    if wanted:
        context.meta[WHOLE_HELP] = True
        typer.echo(context.get_help(), color=context.color)
        raise typer.Exit


class LazyCommand(TyperCommand):
    """A command that is known by its help alone until its options are needed; the list of commands needs none.

    Args:
        make: Makes the command with its options.
        advanced: Returns the names of the options that its help leaves out, but for ``--help-all``.
        known: What is known before.
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
        """Leave out what ``__init__`` sets: there are none before they are needed."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; completion and the reference know every option."""
        left_out = frozenset() if ctx.meta.get(WHOLE_HELP) else self._advanced()
        options = [option for option in self.params if option.name in left_out]
        try:
            for option in options:
                option.hidden = True
            super().format_help(ctx, formatter)
        finally:
            for option in options:
                option.hidden = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; the message about a value of another type shows it."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            faults: list[Any] = getattr(error.__cause__, "errors", list)()
            if faults and faults[0]["type"] in EXPECTED:
                error.message = f"must be {EXPECTED[faults[0]['type']]}, got {faults[0]['input']!r}"
            error.message = error.message.removeprefix("Value error, ")
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        return self.whole.invoke(ctx)


def import_pyarrow_without_pandas() -> None:
    """Import pyarrow so that it does not import pandas, which takes two to four times as long as pyarrow itself.

    Its first array looks for pandas, to know a Series when it meets one; no command has any. Whoever else imports
    pandas gets it.

    Its allocator is told to keep freed memory for seconds: the next row group needs as much again, and pages that come
    from the kernel again are a fifth of a preparation's CPU time.
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
    """Has Python find no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raise what an import raises where there is no pandas; leave other modules to the next finder."""
        if name == "pandas":
            raise ModuleNotFoundError("not looked for", name=name)
