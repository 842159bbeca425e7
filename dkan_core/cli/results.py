"""What a command leaves on the terminal: its result, or one message and an exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn, Protocol

import typer

# What --json is given for standard output.
STDOUT = "-"


class ShowResult(Protocol):
    """Shows a result: as JSON its ``facts``, for people its ``text``, where it has one."""

    def __call__(self, facts: dict[str, Any], text: object = None) -> None: ...


@contextmanager
def result_printer(json_file: str | None, *, overwrite: bool) -> Iterator[ShowResult]:
    """Yield a function that prints a result for people, or as JSON where ``--json`` asks for it.

    Args:
        json_file: Path or URI of a file, "-" for standard output, or None.
        overwrite: Whether an earlier file may be replaced.

    Raises:
        OutputError: The file cannot be written, or must not be replaced; said before there is a result.
    """
    from dkan_core.utils.storage.files import json_text
    from dkan_core.utils.storage.outputs import check_file_free, check_suffix
    from dkan_core.utils.storage.staging import staged_file

    file = None if json_file in (None, STDOUT) else json_file
    if file:
        check_suffix(file, (".json",), "results are written as JSON")
        check_file_free(file, overwrite=overwrite, beginning=b"{")
    with staged_file(file) if file else nullcontext() as aside:

        def show(facts: dict[str, Any], text: object = None) -> None:
            shown = json_text(facts).rstrip("\n") if json_file == STDOUT else text
            if shown is not None:
                _print(shown)
            if aside:
                aside.write_text(json_text(facts), encoding="utf-8")

        yield show


def _print(text: object) -> None:
    from dkan_core.errors import OutputError

    try:
        typer.echo(text)
    except BrokenPipeError:  # nobody reads on, which is no failure to write
        raise
    except OSError as error:
        raise OutputError(f"standard output: cannot be written ({error.strerror})") from error


def fail(message: object, code: int) -> NoReturn:
    """End the process with a message on stderr."""
    # What was printed before comes before, also where both streams go to one file.
    sys.stdout.flush()
    sys.stderr.write(f"error: {message}\n")
    sys.exit(code)
