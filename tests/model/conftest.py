"""Any number of threads, and the native extension's code for one kind of processor after the other."""

from collections.abc import Callable, Iterator

import pytest
import torch

from tests.native import variant  # noqa: F401 - a fixture


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
