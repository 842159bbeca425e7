"""Columns along which an additive model is monotone."""

import logging
from collections.abc import Sequence
from typing import Literal

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.errors import ConfigError
from dkan_core.utils.messages import hint

logger = logging.getLogger(__name__)

SIGNS: dict[str, Literal[-1, 1]] = {"+": 1, "-": -1}


def parse_monotone(settings: Sequence[str], numeric: Sequence[str]) -> tuple[tuple[int, Literal[-1, 1]], ...]:
    """Return the indices of the numeric features that are to be monotone, each with 1 for rising or -1 for falling.

    Raises:
        ConfigError: A setting names no numeric column, or one twice.
    """
    indices = {name: index for index, name in enumerate(numeric)}
    found: dict[int, Literal[-1, 1]] = {}
    for text in settings:
        name, _, sign = text.rpartition(":")
        if name not in indices:
            raise ConfigError(
                f"monotone: {name!r} is not a numeric column of the data; {hint(name, indices, sorted(indices))}"
            )
        if indices[name] in found:
            raise ConfigError(f"monotone: column {name!r} is named twice")
        found[indices[name]] = SIGNS[sign]
    return tuple(sorted(found.items()))


def warn_of_calendar(settings: Sequence[str], preprocessor: Preprocessor) -> None:
    """Warn about parts of the calendar that let log-odds both rise and fall along a monotone column of times."""
    names = [text.rpartition(":")[0] for text in settings]
    for name in names:
        if free := [part for part in preprocessor.calendar_of(name) if part not in names]:
            logger.warning("monotone: log-odds may still rise and fall along %r, by %s", name, ", ".join(free))
