"""An error after which a GPU computes nothing is the process's end, and no reason to try something else there."""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from dkan_core.model.kernels import choice, verified
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.communication.rendezvous import PEER_LOST

CUDA = torch.device("cuda", 0)
CAUSE = "an illegal memory access was encountered"
works = pytest.mark.parametrize("works", [True, False])


def failing(*_: object) -> list[float]:
    raise RuntimeError("Triton Error [CUDA]")


def set_state(patch: pytest.MonkeyPatch, *, works: bool) -> None:
    """Let there be a GPU, on which nothing runs, or which computes nothing any more."""

    def query() -> bool:
        if not works:
            raise torch.AcceleratorError(CAUSE)
        return True

    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(query=query))


@works
def test_kernel_is_not_blamed_for_a_gpu_that_has_failed(
    *, works: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_state(monkeypatch, works=works)
    monkeypatch.setattr(choice, "relative_errors", failing)
    operands = choice.Operands((), (torch.empty(1, device="meta"),), (), torch.float32)
    monkeypatch.setattr(choice.Operands, "device", CUDA)
    checks: tuple[Callable[[], bool], ...] = (
        lambda: verified.is_right("the kernel", CUDA, failing, 0.0),
        lambda: choice.is_right("fused", choice.RADIAL_LINEAR, operands),
    )
    for check in checks:
        if works:
            assert not check()
        else:
            with pytest.raises(torch.AcceleratorError, match=CAUSE):
                check()
    assert caplog.text.count("not run on cuda:0") == (2 if works else 0)


@works
@pytest.mark.parametrize("error", [torch.AcceleratorError(CAUSE), RuntimeError("NCCL error: unhandled cuda error")])
def test_other_ranks_are_not_blamed_for_a_gpu_that_has_failed(
    error: RuntimeError, *, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_state(monkeypatch, works=works)
    monkeypatch.setattr(os, "_exit", sys.exit)
    group = ProcessGroup.__new__(ProcessGroup)
    group.device, group._recorder = CUDA, None
    is_own = isinstance(error, torch.AcceleratorError) or not works
    kind, text = (torch.AcceleratorError, CAUSE) if is_own else (SystemExit, str(PEER_LOST))
    with pytest.raises(kind, match=text), group.exit_on_peer_loss():
        raise error
