"""The native extension computes the formula, the same bits with any number of threads, and is replaced if it errs."""

import logging
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.data.loading.order import dropout_keys
from dkan_core.errors import ConfigError
from dkan_core.model import kernels
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.dropout import RowDropout
from dkan_core.model.ensemble import MemberLayer
from dkan_core.model.fastkan import FastKANLayer
from dkan_core.model.kernels import (
    check_kernel,
    describe_kernel,
    eager,
    native,
    native_hidden,
    use_kernel,
    verified_native,
)
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.native.library import native_library
from tests.model.architectures import CONFIG, PLAIN, changed
from tests.native import TOLERANCE, Leaves, needs_native, relative_errors

pytestmark = needs_native


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(
    ("networks", "rows", "inputs", "outputs", "centers"),
    [
        (None, 1, 1, 1, 2),
        (None, 0, 3, 2, 8),
        (None, 7, 3, 5, 8),
        (None, 300, 61, 20, 8),
        (2, 130, 17, 33, 5),
        (None, 130, 61, 20, 16),
        (3, 9, 4, 2, 32),
    ],
)
def test_radial_linear_equals_the_formula(
    networks: int | None, rows: int, inputs: int, outputs: int, centers: int
) -> None:
    torch.manual_seed(0)
    front = () if networks is None else (networks,)
    grid = torch.linspace(-2, 2, centers)
    leaves = [torch.randn(*front, rows, inputs) * 2, torch.randn(*front, outputs, inputs * centers)]
    errors = relative_errors(
        lambda x, weight: native.radial_linear(x, weight, grid, 0.6),
        lambda x, weight: eager.radial_linear(x, weight, grid.double(), 0.6),
        leaves,
    )
    assert max(errors) < TOLERANCE, errors


def hidden_leaves(networks: int, rows: int, inputs: int, outputs: int, centers: int, *, side_by_side: bool) -> Leaves:
    """Return inputs and weights; the inputs' networks one after the other, or side by side as the first layer's are."""
    torch.manual_seed(rows)
    x = torch.randn(rows, networks, inputs).transpose(0, 1) if side_by_side else torch.randn(networks, rows, inputs)
    sizes = [(inputs,), (inputs,), (outputs, inputs * centers), (outputs, inputs), (outputs,)]
    return [x * 2, *(torch.randn(networks, *size) for size in sizes)]


def hidden_layer(grid: Tensor, width: float, dropout: RowDropout, keys: Tensor) -> Callable[..., Tensor]:
    def run(*leaves: Tensor) -> Tensor:
        return native_hidden.hidden_layer(leaves[0], leaves[1:], grid, width, *dropout.hashed(keys))

    return run


def written_out(grid: Tensor, width: float, dropout: RowDropout, keys: Tensor) -> Callable[..., Tensor]:
    def run(x: Tensor, norm_weight: Tensor, norm_bias: Tensor, spline: Tensor, base: Tensor, bias: Tensor) -> Tensor:
        x = dropout(x, keys) if len(keys) else x
        normed = F.layer_norm(x, x.shape[-1:]) * norm_weight.unsqueeze(1) + norm_bias.unsqueeze(1)
        spline_part = eager.radial_linear(normed, spline, grid.to(x.dtype), width)
        return spline_part + torch.matmul(F.silu(x), base.mT) + bias.unsqueeze(1)

    return run


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("side_by_side", [False, True])
@pytest.mark.parametrize(
    ("networks", "rows", "inputs", "outputs", "centers"),
    [
        *[
            (1, 1, 2, 1, 8),
            (2, 130, 128, 1, 8),
            (3, 65, 17, 16, 8),
            (2, 70, 33, 3, 5),
            (1, 0, 4, 2, 8),
            (2, 70, 128, 1, 16),
            (4, 9, 16, 2, 32),
        ],
        *[(1, 1, 3, 17, 8), (2, 130, 33, 20, 8), (1, 50, 128, 64, 8), (2, 300, 20, 70, 5), (1, 0, 4, 33, 8)],
    ],
)
def test_hidden_layer_equals_the_formula(
    networks: int, rows: int, inputs: int, outputs: int, centers: int, side_by_side: bool, p: float
) -> None:
    grid, width = torch.linspace(-2, 2, centers), 4 / (centers - 1)
    dropout, keys = RowDropout(networks * inputs, p, layer=1), torch.from_numpy(dropout_keys(0, 0, rows))
    leaves = hidden_leaves(networks, rows, inputs, outputs, centers, side_by_side=side_by_side)
    arguments = (grid, width, dropout, keys)
    errors = relative_errors(hidden_layer(*arguments), written_out(*arguments), leaves)
    # Of two inputs LayerNorm leaves hardly more than their signs, and of the gradient hardly anything.
    assert max(errors[:1] + errors[2:]) < TOLERANCE and errors[1] < (TOLERANCE if inputs > 2 else 1), errors


@pytest.mark.parametrize("asked", [[1], [0, 2], []])
def test_gradient_of_some_outputs_equals_the_formula(asked: list[int]) -> None:
    grid, dropout = torch.linspace(-2, 2, 8), RowDropout(2 * 20, 0.3, layer=1)
    arguments = (grid, 4 / 7, dropout, torch.from_numpy(dropout_keys(0, 0, 40)))
    errors = relative_errors(
        lambda *leaves: hidden_layer(*arguments)(*leaves)[..., asked],
        lambda *leaves: written_out(*arguments)(*leaves)[..., asked],
        hidden_leaves(2, 40, 20, 3, 8, side_by_side=True),
    )
    assert max(errors) < TOLERANCE, errors


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("outputs", [2, 30])
@pytest.mark.parametrize("width", [4 / 7, 0.3])
def test_hidden_layer_takes_any_width_and_any_grid(width: float, outputs: int) -> None:
    grid = torch.tensor([-3.0, -1.5, -1.0, 0.0, 0.25, 1.0, 2.0, 4.0])
    arguments = (grid, width, RowDropout(20, 0.0, layer=1), torch.from_numpy(dropout_keys(0, 0, 40)))
    errors = relative_errors(
        hidden_layer(*arguments), written_out(*arguments), hidden_leaves(1, 40, 20, outputs, 8, side_by_side=False)
    )
    assert max(errors) < TOLERANCE, errors


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("size", [30.0, 1e4, 1e30])
def test_what_lies_far_outside_the_grid_counts_nothing(size: float) -> None:
    torch.manual_seed(0)
    layer = FastKANLayer(16, 3)
    assert layer.layernorm is not None
    with torch.no_grad():
        layer.layernorm.weight.fill_(size)
    x = torch.randn(50, 16)
    results = []
    for kernel in ("native", "eager"):
        use_kernel(layer, kernel)
        leaf = x.clone().requires_grad_()
        out = layer(leaf)
        results.append((out, *torch.autograd.grad(out.sum(), (leaf, layer.spline_linear.weight))))
    # By the norm: in 200 draws either one is off float64 by up to 4e-6 of it, single gradients by a thousandth.
    for found, expected in zip(*results, strict=True):
        assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_in_a_row_stays_in_that_row(value: float) -> None:
    layers = [FastKANLayer(20, 2), FastKANLayer(20, 40, norm=False)]
    x = torch.randn(5, 20)
    x[2, 3] = value
    for layer in layers:
        found: list[Tensor] = []
        expected: list[Tensor] = []
        for kernel, results in (("native", found), ("eager", expected)):
            use_kernel(layer, kernel)  # type: ignore[arg-type]
            leaf = x.clone().requires_grad_()
            out = layer(leaf)
            results += [out, torch.autograd.grad(out.sum(), leaf)[0]]
        for each, right in zip(found, expected, strict=True):
            torch.testing.assert_close(each, right, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(("rows", "per_row", "table_rows", "width"), [(70, 3, 40, 150), (1, 1, 1, 1), (0, 2, 5, 9)])
def test_table_sum_equals_embedding_bag(rows: int, per_row: int, table_rows: int, width: int) -> None:
    indices = torch.randint(table_rows, (rows, per_row), dtype=torch.int32)
    errors = relative_errors(
        lambda table: native.table_sum(indices, table),
        lambda table: table[indices.long()].sum(1),
        [torch.randn(table_rows, width)],
    )
    assert max(errors) < TOLERANCE, errors


@pytest.mark.parametrize("index", [-1, 5])
def test_indices_outside_the_table_are_an_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"index {index} of a table of 5 rows"):
        native.table_sum(torch.tensor([[0], [index]], dtype=torch.int32), torch.zeros(5, 2))


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("outputs", [2, 20])
def test_bits_depend_neither_on_threads_nor_on_the_run(threads: Callable[[int], None], outputs: int) -> None:
    rows, inputs = 5000, 100
    dropout, keys = RowDropout(2 * inputs, 0.3, layer=1), torch.from_numpy(dropout_keys(0, 0, rows))
    run = hidden_layer(torch.linspace(-2, 2, 8), 4 / 7, dropout, keys)
    leaves = [leaf.requires_grad_() for leaf in hidden_leaves(2, rows, inputs, outputs, 8, side_by_side=True)]
    indices, table = torch.randint(50, (rows, 4), dtype=torch.int32), torch.randn(50, 200).requires_grad_()
    results = []
    for count in (1, 2, 9, 2):
        threads(count)
        out, total = run(*leaves), native.table_sum(indices, table)
        gradients = torch.autograd.grad(out.sin().sum(), leaves), torch.autograd.grad(total.sin().sum(), table)
        results.append([out, *gradients[0], total, *gradients[1]])
    for one, other in pairwise(results):
        assert all(torch.equal(each, same) for each, same in zip(one, other, strict=True))


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("outputs", [3, 40])
def test_rows_do_not_depend_on_the_rows_beside_them(outputs: int) -> None:
    layer, keys = MemberLayer(2, 48, outputs), torch.from_numpy(dropout_keys(0, 0, 200))
    dropout = RowDropout(96, 0.4, layer=1)
    x = torch.randn(2, 200, 48)
    whole = layer(x, dropout, keys)
    parts = [layer(x[:, part], dropout, keys[part]) for part in torch.arange(200).split(37)]
    assert torch.equal(torch.cat(parts, dim=1), whole)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the check itself
def test_torch_knows_the_operations() -> None:
    grid, keys = torch.linspace(-2, 2, 8), torch.from_numpy(dropout_keys(0, 0, 9))
    unit_keys = RowDropout(8, 0.5, layer=1).unit_keys
    leaves = [leaf.requires_grad_() for leaf in hidden_leaves(2, 9, 4, 2, 8, side_by_side=True)]
    table = torch.randn(5, 3).requires_grad_()
    checked: list[tuple[Any, tuple[Any, ...]]] = [
        (
            torch.ops.dkan.radial_linear.default,
            (torch.randn(9, 4).requires_grad_(), torch.randn(6, 32).requires_grad_(), grid, 0.6),
        ),
        (torch.ops.dkan.hidden_layer.default, (*leaves, grid, 0.6, keys, unit_keys, 1 << 31)),
        (torch.ops.dkan.hidden_layer.default, (*leaves, grid, 0.6, None, unit_keys, 0)),
        (torch.ops.dkan.table_sum.default, (torch.randint(5, (9, 2), dtype=torch.int32), table)),
    ]
    for operation, arguments in checked:
        assert set(torch.library.opcheck(operation, arguments).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    "architecture",
    [CONFIG, PLAIN, changed(CONFIG, hidden=(6, 5), input_norm="layer"), changed(CONFIG, hidden=(), dropout=0.0)],
    ids=["auto", "plain", "deep", "no-hidden"],
)
def test_models_compute_the_same_by_every_kernel(architecture: ModelConfig) -> None:
    torch.manual_seed(0)
    model = TabularFastKAN(changed(architecture, dropout=0.3, binary_dropout=0.3)).train()
    parameters = [each for each in model.parameters() if each.requires_grad]
    for parameter in parameters:
        torch.nn.init.normal_(parameter, std=0.3)
    keys = torch.from_numpy(dropout_keys(0, 0, 80))
    numeric, codes = torch.randint(0, 256, (80, 3), dtype=torch.uint8), torch.randint(0, 2, (80, 2)).int()
    results = []
    for kernel in ("native", "recompute", "eager"):
        use_kernel(model, kernel)
        logits = model.member_logits(numeric, codes, keys)
        gradients = torch.autograd.grad(logits.sin().sum(), parameters)
        results.append(torch.cat([logits.flatten(), *(each.flatten() for each in gradients)]))
    assert (results[0] - results[2]).norm() < 1e-5 * results[2].norm()
    assert (results[1] - results[2]).norm() < 1e-5 * results[2].norm()
    assert not torch.equal(results[0], results[1])


def test_first_call_imports_no_compiler() -> None:
    """Every process of a run would pay for it."""
    code = (
        "import sys, torch; from dkan_core.model.ensemble import MemberLayer; import dkan_core.model.kernels.native; "
        "layer, x = MemberLayer(2, 6, 1), torch.randn(2, 9, 6); layer(x).sum().backward(); "
        "sys.exit(not {'torch._dynamo', 'sympy'}.isdisjoint(sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_passes_that_are_wrong_are_replaced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    right, layer, x = native_hidden.hidden_layer, MemberLayer(2, 6, 1), torch.randn(2, 9, 6)
    expected = layer(x)
    monkeypatch.setattr(native_hidden, "hidden_layer", lambda *each: 1.0001 * right(*each))
    verified_native.hidden_layer_is_right.cache_clear()
    with caplog.at_level(logging.WARNING):
        found = layer(x)
    verified_native.hidden_layer_is_right.cache_clear()
    torch.testing.assert_close(found, expected)
    assert "the native hidden layer differs by 1.0e-04" in caplog.text


def test_without_the_extension_it_is_recomputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_library(tmp_path / "missing.so") is None
    assert describe_kernel("auto", "cpu").startswith("native (")
    assert describe_kernel("auto", "cpu,cpu") == describe_kernel("auto", "cpu")
    assert "right on each GPU" in describe_kernel("auto", "cuda:0,cpu")
    for module in (native, kernels):
        monkeypatch.setattr(module, "native_library", lambda: None)
    layer, x = MemberLayer(2, 6, 1), torch.randn(2, 9, 6)
    out = layer(x)
    use_kernel(layer, "recompute")
    assert torch.equal(out, layer(x))
    assert "recompute: the native extension is not built" in describe_kernel("auto", "cpu")
    with pytest.raises(ConfigError, match="kernel native: the native extension is not built"):
        check_kernel("native", "cpu")
    with pytest.raises(ConfigError, match=r"computes only on the cpu, not on cuda:0; choose auto"):
        check_kernel("native", "cuda:0")


@pytest.mark.parametrize("inputs", [1, 2, 3, 5])
def test_narrow_layers_are_right_but_for_rounding(inputs: int) -> None:
    """A LayerNorm over few units leaves gradients that nearly cancel."""
    checks = verified_native.hidden_layer_is_right, verified_native.step_is_right
    assert all(check(2, inputs, 2, centers) for check in checks for centers in (3, 8))
