"""The fused kernels as the compiler makes them for GPUs that need not be here: registers suffice, and tiles fit in."""

from collections.abc import Callable

import pytest
import torch

triton = pytest.importorskip("triton", reason="needs Triton, which has no wheel for this platform")
knobs = pytest.importorskip("triton.knobs", reason="needs a Triton that tells where its tools are")

from dkan_core.model.kernels import fused, fused_bytes, fused_hidden  # noqa: E402
from dkan_core.training.compute import fused_adamw, fused_lookup  # noqa: E402
from dkan_core.training.compute.row_keys import KeyRule  # noqa: E402
from dkan_core.training.setup.search_space import FINE_CENTERS  # noqa: E402
from dkan_core.training.setup.sizing import CENTERS  # noqa: E402
from tests.model.compiled_kernels import compile_instead  # noqa: E402

CAPABILITIES = {"sm_80": (8, 0), "sm_86": (8, 6), "sm_90": (9, 0), "sm_100": (10, 0), "sm_120": (12, 0)}

SHARED_MEMORY = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "sm_120": 99 << 10}
"""Bytes that a program may have, by the CUDA C++ Programming Guide."""

# Every tile is full: a pass for fewer inputs or outputs has smaller ones.
ROWS, INPUTS, SCORES, OUTPUTS = 16_896, 32, 128, 256


@pytest.fixture(autouse=True)
def tools() -> None:
    """Skip where the compiler is not part of Triton."""
    for tool in ("ptxas", "cuobjdump"):
        try:
            getattr(knobs.nvidia, tool)
        except RuntimeError as error:
            pytest.skip(f"this Triton comes without {tool}: {error}")


def radial_linear() -> None:
    x = torch.empty(ROWS, INPUTS, requires_grad=True)
    weight = torch.empty(OUTPUTS, INPUTS * CENTERS, requires_grad=True)
    out = fused.radial_linear(x, weight, torch.linspace(-2, 2, CENTERS), 0.6)
    torch.autograd.backward(out, torch.empty_like(out))


def byte_layer() -> None:
    stored = torch.empty(ROWS, SCORES, dtype=torch.uint8)
    sizes = ((OUTPUTS, SCORES * CENTERS), (OUTPUTS, SCORES), (OUTPUTS,))
    spline, base, bias = (torch.empty(size, requires_grad=True) for size in sizes)
    out = fused_bytes.byte_layer(stored, spline, base, bias, torch.linspace(-2, 2, CENTERS), 0.6)
    torch.autograd.backward(out, torch.empty_like(out))


def rest_of_a_step() -> None:
    x = torch.empty(ROWS, OUTPUTS, requires_grad=True)
    sizes = (OUTPUTS, OUTPUTS, OUTPUTS * CENTERS, OUTPUTS, 1)
    norm_weight, norm_bias, spline, base, bias = (torch.empty(1, size, requires_grad=True) for size in sizes)
    keys = torch.empty(ROWS, dtype=torch.int32)
    rest = (torch.linspace(-2, 2, CENTERS), 0.6, keys[:OUTPUTS], 1 << 30)
    out = fused_hidden.hidden_layer(x, keys, norm_weight, norm_bias, spline, base, bias, *rest)
    torch.autograd.backward(out, torch.empty_like(out))
    state, one = torch.empty(3, ROWS), torch.ones(())
    fused_adamw.take_step(state, state[0], torch.ones(3), state[1], state[2], one, one)
    position = torch.zeros(1, dtype=torch.int64)
    fused_lookup.look_up(torch.arange(ROWS), position, position, ROWS, KeyRule(0, of_row=False))


PASSES = {
    radial_linear: ["_forward", "_backward_input", "_backward_weight"],
    byte_layer: ["_forward", "_backward", "_backward"],
    rest_of_a_step: ["_forward", "_backward", "_step", "_look_up"],
}
"""What each of them compiles."""


@pytest.mark.parametrize(
    ("compute", "product"),
    [
        (radial_linear, torch.float32),
        (radial_linear, torch.bfloat16),
        (byte_layer, torch.float32),
        (byte_layer, torch.bfloat16),
        (rest_of_a_step, torch.float32),
    ],
)
@pytest.mark.parametrize("architecture", CAPABILITIES)
@pytest.mark.parametrize("centers", [CENTERS, FINE_CENTERS])
def test_registers_suffice(
    centers: int, architecture: str, compute: Callable[[], None], product: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_3_9 = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
    if before_3_9 and architecture == "sm_100" and compute == byte_layer and product == torch.float32:
        pytest.skip("Triton before 3.9 needs 800 columns of tensor memory, of which a GPU has 512, and refuses it")
    monkeypatch.setitem(globals(), "CENTERS", centers)
    compiled = compile_instead(CAPABILITIES[architecture], SHARED_MEMORY[architecture], monkeypatch)
    with torch.autocast("cpu", product, enabled=product != torch.float32):
        compute()
    assert [kernel.name for kernel in compiled] == PASSES[compute]
    assert {kernel.name: kernel.stack for kernel in compiled if kernel.stack} == {}
    assert max(kernel.shared for kernel in compiled) <= SHARED_MEMORY[architecture]
    if compute != rest_of_a_step:
        assert min(kernel.registers for kernel in compiled) > 32, "as many as a kernel has that the compiler gave up on"
