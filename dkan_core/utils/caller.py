"""Warnings that show the line of the user's own code."""

import itertools
import sys
import traceback
import warnings


def warn_caller(text: str) -> None:
    """Give a ``UserWarning`` that names the first caller outside dkan and torch."""
    # Code that is executed without a module has no name.
    names = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_stack(sys._getframe(1)))
    inside = itertools.takewhile(lambda name: name.partition(".")[0] in ("dkan_core", "torch"), names)
    warnings.warn(text, stacklevel=2 + sum(1 for _ in inside))
