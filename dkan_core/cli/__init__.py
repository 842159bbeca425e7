"""The ``dkan`` command."""

import logging
import signal
import sys
from typing import Annotated

import typer

import dkan_core
from dkan_core.cli.planning import plan, sync, tune_lr
from dkan_core.cli.registry import register
from dkan_core.cli.results import fail
from dkan_core.cli.workflow import app, drift, evaluate, explain, export, predict, prepare, train
from dkan_core.errors import DkanError, redact
from dkan_core.utils.progress import console, on_terminal
from dkan_core.utils.signals import exit_once

__all__ = [
    "app",
    "drift",
    "evaluate",
    "explain",
    "export",
    "main",
    "plan",
    "predict",
    "prepare",
    "register",
    "sync",
    "train",
    "tune_lr",
]


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dkan {dkan_core.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Set up what all commands share."""
    _set_up_logging()


def _set_up_logging() -> None:
    """Show what dkan says, and only warnings of the libraries under it."""
    if on_terminal():
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(console=console, show_path=False, show_level=False, show_time=False)
        logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s")
    else:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    for shown in logging.getLogger().handlers:
        shown.addFilter(_hide_credentials)
    logging.getLogger("dkan_core").setLevel(logging.INFO)


def _hide_credentials(record: logging.LogRecord) -> bool:
    # Once, over the whole text: a URI may come from the message or from any argument.
    record.msg, record.args = redact(record.getMessage()), ()
    return True


def main() -> None:
    """Run the command; an error of ours is one message and its exit code."""
    signal.signal(signal.SIGTERM, exit_once)
    try:
        app()
    except DkanError as error:
        fail(error, error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
