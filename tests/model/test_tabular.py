"""The input encoder and the whole model."""

import json

import numpy as np
import pytest
import torch

from dkan_core.model.architecture import MAX_ONE_HOT_CODES, ModelConfig, ignoring
from dkan_core.model.decoding import decode_scores
from dkan_core.model.encoder import OneHotWeights
from dkan_core.model.parameter_count import count_parameters, count_trained
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import parameter_count
from tests.model.architectures import CONFIG, PLAIN, changed


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
        (changed(CONFIG, cardinalities=(), embedded=(), indicators=(), missing=()), True, False),
        (changed(CONFIG, num_numeric=0, binary=()), False, True),
        (changed(CONFIG, binary=(0, 1, 2), cardinalities=(), embedded=(), indicators=(), missing=()), True, False),
        (changed(CONFIG, members=1), True, True),
        (PLAIN, True, True),
        (changed(CONFIG, hidden=()), True, True),
        (changed(PLAIN, hidden=(6, 5), input_norm="layer"), True, True),
        (changed(CONFIG, hidden=(6, 5), input_norm="layer", labels=("a",)), True, True),
        (changed(CONFIG, sketch_rank=2, sketch_seed=5), True, True),
        (changed(PLAIN, hidden=(), sketch_rank=1), True, True),
        (ignoring(CONFIG, (0, 1)), True, True),
        (ignoring(CONFIG, (0, 1, 2, 3)), True, True),
    ],
    ids=[
        "both",
        "numeric",
        "categorical",
        "all-binary",
        "one-member",
        "plain",
        "no-hidden",
        "plain-deep",
        "deep",
        "sketched",
        "sketched-no-hidden",
        "ignoring-some",
        "ignoring-most",
    ],
)
def test_one_logit_a_label_from_the_parameters_counted(config: ModelConfig, numeric: bool, categorical: bool) -> None:
    rows = torch.randint(0, 256, (7, 3), dtype=torch.uint8) if numeric else None
    codes = torch.randint(0, 4, (7, 2), dtype=torch.int32) if categorical else None
    model = TabularFastKAN(config)
    assert model(rows, codes).shape == (7, len(config.labels))
    assert count_parameters(config) == sum(tensor.numel() for tensor in model.state_dict().values())
    assert count_trained(config) == parameter_count(model)


def test_each_joint_value_of_a_group_has_a_vector_of_its_own() -> None:
    one_hots = OneHotWeights((2, 3, 4), [(1,), (0, 2), (2, 1, 0)], [2], 5)
    codes = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4))
    assert one_hots.weight.shape == (3 + 2 + 8 + 24, 5)
    with torch.no_grad():
        one_hots.weight[:, 0] = torch.arange(37.0)
    a, b, c = codes.T
    expected = b + (3 + (c == 1).int()) + (5 + a * 4 + c) + (13 + (c * 3 + b) * 2 + a)
    assert torch.equal(one_hots(codes.int())[:, 0], expected.float())


def test_rare_codes_beyond_the_most_frequent_ones_count_as_unseen() -> None:
    one_hots = OneHotWeights((MAX_ONE_HOT_CODES + 10,), [(0,)], [], 1)
    with torch.no_grad():
        one_hots.weight[:, 0] = torch.arange(float(MAX_ONE_HOT_CODES))
    codes = torch.tensor([[0], [MAX_ONE_HOT_CODES - 1], [MAX_ONE_HOT_CODES], [MAX_ONE_HOT_CODES + 9]])
    assert one_hots(codes.int())[:, 0].tolist() == [0, MAX_ONE_HOT_CODES - 1, 0, 0]


def test_a_binary_column_costs_one_weight_an_output() -> None:
    def parameters(binary: tuple[int, ...]) -> int:
        config = changed(
            CONFIG, num_numeric=100, binary=binary, cardinalities=(), embedded=(), indicators=(), missing=()
        )
        return sum(parameter.numel() for parameter in TabularFastKAN(config).parameters() if parameter.requires_grad)

    outputs = CONFIG.members * CONFIG.hidden[0]
    assert parameters(()) - parameters(tuple(range(50))) == 50 * outputs * CONFIG.num_centers


def test_calibration_holds_until_it_is_taken_back() -> None:
    model = TabularFastKAN(CONFIG).eval()
    rows = torch.randint(0, 256, (7, 3), dtype=torch.uint8), torch.randint(0, 4, (7, 2), dtype=torch.int32)
    before = model(*rows)
    model.calibrate(np.array([2, 3], np.float32), np.array([1, -1], np.float32))
    torch.testing.assert_close(model(*rows), before * torch.tensor([2.0, 3.0]) + torch.tensor([1.0, -1.0]))
    model.calibrate()
    assert torch.equal(model(*rows), before)


def test_binary_inputs_are_dropped_in_training_alone() -> None:
    torch.manual_seed(0)
    model = TabularFastKAN(changed(CONFIG, binary_dropout=0.5))
    rows = torch.full((200, 3), 255, dtype=torch.uint8), torch.zeros(200, 2, dtype=torch.int32)
    assert len(model.train()(*rows).unique(dim=0)) == 2
    assert len(model.eval()(*rows).unique(dim=0)) == 1


def test_architecture_survives_its_plain_form() -> None:
    import json

    assert ModelConfig.from_dict(json.loads(json.dumps(CONFIG.to_dict()))) == CONFIG


OLD_CONFIG = (
    '{"labels": ["a", "b"], "model": "auto", "num_numeric": 3, "binary": [1], "cardinalities": [5, 4], '
    '"embedded": [0], "indicators": [[0], [0, 1]], "missing": [1], "embedding_dim": 2, "members": 3, "hidden": [6], '
    '"num_centers": 4, "grid_min": -2.0, "grid_max": 2.0, "input_norm": "none", "dropout": 0.0, "binary_dropout": 0.0}'
)
"""A ``config.json`` as version 0.2.0 wrote it."""


def test_architecture_of_an_earlier_version_is_read_and_written_as_it_was() -> None:
    config = ModelConfig.from_dict(json.loads(OLD_CONFIG))
    assert config == CONFIG and config.one_hot_groups == ((0,), (0, 1))
    assert json.dumps(config.to_dict()) == OLD_CONFIG
    assert "encoder.indicators.weight" in TabularFastKAN(config).state_dict()
