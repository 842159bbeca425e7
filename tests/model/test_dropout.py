"""What is dropped is a function of seed, place of the row, layer and unit, and looks random in each of them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dkan_core import FastKAN
from dkan_core.data.loading.order import dropout_keys
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.dropout import RowDropout
from dkan_core.model.tabular import TabularFastKAN
from tests.model.architectures import CONFIG, PLAIN, changed

ROWS, UNITS = 4096, 256


def kept(
    *, seed: int = 0, first: int = 0, layer: int = 1, p: float = 0.2, rows: int = ROWS, device: str = "cpu"
) -> Tensor:
    """Return which cells are kept, as float64."""
    dropout = RowDropout(UNITS, p, layer=layer).to(device)
    keys = torch.from_numpy(dropout_keys(seed, first, rows)).to(device)
    found: Tensor = dropout(torch.ones(rows, UNITS, device=device), keys)
    return (found != 0).double().cpu()


def standardized(mask: Tensor, p: float) -> Tensor:
    """Return a mask with mean 0 and variance 1 over its cells, by what these should be."""
    z: Tensor = (mask - (1 - p)) / (p * (1 - p)) ** 0.5
    return z


def test_batch_without_rows_drops_nothing() -> None:
    """As the slice of a rank may be that takes part in a step of the others."""
    x = torch.ones(2, 0, 3)
    assert RowDropout(6, 0.5, layer=1)(x, torch.empty(0, dtype=torch.int32)).shape == x.shape


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.9])
def test_share_kept_is_right_over_all_and_in_each_row_and_unit(p: float) -> None:
    z = standardized(kept(p=p), p)
    assert abs(z.sum().item()) < 4 * z.numel() ** 0.5
    for dim in (0, 1):
        sums = z.sum(dim) / z.shape[dim] ** 0.5
        # The mean of squares of n normal numbers has a variance of 2 / n.
        assert abs(sums.square().mean().item() - 1) < 4 * (2 / len(sums)) ** 0.5
        assert sums.abs().max() < 5.5


@pytest.mark.parametrize("p", [0.2, 0.5])
@pytest.mark.parametrize(
    "other",
    [{"first": ROWS}, {"first": 1}, {"seed": 1}, {"layer": 2}, {"layer": 0}],
    ids=["next step", "next row", "seed", "layer", "inputs"],
)
def test_masks_of_other_steps_rows_seeds_and_layers_are_independent(other: dict[str, Any], p: float) -> None:
    product = standardized(kept(p=p), p) * standardized(kept(p=p, **other), p)
    assert abs(product.sum().item()) < 4 * product.numel() ** 0.5
    for dim in (0, 1):
        assert (product.sum(dim) / product.shape[dim] ** 0.5).abs().max() < 5.5


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_no_two_units_and_no_two_rows_go_together(p: float) -> None:
    z = standardized(kept(p=p), p)
    for cells in (z, z[:UNITS].T, z[-UNITS:].T):
        correlations = cells.T @ cells / len(cells) ** 0.5
        found = correlations[*torch.triu_indices(len(correlations), len(correlations), offset=1)]
        assert abs(found.square().mean().item() - 1) < 0.05
        assert found.abs().max() < 6


def test_pairs_of_units_do_not_go_together_in_pairs_of_rows() -> None:
    z = standardized(kept(p=0.5), 0.5)
    for step in (1, 2, 64):
        rows = z[step:] * z[:-step]
        for shift in (1, 2, 32):
            fours = rows[:, shift:] * rows[:, :-shift]
            assert abs(fours.sum().item()) < 4.5 * fours.numel() ** 0.5


def test_rows_drop_the_same_wherever_their_batch_is_cut() -> None:
    whole = kept()
    assert torch.equal(torch.cat([kept(rows=1000), kept(first=1000, rows=ROWS - 1000)]), whole)
    assert torch.equal(kept(), whole) and not torch.equal(kept(seed=1), whole)


def test_members_drop_what_their_units_drop_side_by_side() -> None:
    dropout, keys = RowDropout(12, 0.5, layer=1), torch.from_numpy(dropout_keys(0, 0, 50))
    flat = dropout(torch.ones(50, 12), keys)
    stacked = dropout(torch.ones(3, 50, 4), keys)
    assert torch.equal(stacked, flat.view(50, 3, 4).transpose(0, 1))
    assert len(stacked.unique(dim=0)) == 3


def test_what_is_kept_grows_and_gradients_follow_it() -> None:
    x = torch.randn(100, 8, requires_grad=True)
    keys = torch.from_numpy(dropout_keys(0, 0, 100))
    out = RowDropout(8, 0.2, layer=1)(x, keys)
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(out, x * x.grad)
    torch.testing.assert_close(x.grad.unique(), torch.tensor([0.0, 1.25]))


def test_without_keys_torch_decides_and_evaluation_drops_nothing() -> None:
    dropout, x = RowDropout(8, 0.5, layer=1), torch.ones(100, 8)
    torch.manual_seed(0)
    first = dropout(x)
    torch.manual_seed(0)
    assert torch.equal(dropout(x), first) and not torch.equal(dropout(x), first)
    keys = torch.from_numpy(dropout_keys(0, 0, 100))
    assert dropout.eval()(x, keys) is x
    assert RowDropout(8, 0.0, layer=1)(x, keys) is x
    assert "p=0.5" in repr(FastKAN([2, 3, 1], dropout=0.5))
    with pytest.raises(ValueError, match="p must be from 0 to below 1, got 1"):
        RowDropout(8, 1.0, layer=1)


@pytest.mark.parametrize(
    "architecture", [CONFIG, PLAIN, changed(CONFIG, hidden=(6, 5), members=3)], ids=["auto", "plain", "deep"]
)
def test_whole_model_with_keys_draws_nothing_and_treats_each_row_by_itself(architecture: ModelConfig) -> None:
    model = TabularFastKAN(changed(architecture, dropout=0.5, binary_dropout=0.5)).train()
    rng = np.random.default_rng(0)
    numeric = torch.from_numpy(rng.integers(0, 256, (60, 3)).astype(np.uint8))
    codes = torch.from_numpy(rng.integers(0, 2, (60, 2)).astype(np.int32))
    keys = torch.from_numpy(dropout_keys(3, 100, 60))
    state = torch.get_rng_state()
    whole = model.member_logits(numeric, codes, keys)
    assert torch.equal(torch.get_rng_state(), state)
    order = torch.from_numpy(rng.permutation(60))
    parts = [model.member_logits(numeric[part], codes[part], keys[part]) for part in order.split(17)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole[:, order])
    assert not torch.allclose(model.member_logits(numeric, codes, keys.flip(0)), whole)


@pytest.mark.gpu
def test_gpu_drops_the_same() -> None:
    assert torch.equal(kept(device="cuda"), kept())
