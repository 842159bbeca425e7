"""Threads of the native extension: they live on, serve all of a process's threads, and a forked process has its own."""

import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dkan_core.model.kernels import native
from tests import warm
from tests.native import needs_native

pytestmark = needs_native

HELPERS = 3
CALLERS = 4

# A process that has used its threads, is forked, and has the child compute the same.
FORKING = f"""
import os, sys, torch
from dkan_core.model.kernels import native
torch.set_num_threads({1 + HELPERS})
torch.manual_seed(0)
indices, table = torch.randint(50, (5000, 4), dtype=torch.int32), torch.randn(50, 200)
threads = lambda: len(os.listdir("/proc/self/task"))
before, expected = threads(), native.table_sum(indices, table)
assert threads() == before + {HELPERS}
child = os.fork()
if not child:
    before, found = threads(), native.table_sum(indices, table)
    started = threads() - before
    os._exit(0 if (before, started) == (1, {HELPERS}) and torch.equal(found, expected) else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture
def numbers() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randint(50, (5000, 4), dtype=torch.int32), torch.randn(50, 200)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads in /proc")
def test_a_forked_process_starts_threads_of_its_own() -> None:
    done = warm.server().run(["-c", FORKING])
    assert done.returncode == 0, done.stderr


def test_threads_that_call_at_once_share_the_threads(
    numbers: tuple[Tensor, Tensor], threads: Callable[[int], None]
) -> None:
    threads(1)
    expected = native.table_sum(*numbers)
    found: list[list[Tensor]] = [[] for _ in range(CALLERS)]

    def call(mine: list[Tensor]) -> None:
        torch.set_num_threads(1 + HELPERS)
        mine.extend(native.table_sum(*numbers) for _ in range(50))

    callers = [threading.Thread(target=call, args=(mine,)) for mine in found]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(len(mine) == 50 and all(torch.equal(each, expected) for each in mine) for mine in found)
