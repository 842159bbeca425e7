"""Compiles the kernels that a pass over a model takes side by side, where the pass would compile one after the other.

A pass inside ``side_by_side`` computes nothing that is of use: whatever is not decided how to compute is collected, and
has a stand-in, until all of it is compiled. Candidates are checked and timed when they are first used after that, with
the device to themselves.
"""

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import torch
from torch import Tensor


class _Collection(threading.local):
    """What a pass asks for in this thread, by what it is: another thread may train or score meanwhile."""

    asked: dict[Hashable, Callable[[], None]] | None = None


_collection = _Collection()


@contextmanager
def side_by_side(pool: Executor) -> Iterator[None]:
    """Collect what a pass over a model asks for, and then compile each in a thread of its own."""
    asked: dict[Hashable, Callable[[], None]] = {}
    _collection.asked = asked
    try:
        yield
    finally:
        _collection.asked = None
    for done in [pool.submit(each) for each in asked.values()]:
        done.result()


def is_collecting() -> bool:
    """Return whether a pass computes nothing of use."""
    return _collection.asked is not None


def add(key: Hashable, compile_it: Callable[[], None]) -> None:
    """Compile something, unless that was asked for already."""
    assert _collection.asked is not None
    _collection.asked.setdefault(key, compile_it)


def stand_in(*shape: int, device: torch.device) -> Tensor:
    """Return numbers in the place of a result that it is not decided how to compute."""
    numbers = torch.arange(math.prod(shape), dtype=torch.float32, device=device).sin_()
    return numbers.view(shape).requires_grad_(torch.is_grad_enabled())
