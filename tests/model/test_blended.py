"""A blend is the weighted mean of two models, and reads back to the same function."""

from typing import Any

import numpy as np
import pytest
import torch

from dkan_core.errors import DataError
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.build import build_model
from dkan_core.model.ensemble import mean_log_odds
from dkan_core.model.parameter_count import count_parameters
from tests.model.architectures import BLEND, BLENDED, CONFIG, changed

ROWS = 50


@pytest.fixture(scope="module")
def blend() -> BlendedFastKAN:
    torch.manual_seed(0)
    model = build_model(BLENDED).eval()
    assert isinstance(model, BlendedFastKAN)
    for name, parameter in model.named_parameters():
        if not name.endswith("rbf.grid"):
            torch.nn.init.normal_(parameter, std=0.4)
    model.calibrate(1.3, -0.2)
    return model


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, cardinality, ROWS) for cardinality in CONFIG.cardinalities], axis=1)
    return torch.from_numpy(rng.integers(0, 256, (ROWS, 3), dtype=np.uint8)), torch.from_numpy(codes.astype(np.int32))


@torch.no_grad()
def test_log_odds_are_the_weighted_mean_of_both_models_and_then_calibrated(blend: BlendedFastKAN) -> None:
    numeric, categorical = inputs()
    network, additive = blend.network_alone(), blend.additive.eval()
    both = 0.75 * network(numeric, categorical) + 0.25 * additive(numeric, categorical)
    torch.testing.assert_close(blend(numeric, categorical), 1.3 * both - 0.2)
    assert (network(numeric, categorical) - additive(numeric, categorical)).abs().max() > 0.1


@torch.no_grad()
def test_each_member_is_blended(blend: BlendedFastKAN) -> None:
    numeric, categorical = inputs()
    of_network_MBL = blend.network_alone().member_logits(numeric, categorical)
    expected_MBL = 0.75 * of_network_MBL + 0.25 * blend.additive(numeric, categorical)
    torch.testing.assert_close(blend.member_logits(numeric, categorical), expected_MBL)
    assert (mean_log_odds(of_network_MBL) - of_network_MBL).abs().max() > 0.1


def test_parts_put_together_again_are_the_blend(blend: BlendedFastKAN) -> None:
    again = BlendedFastKAN.of(blend.network_alone(), blend.additive, BLEND)
    assert {*again.state_dict()} == {*blend.state_dict()}
    again.calibrate(1.3, -0.2)
    torch.testing.assert_close(again(*inputs()), blend(*inputs()), rtol=0, atol=0)


def test_parameters_are_counted_before_anything_is_allocated(blend: BlendedFastKAN) -> None:
    assert count_parameters(BLENDED) == sum(tensor.numel() for tensor in blend.state_dict().values())


@torch.no_grad()
@pytest.mark.parametrize("alone", [False, True])
def test_numbers_of_ids_are_added_to_the_terms(alone: bool) -> None:
    sparse = ({"codes": 5, "ones": 2.0}, {"codes": 3, "ones": 1.0})
    others: dict[str, Any] = {"blended": {**BLEND.model_dump(), "ids": True}}
    if alone:
        nothing = {"form": "tables", "upper": (), "monotone": (), "pairs": (), "binned": ()}
        others = dict.fromkeys(("binary", "cardinalities", "embedded", "indicators", "missing"), ())
        others |= {"num_numeric": 0, "blended": {"weight": 0.25, "coded": (), "additive": nothing, "ids": True}}
    config = changed(CONFIG, sparse=sparse, **others)
    model = build_model(config).eval()
    assert isinstance(model, BlendedFastKAN) and model.additive.ids is not None
    torch.nn.init.normal_(model.additive.ids.weight[1:])
    codes = torch.tensor([[1, 8], [2, 0], [0, 0]], dtype=torch.int32)
    numeric, categorical = (None, None) if alone else (each[:3] for each in inputs())
    none = model(numeric, categorical, torch.zeros_like(codes))
    weight_VL = model.additive.ids.weight
    expected_BL = none + 0.25 * torch.stack([weight_VL[1] + weight_VL[8], weight_VL[2], torch.zeros(2)])
    # The network has learned nothing of them.
    torch.testing.assert_close(model(numeric, categorical, codes), expected_BL)
    assert count_parameters(config) == sum(tensor.numel() for tensor in model.state_dict().values())
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_architecture_is_the_same_after_a_file() -> None:
    assert ModelConfig.from_dict(BLENDED.to_dict()) == BLENDED
    assert "blended" not in CONFIG.to_dict()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": 1.0}, r"blended\.weight"),
        ({"weight": 0.0}, r"blended\.weight"),
        ({"coded": (0, 7)}, "must hold indexes below 2, got 7"),
        ({"coded": (0,)}, "additive.binned: 4 is no feature with a term"),
        ({"coded": (0, 1, 1)}, "indicators: holds a value twice"),
        ({"additive": {**BLEND.additive.model_dump(), "form": "curves"}}, "form: must be tables"),
        ({"additive": {**BLEND.additive.model_dump(), "upper": ()}}, "one code for each binary feature"),
    ],
    ids=str,
)
def test_odd_blends_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        changed(CONFIG, blended={**BLEND.model_dump(), **change})


def test_no_other_model_is_blended() -> None:
    plain = {"model": "fastkan", "members": 1, "binary": (), "indicators": (), "missing": ()}
    with pytest.raises(DataError, match="blended: must not be there for model fastkan"):
        changed(CONFIG, **plain, blended=BLEND.model_dump())


@torch.no_grad()
def test_slopes_of_tables_are_those_of_their_neighbours(blend: BlendedFastKAN) -> None:
    numeric, _ = inputs()
    found_BFL = blend.term_slopes(numeric)
    assert found_BFL.shape == (ROWS, 3, 2) and not found_BFL[:, 1].any(), "the second feature is binary"
    table_VL, step = 0.25 * 1.3 * blend.additive.mean_table(), 6 / 254
    for row, code in enumerate(numeric[:, 2].tolist()):
        indices = blend.additive.score_rows[2]
        before, after = max(code - 1, 1), min(code + 1, 255)
        rise_L = table_VL[indices[after]] - table_VL[indices[before]]
        torch.testing.assert_close(found_BFL[row, 2], rise_L / (max(1, after - before) * step))
