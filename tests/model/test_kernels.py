"""Every backend computes the formula and its gradients."""

import pytest
import torch
from torch import Tensor

from dkan_core.model.kernels import choice, eager, native, recompute
from dkan_core.model.kernels.choice import RadialLinear

BACKENDS: dict[str, RadialLinear] = {
    "eager": eager.radial_linear,
    "recompute": recompute.radial_linear,
    "native": native.radial_linear,
}
backends = pytest.mark.parametrize("kernel", BACKENDS.values(), ids=BACKENDS.keys())
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def inputs(rows: int, features: int, outputs: int, centers: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, features, generator=generator, dtype=torch.float64)
    weight = torch.randn(outputs, features * centers, generator=generator, dtype=torch.float64)
    grid = torch.linspace(-2, 2, centers, dtype=torch.float64)
    return x.to(device).requires_grad_(), weight.to(device).requires_grad_(), grid.to(device)


def written_out(x: Tensor, weight: Tensor, grid: Tensor, width: float) -> Tensor:
    """One term after the other, as in the paper."""
    out = torch.zeros(len(x), len(weight), dtype=x.dtype, device=x.device)
    for feature in range(x.shape[1]):
        for center in range(len(grid)):
            bump = torch.exp(-(((x[:, feature] - grid[center]) / width) ** 2))
            out = out + bump[:, None] * weight[:, feature * len(grid) + center]
    return out


@backends
@devices
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (7, 3, 5, 8), (257, 4, 2, 16)])
def test_output_and_gradients_equal_the_formula(
    kernel: RadialLinear, shape: tuple[int, int, int, int], device: str
) -> None:
    x, weight, grid = inputs(*shape, device=device)
    direction = torch.randn(shape[0], shape[2], dtype=torch.float64, device=device)
    results = []
    for function in (kernel, written_out):
        out = function(x, weight, grid, 0.6)
        results.append((out, *torch.autograd.grad(out, (x, weight), direction)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)


@backends
def test_gradients_agree_with_finite_differences(kernel: RadialLinear) -> None:
    x, weight, grid = inputs(5, 3, 2, 4)
    assert torch.autograd.gradcheck(lambda x, weight: kernel(x, weight, grid, 1.3), (x, weight))


def test_number_of_tiles_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, grid = inputs(1000, 3, 4, 8)
    whole = recompute.radial_linear(x, weight, grid, 0.5)
    monkeypatch.setitem(recompute.TILE_BYTES, "cpu", 1)
    assert len(recompute._tiles(x, 8)) > 10
    torch.testing.assert_close(recompute.radial_linear(x, weight, grid, 0.5), whole, rtol=1e-12, atol=1e-12)


def test_no_gradient_is_computed_for_an_input_that_needs_none() -> None:
    x, weight, grid = inputs(10, 3, 4, 8)
    recompute.radial_linear(x.detach(), weight, grid, 0.5).sum().backward()
    assert x.grad is None and weight.grad is not None


@pytest.mark.parametrize(
    ("kernel", "device"),
    [
        *((kernel, "cpu") for kernel in BACKENDS.values()),
        *(pytest.param(each, "cuda", marks=pytest.mark.gpu) for each in (*BACKENDS.values(), choice.compute_fused)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_rounds_products_and_nothing_else(kernel: RadialLinear, device: str, dtype: torch.dtype) -> None:
    x, weight, grid = (tensor.detach().float() for tensor in inputs(300, 4, 5, 8, device))
    direction = torch.randn(300, 5, device=device)
    leaves = x.to(dtype).requires_grad_(), weight.requires_grad_()
    with torch.autocast(device, torch.bfloat16):
        out = kernel(*leaves, grid, 0.6)
    found = (out, *torch.autograd.grad(out.float(), leaves, direction))
    exact = leaves[0].detach().float().requires_grad_(), weight
    out = written_out(*exact, grid, 0.6)
    for value, expected in zip(found, (out, *torch.autograd.grad(out, exact, direction)), strict=True):
        assert 0 < (value.float() - expected).norm() < 0.01 * expected.norm()
    assert found[2].dtype == torch.float32 and found[1].dtype == dtype


def test_autocast_sums_tiles_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, grid = (tensor.detach().float() for tensor in inputs(20_000, 2, 3, 8))
    monkeypatch.setitem(recompute.TILE_BYTES, "cpu", 1)
    with torch.autocast("cpu", torch.bfloat16):
        out = recompute.radial_linear(x, weight.requires_grad_(), grid, 0.5)
    assert out.dtype == torch.float32
    (found,) = torch.autograd.grad(out.sum(), weight)
    (expected,) = torch.autograd.grad(recompute.radial_linear(x, weight, grid, 0.5).sum(), weight)
    torch.testing.assert_close(found, expected, rtol=2e-3, atol=0)
