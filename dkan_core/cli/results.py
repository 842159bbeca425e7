"""What a command leaves on the terminal: its result, or one message and an exit code."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import typer


@contextmanager
def result_printer(json_file: str | None) -> Iterator[Callable[[Any], None]]:
    """Yield a function that prints a result and, where a file is named, writes it there."""
    from dkan_core.utils.storage.staging import staged_file

    with staged_file(json_file) if json_file else nullcontext() as aside:

        def show(result: Any) -> None:
            typer.echo(result)
            if aside:
                aside.write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")

        yield show


def fail(message: object, code: int) -> NoReturn:
    """End the process with a message on stderr."""
    # What was printed before comes before, also where both streams go to one file.
    sys.stdout.flush()
    sys.stderr.write(f"error: {message}\n")
    sys.exit(code)
