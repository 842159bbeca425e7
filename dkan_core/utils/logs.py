"""Logging of a process."""

import logging

from dkan_core.errors import ConfigError, redact
from dkan_core.utils.progress import console, on_terminal, show_progress


def set_up_logging(level: int = logging.INFO, libraries: int = logging.WARNING) -> None:
    """Show dkan's messages from a level on, and those of its libraries from another one on."""
    if on_terminal():
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(console=console, show_path=False, show_level=False, show_time=False)
        logging.basicConfig(level=libraries, handlers=[handler], format="%(message)s")
    else:
        logging.basicConfig(level=libraries, format="%(asctime)s %(levelname)s %(message)s")
    for shown in logging.getLogger().handlers:
        shown.addFilter(_hide_credentials)
    logging.getLogger("dkan_core").setLevel(level)


def log_levels() -> tuple[int, int]:
    """Return the levels of this process, which ``set_up_logging`` takes in another one."""
    return logging.getLogger("dkan_core").getEffectiveLevel(), logging.getLogger().level


def show_start_and_end() -> None:
    """Show uvicorn's own messages, its start, its address and its end, unless only warnings are to be shown."""
    logging.getLogger("uvicorn.error").setLevel(max(logging.INFO, log_levels()[0]))


def set_verbosity(*, quiet: bool, verbose: bool) -> None:
    """Change what is shown, after ``set_up_logging``.

    Args:
        quiet: Only warnings and errors, and no progress.
        verbose: All messages of dkan and of its libraries.

    Raises:
        ConfigError: Both are asked for.
    """
    if quiet and verbose:
        raise ConfigError("--quiet and --verbose: choose one")
    show_progress(not quiet)
    if quiet:
        logging.getLogger("dkan_core").setLevel(logging.WARNING)
    if verbose:
        logging.getLogger().setLevel(logging.INFO)
        logging.getLogger("dkan_core").setLevel(logging.DEBUG)


def _hide_credentials(record: logging.LogRecord) -> bool:
    # Redacted in the formatted text, as a URI may come from the message or from any argument.
    record.msg, record.args = redact(record.getMessage()), ()
    return True
