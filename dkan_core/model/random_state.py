"""Torch's random state, of which a process has one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.RLock()


@contextmanager
def random_state(seed: int | None = None) -> Iterator[None]:
    """Have the block draw its random numbers by itself: the caller's program goes on with its own afterwards.

    Blocks of several threads run one after the other, as each would draw what the others have seeded.

    Args:
        seed: What the numbers follow from. Default: the state before, for numbers that are not used.
    """
    with _lock, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
