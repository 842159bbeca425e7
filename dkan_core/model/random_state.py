"""Torch's random state, of which a process has one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.RLock()


@contextmanager
def random_state(seed: int | None = None) -> Iterator[None]:
    """Give the block its own random numbers; afterwards, the caller's generator is as before.

    Blocks of several threads run one after the other, as they share one generator.

    Args:
        seed: Seed of the numbers. Default: the current state, for numbers that are not used.
    """
    with _lock, torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        yield
