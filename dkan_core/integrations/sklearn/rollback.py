"""A fit that fails or is interrupted leaves the classifier as it was: fitted as before, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unchanged_on_failure(estimator: Any) -> Iterator[None]:
    """Give an estimator back the attributes that it had, if the block raises, also by Ctrl-C."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise
