"""Blocks with random numbers of their own: those of several threads do not meet, and the caller's go on."""

import threading

import torch

from dkan_core.model.random_state import random_state


def drawn(seed: int) -> list[float]:
    with random_state(seed):
        return torch.rand(2).tolist()


def test_blocks_of_two_threads_draw_what_they_would_alone() -> None:
    expected, found = {seed: drawn(seed) for seed in (1, 2)}, {}
    other = threading.Thread(target=lambda: found.update({2: drawn(2)}))
    with random_state(1):
        first = torch.rand(1)
        other.start()
        # It ends in this time unless it waits for this block.
        other.join(0.2)
        found[1] = [*first.tolist(), *torch.rand(1).tolist()]
    other.join()
    assert found == expected


def test_the_callers_numbers_go_on_whether_or_not_there_is_a_seed() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4).tolist()
    torch.manual_seed(3)
    found = torch.rand(1).tolist()
    for seed in (None, 5):
        with random_state(seed):
            torch.rand(7)
        found += torch.rand(1).tolist()
    assert [*found, *torch.rand(1).tolist()] == expected
