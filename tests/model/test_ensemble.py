"""Members are FastKANs of their own, computed side by side."""

import pytest
import torch

from dkan_core.model.ensemble import FastKANEnsemble, MemberLayer, mean_log_odds
from dkan_core.model.fastkan import Basis, FastKAN, FastKANLayer

GRID: Basis = {"num_centers": 5, "grid_min": -1.5, "grid_max": 2.0}


def member(ensemble: FastKANEnsemble, index: int, widths: list[int]) -> FastKAN:
    """Copy one member's weights into a plain FastKAN."""
    model = FastKAN(widths, **GRID)
    first = slice(index * widths[1], (index + 1) * widths[1])
    with torch.no_grad():
        assert ensemble.first is not None
        bottom, *others = (each for each in model.layers if isinstance(each, FastKANLayer))
        bottom.spline_linear.weight.copy_(ensemble.first.spline_linear.weight[first])
        bottom.base_linear.weight.copy_(ensemble.first.base_linear.weight[first])
        bottom.base_linear.bias.copy_(ensemble.first.base_linear.bias[first])
        for layer, stacked in zip(others, ensemble.rest, strict=True):
            assert layer.layernorm is not None and isinstance(stacked, MemberLayer)
            layer.layernorm.weight.copy_(stacked.norm_weight[index, 0])
            layer.layernorm.bias.copy_(stacked.norm_bias[index, 0])
            layer.spline_linear.weight.copy_(stacked.spline_weight[index])
            layer.base_linear.weight.copy_(stacked.base_weight[index])
            layer.base_linear.bias.copy_(stacked.base_bias[index, 0])
    return model


@pytest.mark.parametrize("widths", [[4, 2], [4, 6, 1], [4, 6, 5, 3]])
def test_each_member_is_a_fastkan(widths: list[int]) -> None:
    torch.manual_seed(0)
    ensemble = FastKANEnsemble(3, widths, **GRID)
    for parameter in ensemble.parameters():
        torch.nn.init.normal_(parameter.data, std=0.3) if parameter.requires_grad else None
    x = torch.randn(7, widths[0])
    outputs = ensemble(x)
    for index in range(3):
        torch.testing.assert_close(outputs[index], member(ensemble, index, widths)(x), rtol=1e-4, atol=1e-5)


def test_members_start_apart() -> None:
    torch.manual_seed(0)
    first, second = FastKANEnsemble(2, [3, 8, 1])(torch.randn(5, 3))
    assert not torch.allclose(first, second)


def test_an_ensemble_without_inputs_works_on_shifts_alone() -> None:
    shift = torch.randn(5, 2 * 4)
    assert FastKANEnsemble(2, [0, 4, 3]).after_first(shift).shape == (2, 5, 3)


def test_mean_log_odds_are_those_of_the_mean_probability() -> None:
    logits = torch.randn(4, 50, 2, dtype=torch.float64) * 3
    expected = torch.logit(torch.sigmoid(logits).mean(0))
    torch.testing.assert_close(mean_log_odds(logits), expected)
    assert torch.isfinite(mean_log_odds(torch.tensor([-200.0, 200.0]).view(2, 1, 1))).all()
