"""The ``dkan`` command."""

import os
import signal
import sys
from typing import Annotated

import typer

import dkan_core
from dkan_core.cli.demo import demo
from dkan_core.cli.editing import edit
from dkan_core.cli.inspection import drift, inspect
from dkan_core.cli.planning import plan, sync, tune_lr
from dkan_core.cli.registry import register
from dkan_core.cli.results import fail
from dkan_core.cli.verification import verify
from dkan_core.cli.workflow import app, evaluate, explain, export, predict, prepare, serve, train
from dkan_core.errors import DkanError
from dkan_core.utils.hints import first_line
from dkan_core.utils.signals import exit_on_hangup, exit_once

__all__ = [
    "app",
    "demo",
    "drift",
    "edit",
    "evaluate",
    "explain",
    "export",
    "inspect",
    "main",
    "plan",
    "predict",
    "prepare",
    "register",
    "serve",
    "sync",
    "train",
    "tune_lr",
    "verify",
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
    from dkan_core.utils.logs import set_up_logging

    set_up_logging()


def main() -> None:
    """Run the command; an error of ours is one message and its exit code."""
    signal.signal(signal.SIGTERM, exit_once)
    exit_on_hangup()
    # numpy has only small matrices to multiply here, and its threads would be in the way of forking.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pydantic would look through every package that is installed for plugins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        app()
    except DkanError as error:
        fail(error, error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        # pydantic turns what the handler raises while a class is built, as at the start, into an error of its own.
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
            fail(f"SIGTERM or SIGHUP: {first_line(error)}", 128 + signal.SIGTERM)
        raise
