"""The input encoder and the whole model."""

from dataclasses import replace

import pytest
import torch

from dkan_core.model.tabular import ModelConfig, TabularFastKAN, decode_scores

CONFIG = ModelConfig(
    labels=("a", "b"),
    num_numeric=3,
    cardinalities=(5, 4),
    embedded=(0,),
    embedding_dim=2,
    hidden=(6,),
    num_centers=4,
    grid_min=-2.0,
    grid_max=2.0,
    input_norm="none",
    dropout=0.0,
)


def test_uint8_decodes_to_evenly_spaced_scores_and_zero_where_missing() -> None:
    codes = torch.arange(256, dtype=torch.uint8)[None]
    decoded = decode_scores(codes)[0]
    assert decoded[0] == 0
    torch.testing.assert_close(decoded[1:], torch.linspace(-3, 3, 255), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_floats_decode_to_themselves_and_zero_where_missing(dtype: torch.dtype) -> None:
    decoded = decode_scores(torch.tensor([[float("nan"), -1.5]], dtype=dtype))
    assert decoded.tolist() == [[0.0, -1.5]] and decoded.dtype == torch.float32


@pytest.mark.parametrize(
    ("config", "numeric", "categorical"),
    [
        (CONFIG, True, True),
        (replace(CONFIG, cardinalities=(), embedded=()), True, False),
        (replace(CONFIG, num_numeric=0), False, True),
        (replace(CONFIG, hidden=()), True, True),
        (replace(CONFIG, hidden=(6, 5), input_norm="layer", labels=("a",)), True, True),
    ],
    ids=["both", "numeric", "categorical", "no-hidden", "deep"],
)
def test_one_logit_a_label(config: ModelConfig, numeric: bool, categorical: bool) -> None:
    rows = torch.randint(0, 256, (7, 3), dtype=torch.uint8) if numeric else None
    codes = torch.randint(0, 4, (7, 2), dtype=torch.int32) if categorical else None
    assert TabularFastKAN(config)(rows, codes).shape == (7, len(config.labels))


def test_every_code_has_a_weight_of_its_own() -> None:
    model = TabularFastKAN(CONFIG)
    assert model.encoder.indicators is not None and model.encoder.indicators.weight.shape == (9, 6)
    numeric = torch.zeros(1, 3, dtype=torch.uint8)
    before = model(numeric, torch.tensor([[4, 3]]))
    with torch.no_grad():
        model.encoder.indicators.weight[5 + 3] += 1.0
    assert not torch.equal(model(numeric, torch.tensor([[4, 3]])), before)
    untouched = model(numeric, torch.tensor([[4, 2]]))
    with torch.no_grad():
        model.encoder.indicators.weight[5 + 3] += 1.0
    assert torch.equal(model(numeric, torch.tensor([[4, 2]])), untouched)


def test_architecture_survives_its_plain_form() -> None:
    import json

    assert ModelConfig.from_dict(json.loads(json.dumps(CONFIG.to_dict()))) == CONFIG
