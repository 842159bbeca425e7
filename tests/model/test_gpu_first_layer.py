"""What a GPU's first layer computes is what its formula says, however codes are looked up."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dkan_core.data.encoding.preprocessor import UNSEEN
from dkan_core.model import code_sums, gpu_first_layer
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.code_sums import CodeSums
from dkan_core.model.kernels.native_input import OneHotGroup
from dkan_core.model.tabular import TabularFastKAN
from tests.model.architectures import CONFIG, changed

ROWS = 300
CARDINALITIES = (5, 3, 9, 4500, 2, 40)
CODED: dict[str, Any] = {
    "cardinalities": CARDINALITIES,
    "embedded": (0, 2, 3, 5),
    "indicators": ((1,), (2,), (3,), (4,), (0, 1), (4, 0, 1), (2, 5)),
    "missing": (0, 5),
}
NOTHING: dict[str, Any] = {"binary": (), "cardinalities": (), "embedded": (), "indicators": (), "missing": ()}
CASES: dict[str, dict[str, Any]] = {
    "bytes, binary columns and codes": {"num_numeric": 4, "binary": (1,), **CODED},
    "codes alone": {"num_numeric": 0, **CODED},
    "one-hots alone": {"num_numeric": 3, **CODED, "embedded": ()},
    "embeddings alone": {"num_numeric": 3, "cardinalities": CARDINALITIES, "embedded": (0, 2, 3)},
    "bytes alone": {"num_numeric": 3},
}


def batch(config: ModelConfig, *, floats: bool = False) -> dict[str, Tensor]:
    rng = np.random.default_rng(0)
    arrays: dict[str, Tensor] = {}
    if config.num_numeric:
        stored = rng.integers(0, 256, (ROWS, config.num_numeric), dtype=np.uint8)
        arrays["numeric"] = torch.from_numpy(rng.normal(size=stored.shape).astype(np.float32) if floats else stored)
    if config.cardinalities:
        codes = np.stack([rng.integers(0, count, ROWS) for count in config.cardinalities], axis=1)
        arrays["categorical"] = torch.from_numpy(codes.astype(np.int32))
    return arrays


def first_output(model: TabularFastKAN, arrays: dict[str, Tensor], *, on_gpu: bool) -> list[Tensor]:
    """Return the first layer's output and the gradients of the parameters that it depends on."""
    numeric, categorical = arrays.get("numeric"), arrays.get("categorical")
    encoder, layer = model.encoder, model.first_layer
    assert layer is not None
    if on_gpu:
        out_BH = encoder.first_layer_on_gpu(layer, numeric, categorical)
    else:
        inputs_BI, shifts = encoder(numeric, categorical)
        out_BH = sum(shifts, layer(inputs_BI))
    used = [each for part in (encoder, layer) for each in part.parameters() if each.requires_grad]
    direction_BH = torch.sin(torch.arange(out_BH.numel())).view_as(out_BH)
    return [out_BH.detach(), *torch.autograd.grad((out_BH * direction_BH).sum(), used)]


@pytest.mark.parametrize("floats", [False, True], ids=["bytes", "floats"])
@pytest.mark.parametrize("in_table", [False, True], ids=["of rows", "of codes"])
@pytest.mark.parametrize("joint", [False, True], ids=["one by one", "jointly"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_output_and_gradients_are_those_of_the_formula(
    case: dict[str, Any], joint: bool, in_table: bool, floats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_sums, "WORTH_JOINING", -(10**6) if joint else 10**6)
    monkeypatch.setattr(gpu_first_layer, "TABLE_NUMBERS", 10**6 if in_table else 0)
    config = changed(CONFIG, **{**NOTHING, **case})
    torch.manual_seed(0)
    model = TabularFastKAN(config)
    if model.encoder.indicators is not None:
        torch.nn.init.normal_(model.encoder.indicators.weight)
    arrays = batch(config, floats=floats)
    found = first_output(model, arrays, on_gpu=True)
    for each, expected in zip(found, first_output(model, arrays, on_gpu=False), strict=True):
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("grid", [(-2e4, 2e4), (-1.2e4, -8e3), (-1e6, 1e6), (5.0, 6.0)])
def test_inputs_that_are_absent_add_nothing_whatever_the_grid(grid: tuple[float, float]) -> None:
    config = changed(CONFIG, **{**NOTHING, **CASES["codes alone"]}, grid_min=grid[0], grid_max=grid[1])
    model = TabularFastKAN(config)
    arrays = batch(config)
    found = first_output(model, arrays, on_gpu=True)
    for each, expected in zip(found, first_output(model, arrays, on_gpu=False), strict=True):
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_large_tables_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_first_layer, "MAX_COPIED_ROWS", 0)
    monkeypatch.setattr(gpu_first_layer, "TABLE_NUMBERS", 10**6)
    config = changed(CONFIG, **{**NOTHING, **CASES["bytes, binary columns and codes"]})
    model = TabularFastKAN(config)
    arrays = batch(config)
    found, expected = (first_output(model, arrays, on_gpu=on_gpu) for on_gpu in (True, False))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("in_table", [False, True], ids=["of rows", "of codes"])
def test_score_of_a_row_does_not_depend_on_the_others(in_table: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_first_layer, "TABLE_NUMBERS", 10**6 if in_table else 0)
    monkeypatch.setattr(code_sums, "WORTH_JOINING", -(10**6))
    model = TabularFastKAN(changed(CONFIG, **{**NOTHING, **CASES["codes alone"]}))
    layer, encoder = model.first_layer, model.encoder
    assert layer is not None and encoder.indicators is not None
    torch.nn.init.normal_(encoder.indicators.weight)
    codes_BC = batch(model.config)["categorical"].repeat(20, 1)
    with torch.inference_mode():
        together_BH = encoder.first_layer_on_gpu(layer, None, codes_BC)
        apart_BH = torch.cat([encoder.first_layer_on_gpu(layer, None, part_BC) for part_BC in codes_BC.split(64)])
    assert together_BH.equal(apart_BH)


def test_copies_and_pickles_hold_nothing_of_a_device() -> None:
    model = TabularFastKAN(changed(CONFIG, **{**NOTHING, **CASES["codes alone"]}))
    before = len(pickle.dumps(model))
    first_output(model, batch(model.config), on_gpu=True)
    assert len(pickle.dumps(model)) == before
    copied = copy.deepcopy(model)
    for each, expected in zip(
        first_output(copied, batch(model.config), on_gpu=True),
        first_output(model, batch(model.config), on_gpu=True),
        strict=True,
    ):
        assert each.equal(expected)


def test_joint_values_take_fewer_lookups() -> None:
    """A cross takes in its columns, and small columns share a group."""
    groups = [OneHotGroup(0, 12, 0, [(0, 4), (1, 1)])]
    first = 12
    for feature, count in enumerate((3, 4, 9, 5)):
        groups.append(OneHotGroup(first, count, 0, [(feature, 1)]))
        first += count
    sums = CodeSums((3, 4, 9, 5), groups, torch.device("cpu"))
    codes_BC = torch.tensor([[2, 1, 8, 0], [0, 3, 1, 4]], dtype=torch.int32)
    assert sums._direct(codes_BC).shape == (2, 5)
    assert sums._joint(codes_BC).tolist() == [[2 * 4 + 1, 12 + 8 * 5 + 0], [3, 12 + 1 * 5 + 4]]


def test_groups_with_too_many_joint_values_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_sums, "MAX_JOINT_VALUES", 10)
    groups = [OneHotGroup(0, 4, 4, [(0, 1)]), OneHotGroup(4, 2, 2, [(0, 1)]), OneHotGroup(6, 5, 0, [(1, 1)])]
    sums = CodeSums((1000, 5), groups, torch.device("cpu"))
    table_VH = torch.arange(11.0).unsqueeze(1)
    codes_BC = torch.tensor([[3, 4], [900, 0]], dtype=torch.int32)
    monkeypatch.setattr(code_sums, "WORTH_JOINING", -1000)
    assert sums(codes_BC, table_VH).tolist() == [[3 + 4 + UNSEEN + 6 + 4], [0 + UNSEEN + 4 + UNSEEN + 6]]


def test_training_uses_what_scoring_has_made() -> None:
    model = TabularFastKAN(changed(CONFIG, **{**NOTHING, **CASES["codes alone"]}))
    arrays = batch(model.config)
    layer = model.first_layer
    assert layer is not None
    with torch.inference_mode():
        model.encoder.first_layer_on_gpu(layer, None, arrays["categorical"])
    first_output(model, arrays, on_gpu=True)
