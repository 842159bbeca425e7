"""What a GPU's first layer computes is what its formula says, however codes are looked up."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dkan_core.model import code_sums, gpu_first_layer
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.code_sums import CodeSums
from dkan_core.model.kernels.native_input import OneHotGroup
from dkan_core.model.tabular import TabularFastKAN
from tests.model.architectures import CONFIG, changed

ROWS = 300
CARDINALITIES = (5, 3, 9, 4500, 2, 40)
CODED = {
    "cardinalities": CARDINALITIES,
    "embedded": (0, 2, 3, 5),
    "indicators": ((1,), (2,), (3,), (4,), (0, 1), (4, 0, 1), (2, 5)),
    "missing": (0, 5),
}
NOTHING = {"binary": (), "cardinalities": (), "embedded": (), "indicators": (), "missing": ()}
CASES = {
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
    case: dict[str, object], joint: bool, in_table: bool, floats: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_sums, "WORTH_JOINING", -(10**6) if joint else 10**6)
    monkeypatch.setattr(gpu_first_layer, "MAX_TABLE_CODES", 10**4 if in_table else 0)
    config = changed(CONFIG, **{**NOTHING, **case})
    torch.manual_seed(0)
    model = TabularFastKAN(config)
    if model.encoder.indicators is not None:
        torch.nn.init.normal_(model.encoder.indicators.weight)
    arrays = batch(config, floats=floats)
    found = first_output(model, arrays, on_gpu=True)
    for each, expected in zip(found, first_output(model, arrays, on_gpu=False), strict=True):
        torch.testing.assert_close(each, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_joint_values_take_fewer_lookups() -> None:
    """A cross takes in its columns, and small columns share a group."""
    groups = [OneHotGroup(0, 12, 0, [(0, 4), (1, 1)])]
    first = 12
    for feature, count in enumerate((3, 4, 9, 5)):
        groups.append(OneHotGroup(first, count, 0, [(feature, 1)]))
        first += count
    sums = CodeSums((3, 4, 9, 5), groups, torch.device("cpu"))
    codes_BC = torch.tensor([[2, 1, 8, 0], [0, 3, 1, 4]], dtype=torch.int32)
    assert sums._direct.look_up(codes_BC).shape == (2, 5)
    assert sums._joint.look_up(codes_BC).tolist() == [[2 * 4 + 1, 12 + 8 * 5 + 0], [3, 12 + 1 * 5 + 4]]
