"""Threads that encode columns in parallel: NumPy and Arrow release the interpreter lock on whole columns."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from dkan_core.utils.resources import available_cores

Column = TypeVar("Column")
Result = TypeVar("Result")


def map_columns(function: Callable[[Column], Result], columns: Iterable[Column]) -> Iterator[Result]:
    """Call a function with each column, several at once; yield the results in the order of the columns."""
    return _threads().map(function, columns)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(available_cores(), thread_name_prefix="dkan-encode")


# A forked process has none of the threads, and would wait for them forever.
os.register_at_fork(after_in_child=_threads.cache_clear)
