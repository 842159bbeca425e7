"""Torch's random state, of which a process has one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.RLock()


@contextmanager
def random_state(seed: int | None = None) -> Iterator[None]:
    """Give the block random numbers of its own: the caller's generator is as before afterwards.

    Blocks of several threads run one after the other, as each would draw what the others have seeded.

    Args:
        seed: What the numbers follow from. Default: the state before, for numbers that are not used.
    """
    with _lock, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
