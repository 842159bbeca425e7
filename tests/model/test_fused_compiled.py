"""The fused kernels as the compiler makes them for GPUs that need not be here: registers suffice, and tiles fit in."""

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton, which has no wheel for this platform")
knobs = pytest.importorskip("triton.knobs", reason="needs a Triton that tells where its tools are")

from dkan_core.model.kernels import fused  # noqa: E402
from tests.model.compiled_kernels import CompiledKernel, compile_instead  # noqa: E402

CAPABILITIES = {"sm_80": (8, 0), "sm_90": (9, 0), "sm_100": (10, 0)}

SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
"""Bytes that a program may have, by the CUDA C++ Programming Guide."""

# Every tile is full: a pass for fewer inputs or outputs has smaller ones.
ROWS, INPUTS, OUTPUTS, CENTERS = 16_896, 32, 256, 8


@pytest.fixture(autouse=True)
def tools() -> None:
    """Skip where the compiler is not part of Triton."""
    for tool in ("ptxas", "cuobjdump"):
        try:
            getattr(knobs.nvidia, tool)
        except RuntimeError as error:
            pytest.skip(f"this Triton comes without {tool}: {error}")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, architecture: str, product: torch.dtype) -> list[CompiledKernel]:
    """Compile all passes of a product."""
    kernels = compile_instead(CAPABILITIES[architecture], monkeypatch)
    x = torch.empty(ROWS, INPUTS, requires_grad=True)
    weight = torch.empty(OUTPUTS, INPUTS * CENTERS, requires_grad=True)
    with torch.autocast("cpu", product, enabled=product != torch.float32):
        out = fused.radial_linear(x, weight, torch.linspace(-2, 2, CENTERS), 0.6)
    torch.autograd.backward(out, torch.empty_like(out))
    return kernels


@pytest.mark.parametrize("product", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", CAPABILITIES)
def test_registers_suffice(compiled: list[CompiledKernel], architecture: str) -> None:
    assert [kernel.name for kernel in compiled] == ["_forward", "_backward_input", "_backward_weight"]
    assert {kernel.name: kernel.stack for kernel in compiled if kernel.stack} == {}
    assert max(kernel.shared for kernel in compiled) <= SHARED_MEMORY[architecture]
    assert min(kernel.registers for kernel in compiled) > 32, "as many as a kernel has that the compiler gave up on"
