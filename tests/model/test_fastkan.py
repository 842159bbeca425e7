"""FastKAN is the reference's function under the reference's names."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core import FastKAN


def reference(state: dict[str, Tensor], x: Tensor, layers: int) -> Tensor:
    """The paper's network written out from a state dict."""
    for index in range(layers):
        part = {
            name.removeprefix(f"layers.{index}."): value
            for name, value in state.items()
            if name.startswith(f"layers.{index}.")
        }
        normed = x
        if "layernorm.weight" in part:
            normed = F.layer_norm(x, x.shape[1:], part["layernorm.weight"], part["layernorm.bias"])
        grid = part["rbf.grid"]
        width = (grid[-1] - grid[0]) / (len(grid) - 1)
        basis = torch.exp(-(((normed[..., None] - grid) / width) ** 2))
        spline = basis.reshape(len(x), -1) @ part["spline_linear.weight"].T
        x = spline + F.silu(x) @ part["base_linear.weight"].T + part["base_linear.bias"]
    return x


def test_parameters_have_the_names_and_shapes_of_the_reference() -> None:
    model = FastKAN([6, 10, 2], num_centers=5, input_norm="layer")
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert shapes == {
        "layers.0.layernorm.weight": (6,),
        "layers.0.layernorm.bias": (6,),
        "layers.0.rbf.grid": (5,),
        "layers.0.spline_linear.weight": (10, 30),
        "layers.0.base_linear.weight": (10, 6),
        "layers.0.base_linear.bias": (10,),
        "layers.1.layernorm.weight": (10,),
        "layers.1.layernorm.bias": (10,),
        "layers.1.rbf.grid": (5,),
        "layers.1.spline_linear.weight": (2, 50),
        "layers.1.base_linear.weight": (2, 10),
        "layers.1.base_linear.bias": (2,),
    }
    assert not dict(model.named_parameters())["layers.0.rbf.grid"].requires_grad


@pytest.mark.parametrize("input_norm", ["layer", "none"])
@pytest.mark.parametrize("widths", [[4, 1], [4, 7, 3], [5, 8, 8, 2]])
def test_outputs_and_gradients_equal_the_written_out_formula(widths: list[int], input_norm: str) -> None:
    torch.manual_seed(0)
    model = FastKAN(widths, grid_min=-1.5, grid_max=2.5, num_centers=6, input_norm=input_norm).double()
    x = torch.randn(33, widths[0], dtype=torch.float64, requires_grad=True)
    direction = torch.randn(33, widths[-1], dtype=torch.float64)
    trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
    found = model(x)
    expected = reference(dict(model.named_parameters()), x, len(widths) - 1)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-12)
    wanted = (x, *trained.values())
    for left, right in zip(
        torch.autograd.grad(found, wanted, direction), torch.autograd.grad(expected, wanted, direction), strict=True
    ):
        torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-12)


def test_input_norm_none_leaves_out_the_first_norm_alone() -> None:
    names = FastKAN([4, 5, 1], input_norm="none").state_dict()
    assert "layers.0.layernorm.weight" not in names and "layers.1.layernorm.weight" in names


def test_dropout_acts_in_training_alone() -> None:
    model = FastKAN([4, 50, 1], dropout=0.5)
    x = torch.randn(8, 4)
    assert not torch.equal(model.train()(x), model(x))
    assert torch.equal(model.eval()(x), model(x))


def test_learns_a_function_that_no_linear_model_can() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 2)
    y = ((x[:, 0] * x[:, 1]) > 0).float()
    model = FastKAN([2, 16, 1])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    velocities = [torch.zeros_like(parameter) for parameter in trained]
    # Momentum written out: an optimizer of torch.optim takes seconds of imports.
    for _ in range(200):
        gradients = torch.autograd.grad(F.binary_cross_entropy_with_logits(model(x)[:, 0], y), trained)
        for parameter, velocity, gradient in zip(trained, velocities, gradients, strict=True):
            parameter.data -= 0.5 * velocity.mul_(0.9).add_(gradient)
    assert ((model(x)[:, 0] > 0).float() == y).float().mean() > 0.95


@pytest.mark.parametrize("wrong", [{"widths": [3]}, {"widths": [3, 1], "num_centers": 1}])
def test_impossible_shapes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        FastKAN(**wrong)
