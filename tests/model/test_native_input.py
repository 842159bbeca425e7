"""The native extension's first layer computes the formula, whatever its inputs come from."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.model import encoder
from dkan_core.model.kernels import eager
from dkan_core.model.kernels.native_input import (
    EmbeddedColumn,
    InputLayout,
    InputWeights,
    OneHotGroup,
    gradients_in_place,
    input_layer,
)
from dkan_core.model.tabular import TabularFastKAN
from tests.model.architectures import CONFIG, changed
from tests.native import TOLERANCE, Leaves, needs_native, relative_errors

pytestmark = needs_native

# Scores, embedded columns and groups of one-hot weights; the codes of every column are below 5.
LAYOUTS = {
    "scores alone": InputLayout([0, 2], [], []),
    "by codes": InputLayout([], [EmbeddedColumn(0, 5, 3), EmbeddedColumn(2, 9, 1)], [OneHotGroup(0, 5, 5, [(0, 1)])]),
    "whether missing": InputLayout([], [EmbeddedColumn(0, 5, 3)], [OneHotGroup(0, 2, 2, [(0, 1)])]),
    "by rows": InputLayout([1], [EmbeddedColumn(1, 300, 4)], [OneHotGroup(0, 3, 3, [(1, 1)])]),
    "all": InputLayout(
        [2, 0, 1],
        [EmbeddedColumn(0, 200, 8), EmbeddedColumn(1, 5, 7), EmbeddedColumn(2, 150, 1)],
        [
            OneHotGroup(0, 5, 5, [(1, 1)]),
            OneHotGroup(5, 2, 2, [(2, 1)]),
            OneHotGroup(7, 125, 0, [(0, 25), (2, 5), (1, 1)]),
        ],
    ),
}


def input_leaves(layout: InputLayout, outputs: int, centers: int) -> Leaves:
    """Return weights, one-hot weights and embeddings."""
    inputs = len(layout.scores) + sum(column.width for column in layout.embedded)
    sizes = [(outputs, inputs * centers), (outputs, inputs), (outputs,)]
    sizes.append((1 + sum(group.rows for group in layout.groups), outputs))
    return [torch.randn(*size) for size in (*sizes, *(column[1:] for column in layout.embedded))]


def written_out_input(layout: InputLayout, codes: Tensor, grid: Tensor, width: float = 0.6) -> Callable[..., Tensor]:
    def run(scores: Tensor, spline: Tensor, base: Tensor, bias: Tensor, one_hot: Tensor, *tables: Tensor) -> Tensor:
        embedded = [
            table[codes[:, column.feature].long()] for column, table in zip(layout.embedded, tables, strict=True)
        ]
        inputs = torch.cat([scores[:, [*layout.scores]], *embedded], dim=1)
        out = eager.radial_linear(inputs, spline, grid.to(inputs.dtype), width) + F.linear(F.silu(inputs), base, bias)
        for first, _, cap, columns in layout.groups:
            indices = sum((codes[:, feature].long() * stride for feature, stride in columns), torch.tensor(0))
            out = out + one_hot[first + (indices if cap == 0 else indices.masked_fill(indices >= cap, 0))]
        return out

    return run


def fused_input(
    layout: InputLayout, codes: Tensor, grid: Tensor, byte_scores: Tensor, width: float = 0.6
) -> Callable[..., Tensor]:
    def run(scores: Tensor, spline: Tensor, base: Tensor, bias: Tensor, one_hot: Tensor, *tables: Tensor) -> Tensor:
        weights = InputWeights(spline, base, bias, one_hot, tables)
        return input_layer(scores, byte_scores, codes, weights, (grid, width), layout.to_tensor())

    return run


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize(("rows", "outputs", "centers"), [(0, 3, 8), (1, 64, 8), (150, 150, 8), (250, 33, 3)])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_input_layer_equals_the_formula(layout: InputLayout, rows: int, outputs: int, centers: int) -> None:
    torch.manual_seed(rows)
    grid, codes = torch.linspace(-2, 2, centers), torch.randint(5, (rows, 3)).int()
    found, exact = fused_input(layout, codes, grid, torch.zeros(256)), written_out_input(layout, codes, grid)
    errors = relative_errors(found, exact, [torch.randn(rows, 3), *input_leaves(layout, outputs, centers)])
    assert max(errors) < TOLERANCE, errors


@pytest.mark.usefixtures("variant")
@pytest.mark.parametrize("scores", [[*range(1, 150)], [*range(60), *range(149, 70, -1)]], ids=["adjacent", "scattered"])
@pytest.mark.parametrize("width", [4 / 7, 0.6], ids=["even grid", "narrow grid"])
@pytest.mark.parametrize(("rows", "outputs"), [(9, 64), (430, 70)])
def test_many_scores_equal_the_formula(scores: list[int], width: float, rows: int, outputs: int) -> None:
    torch.manual_seed(rows)
    layout, grid, codes = InputLayout(scores, [], []), torch.linspace(-2, 2, 8), torch.zeros(rows, 3).int()
    found = fused_input(layout, codes, grid, torch.zeros(256), width)
    leaves = [4 * torch.randn(rows, 150), *input_leaves(layout, outputs, 8)]
    errors = relative_errors(found, written_out_input(layout, codes, grid, width), leaves)
    assert max(errors) < TOLERANCE, errors


@pytest.mark.usefixtures("variant")
def test_stored_bytes_are_looked_up() -> None:
    layout, grid, codes = LAYOUTS["all"], torch.linspace(-2, 2, 8), torch.randint(5, (90, 3)).int()
    stored, byte_scores = torch.randint(256, (90, 3)).byte(), torch.randn(256)
    errors = relative_errors(
        lambda *leaves: fused_input(layout, codes, grid, byte_scores)(stored, *leaves),
        lambda *leaves: written_out_input(layout, codes, grid)(byte_scores[stored.long()].double(), *leaves),
        input_leaves(layout, 70, 8),
    )
    assert max(errors) < TOLERANCE, errors


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("code", [-1, 300])
def test_codes_outside_their_tables_are_an_error(column: int, code: int) -> None:
    codes = torch.zeros(7, 3).int()
    codes[5, column] = code
    run = fused_input(LAYOUTS["all"], codes, torch.linspace(-2, 2, 8), torch.zeros(256))
    with pytest.raises(IndexError, match="row 5 has a code that is no row of its table"):
        run(torch.zeros(7, 3), *input_leaves(LAYOUTS["all"], 4, 8))


def test_input_layer_is_used_where_it_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TabularFastKAN(changed(CONFIG, cardinalities=(5, 300), embedded=(0, 1), indicators=(), missing=())).eval()
    numeric = torch.randint(0, 256, (90, 3), dtype=torch.uint8)
    codes = torch.stack([torch.randint(5, (90,)), torch.randint(300, (90,))], dim=1).int()
    with torch.no_grad():
        in_one_pass = model.member_logits(numeric, codes)
        monkeypatch.setattr(encoder, "can_compute_input_layer", lambda *_: False)
        in_parts = model.member_logits(numeric, codes)
    torch.testing.assert_close(in_one_pass, in_parts, rtol=1e-5, atol=1e-6)
    assert not torch.equal(in_one_pass, in_parts)


@pytest.mark.usefixtures("variant")
def test_bits_of_the_input_layer_depend_neither_on_threads_nor_on_the_run(threads: Callable[[int], None]) -> None:
    rows = 3000
    run = fused_input(LAYOUTS["all"], torch.randint(5, (rows, 3)).int(), torch.linspace(-2, 2, 8), torch.zeros(256))
    leaves = [leaf.requires_grad_() for leaf in (torch.randn(rows, 3), *input_leaves(LAYOUTS["all"], 200, 8))]
    results = []
    for count in (1, 2, 9, 2):
        threads(count)
        out = run(*leaves)
        results.append([out, *torch.autograd.grad(out.sin().sum(), leaves)])
    for one, other in pairwise(results):
        assert all(torch.equal(each, same) for each, same in zip(one, other, strict=True))


def test_rows_of_the_input_layer_do_not_depend_on_the_rows_beside_them() -> None:
    leaves, codes, scores = input_leaves(LAYOUTS["all"], 70, 8), torch.randint(5, (200, 3)).int(), torch.randn(200, 3)
    grid = torch.linspace(-2, 2, 8)
    whole = fused_input(LAYOUTS["all"], codes, grid, torch.zeros(256))(scores, *leaves)
    parts = [
        fused_input(LAYOUTS["all"], codes[part], grid, torch.zeros(256))(scores[part], *leaves)
        for part in torch.arange(200).split(37)
    ]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of the check itself
@pytest.mark.parametrize("name", ["all", "scores alone"])
def test_torch_knows_the_input_layer(name: str) -> None:
    weights = [leaf.requires_grad_() for leaf in input_leaves(LAYOUTS[name], 4, 8)]
    codes, one_hot = (torch.randint(5, (9, 3)).int(), weights[3]) if name == "all" else (None, None)
    scores = torch.randn(9, 3).requires_grad_() if name == "all" else torch.randint(256, (9, 3)).byte()
    tensors = (scores, torch.randn(256), codes, *weights[:3], one_hot, weights[4:], torch.linspace(-2, 2, 8))
    checks = torch.library.opcheck(torch.ops.dkan.input_layer.default, (*tensors, 0.6, LAYOUTS[name].to_tensor()))
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.usefixtures("variant")
def test_gradients_are_added_where_they_are_kept() -> None:
    layout, codes, stored = LAYOUTS["all"], torch.randint(5, (90, 3)).int(), torch.randint(256, (90, 3)).byte()
    leaves = [leaf.requires_grad_() for leaf in input_leaves(layout, 70, 8)]
    run = fused_input(layout, codes, torch.linspace(-2, 2, 8), torch.randn(256))
    expected = torch.autograd.grad(run(stored, *leaves).sin().sum(), leaves)
    kept = [torch.zeros_like(leaf) for leaf in leaves]
    for leaf, gradient in zip(leaves, kept, strict=True):
        leaf.grad = gradient
    with gradients_in_place():
        torch.autograd.backward(run(stored, *leaves).sin().sum())
    assert all(leaf.grad is gradient for leaf, gradient in zip(leaves, kept, strict=True))
    assert all(torch.equal(gradient, right) for gradient, right in zip(kept, expected, strict=True))


def test_torch_knows_what_the_addition_of_gradients_changes() -> None:
    layout, codes = LAYOUTS["all"], torch.randint(5, (9, 3)).int()
    weights = input_leaves(layout, 4, 8)
    tensors = (torch.randn(9, 4), torch.randn(9, 3), torch.randn(256), codes, *weights[:4], weights[4:])
    grid, gradients = torch.linspace(-2, 2, 8), [torch.zeros_like(each) for each in weights]
    arguments = (*tensors, grid, 0.6, layout.to_tensor(), *gradients[:4], gradients[4:])
    checks = torch.library.opcheck(torch.ops.dkan.add_input_layer_gradients.default, arguments)
    assert set(checks.values()) == {"SUCCESS"}
