"""The ``dkan`` command."""

import os
import signal
import sys
from typing import Annotated

import typer

import dkan_core
from dkan_core.cli.app import app
from dkan_core.cli.results import fail
from dkan_core.errors import DkanError
from dkan_core.utils.messages import first_line
from dkan_core.utils.signals import exit_on_hangup, exit_once

# The help lists the commands in this order.
# isort: off
from dkan_core.cli.prepare import prepare
from dkan_core.cli.train import train
from dkan_core.cli.evaluate import evaluate
from dkan_core.cli.explain import explain
from dkan_core.cli.predict import predict
from dkan_core.cli.export import export
from dkan_core.cli.serve import serve
from dkan_core.cli.demo import demo
from dkan_core.cli.edit import edit
from dkan_core.cli.inspect import inspect
from dkan_core.cli.drift import drift
from dkan_core.cli.planning import plan, sync, tune_lr
from dkan_core.cli.register import register
from dkan_core.cli.verify import verify
# isort: on

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
    # NumPy multiplies only small matrices here, and its threads would hinder forking.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Otherwise pydantic searches all installed packages for plugins.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        app()
    except DkanError as error:
        fail(error, error.exit_code)
    except BrokenPipeError:
        sys.exit(1)
    except Exception as error:
        # pydantic wraps an exception of the handler that comes while a class is built, as at the start.
        if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
            fail(f"SIGTERM or SIGHUP: {first_line(error)}", 128 + signal.SIGTERM)
        raise
