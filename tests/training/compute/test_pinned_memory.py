"""Arrays that a GPU copies from and to are pinned; where that is refused, training goes on."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dkan_core.training.compute import pinned_memory
from dkan_core.training.compute.pinned_memory import pin
from dkan_core.training.state.shared_memory import MemoryShape, create_memory

CUDA = torch.device("cuda", 0)


def test_nothing_is_pinned_for_the_cpu() -> None:
    assert not pin([np.zeros(3, np.float32)], torch.device("cpu"))


def test_refusal_of_the_driver_is_no_error(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    driver = SimpleNamespace(cudaHostRegister=lambda address, size, flags: 2)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    forgotten: list[torch.device] = []
    monkeypatch.setattr(pinned_memory, "_forget_error", forgotten.append)
    assert not pin([np.zeros(1 << 20, np.float32)], CUDA)
    assert "4.2 MB cannot be pinned (CUDA error 2)" in caplog.text and forgotten == [CUDA]


@pytest.mark.gpu
def test_shared_memory_is_pinned_once() -> None:
    memory = create_memory(MemoryShape(parameters=5000, workers=1))
    assert pin([*memory.buffers_2KP[:, 0], memory.pushes_WN[0]], CUDA)
    assert torch.from_numpy(memory.pushes_WN[0]).is_pinned()
    # The driver refuses what is pinned already, which is no error of the next kernel.
    assert not pin([memory.pushes_WN[0]], CUDA)
    assert torch.ones(3, device=CUDA).sum().item() == 3
