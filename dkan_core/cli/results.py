"""Output of a command on the terminal: its result, or one message and an exit code."""

import functools
import logging
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn, Protocol

import typer

import dkan_core

logger = logging.getLogger(__name__)

# Argument of --json for standard output.
STDOUT = "-"
# The first key of each result, by which a result file is recognized.
VERSION = "dkan_version"


class ShowResult(Protocol):
    """Shows a result: its ``facts`` as JSON, or for people its ``text``, if any."""

    def __call__(self, facts: dict[str, Any], text: object = None) -> None: ...


@contextmanager
def result_printer(json_file: str | None, *, out: str | None = None, overwrite: bool) -> Iterator[ShowResult]:
    """Yield a function that prints a result for people, or as JSON where ``--json`` asks for it.

    Args:
        json_file: Path or URI of a file, "-" for standard output, or None.
        out: The command's other output, if any; the JSON file must not lie in it.
        overwrite: Whether an earlier file may be replaced.

    Raises:
        OutputError: The file cannot be written, or must not be replaced; said before there is a result.
    """
    from dkan_core.errors import OutputError
    from dkan_core.utils.storage.files import json_text
    from dkan_core.utils.storage.outputs import check_file_free, check_suffix
    from dkan_core.utils.storage.paths import lies_in
    from dkan_core.utils.storage.remote import check_file_writable
    from dkan_core.utils.storage.staging import staged_file

    def as_json(facts: dict[str, Any]) -> str:
        return json_text({VERSION: dkan_core.__version__, **facts})

    staged: AbstractContextManager[Path | None] = nullcontext()
    if json_file is not None and json_file != STDOUT:
        check_suffix(json_file, (".json",), "results are written as JSON")
        if out and lies_in(json_file, out):
            raise OutputError(f"--json {json_file} lies in {out}, where the command writes; name a file elsewhere")
        beginning = f'{{\n  "{VERSION}": "'.encode()
        check = functools.partial(check_file_free, json_file, overwrite=overwrite, beginning=beginning)
        staged = staged_file(json_file, check=check)
    with staged as aside:
        if json_file is not None and aside is not None:
            check_file_writable(json_file)

        def show(facts: dict[str, Any], text: object = None) -> None:
            shown = as_json(facts).rstrip("\n") if json_file == STDOUT else text
            if shown is not None:
                typer.echo(shown)
            if aside:
                aside.write_text(as_json(facts), encoding="utf-8")

        yield show


def suggest(*words: str) -> None:
    """Show the next command to a person at a terminal, once if torchrun started this process and others."""
    from dkan_core.utils.progress import on_terminal

    if on_terminal() and os.environ.get("RANK", "0") == "0":
        logger.info("next: %s", shlex.join(words))


def fail(message: object, code: int) -> NoReturn:
    """End the process with a message on stderr."""
    # Keeps the order of messages if both streams go to one file.
    sys.stdout.flush()
    sys.stderr.write(f"error: {message}\n")
    sys.exit(code)
