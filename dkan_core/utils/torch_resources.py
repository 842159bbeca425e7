"""Devices and CPU threads for torch."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch


def best_device() -> torch.device:
    """Return CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with ``count`` threads inside the block."""
    # The setting is global, so it is restored for the caller's own work.
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def map_of_threads(chunks: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """Yield a ``map`` that computes chunks on the CPU, each in one thread and as many at once as torch has threads.

    Threads that share a chunk wait for each other many times; where other processes used their cores, nearly all
    CPU time went into waiting.
    """
    threads = torch.get_num_threads()
    with torch_threads(1):
        if threads == 1 or chunks <= 1:
            yield map
            return
        with ThreadPoolExecutor(min(threads, chunks)) as pool:
            yield pool.map
