"""Changed rows are scored from what changes alone, and get what they would get as a whole."""

from typing import Any

import numpy as np
import pytest
import torch

from dkan_core.config.train import Kernel
from dkan_core.explanation import model_response
from dkan_core.explanation.columns import Cells, Column, Settings
from dkan_core.explanation.model_response import ModelResponse
from dkan_core.explanation.response import Response, respond
from dkan_core.model.build import build_model
from dkan_core.model.kernels import use_kernel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.scoring import probabilities
from dkan_core.utils.arrays import Arrays
from tests.model.architectures import BLEND, CONFIG, PLAIN, changed

CPU = torch.device("cpu")
# Three numbers, of which the second is binary, and two coded features: the first is a category, embedded, and both are
# in a one-hot group.
NUMBER = Column(name="number", numeric_index=0)
BINARY = Column(name="binary", numeric_index=1)
CATEGORY = Column(name="category", code_index=0)
BOTH = Column(name="both", numeric_index=2, code_index=1)


def make_model(**changes: Any) -> TabularFastKAN:
    config = PLAIN if changes.pop("plain", False) else CONFIG
    torch.manual_seed(0)
    model = build_model(changed(config, **changes)).eval()
    assert isinstance(model, TabularFastKAN)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    model.calibrate(1.3, -0.2)
    return model


def make_arrays(rows: int, dtype: str) -> Arrays:
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(0, cardinality, rows) for cardinality in CONFIG.cardinalities], axis=1)
    if dtype == "uint8":
        return {"numeric": rng.integers(0, 256, (rows, 3), dtype=np.uint8), "categorical": codes.astype(np.int32)}
    scores = rng.normal(size=(rows, 3)).astype(dtype)
    scores[rng.random((rows, 3)) < 0.2] = np.nan
    return {"numeric": scores, "categorical": codes.astype(np.int32)}


def cells_like(column: Column, arrays: Arrays, rows: np.ndarray[Any, Any]) -> Cells:
    held = {name: arrays[name][rows, index] for name, index in column.indices}
    return Cells(held.get("numeric"), held.get("categorical"))


@pytest.mark.parametrize(
    ("changes", "dtype", "kernel"),
    [
        ({}, "uint8", "auto"),
        ({}, "float32", "auto"),
        ({}, "float16", "eager"),
        ({"hidden": (6, 4)}, "uint8", "eager"),
        ({"binary": (0, 1, 2), "embedded": ()}, "uint8", "auto"),
        ({"plain": True}, "float32", "recompute"),
        ({"ignored_features": (2,)}, "uint8", "auto"),
        ({"input_norm": "layer"}, "uint8", "auto"),
        ({"blended": BLEND.model_dump()}, "uint8", "auto"),
        ({"blended": BLEND.model_dump()}, "float16", "auto"),
        ({"blended": BLEND.model_dump(), "input_norm": "layer"}, "uint8", "auto"),
    ],
)
@pytest.mark.parametrize("rows", [40, 700])
def test_changed_rows_get_what_they_would_get_as_a_whole(
    changes: dict[str, Any], dtype: str, kernel: Kernel, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several chunks, and rows whose first layer is not kept.
    monkeypatch.setattr(model_response, "CHUNK_OUTPUTS", 18 * 300)
    monkeypatch.setattr(model_response, "KEPT_OUTPUTS", 18 * 500)
    model, arrays = make_model(**changes), make_arrays(rows, dtype)
    use_kernel(model, kernel)
    response = ModelResponse(model, CPU, [1, 0], arrays)
    whole = Response(
        lambda each: probabilities.log_odds(model, each, CPU)[:, [1, 0]].numpy().astype(np.float64), arrays
    )
    np.testing.assert_allclose(response.log_odds_NL, whole.log_odds_NL, atol=1e-5)
    np.testing.assert_array_equal(response.unclipped_NL[:, [1, 0]], response.log_odds_NL)
    order, chosen = np.random.default_rng(1).permutation(rows), np.arange(0, rows, 2)
    for columns in ([NUMBER], [BINARY], [CATEGORY], [BOTH], [CATEGORY, BOTH], [NUMBER, BINARY]):
        settings: Settings = [(column, cells_like(column, arrays, order[chosen])) for column in columns]
        found, wanted = (each.to_changed(chosen, settings) for each in (response, whole))
        assert np.abs(wanted - whole.log_odds_NL[chosen]).max() > 0.01
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_changes_that_are_scored_together_get_what_each_gets_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_response, "CHUNK_OUTPUTS", 18 * 50)
    arrays = make_arrays(100, "uint8")
    for model in (make_model(), make_model(input_norm="layer"), make_model(blended=BLEND.model_dump())):
        response = ModelResponse(model, CPU, [0, 1], arrays)
        changes = [
            (np.arange(start, stop), [(column, cells_like(column, arrays, np.arange(stop - start)))])
            for start, stop in ((0, 20), (10, 35), (0, 0), (5, 95), (40, 60), (0, 50))
            for column in (NUMBER, BOTH)
        ]
        found = [*response.to_changes(changes)]
        assert [len(each) for each in found] == [len(rows) for rows, _ in changes]
        for change, each in zip(changes, found, strict=True):
            np.testing.assert_allclose(each, response.to_changed(*change), atol=1e-5)
    assert [*response.to_changes([])] == []


def test_members_of_a_blend_each_have_their_own_network_and_all_the_additive_model() -> None:
    model, arrays = make_model(blended=BLEND.model_dump(), members=1), make_arrays(60, "uint8")
    response, rows = ModelResponse(model, CPU, [1, 0], arrays), np.arange(0, 60, 2)
    settings: Settings = [(BOTH, cells_like(BOTH, arrays, rows[::-1].copy()))]
    found = response.of_members(rows, settings)
    np.testing.assert_allclose(found[:, 1], found[:, 0], atol=1e-5)
    np.testing.assert_allclose(found[:, 0], response.to_changed(rows, settings)[:, 0], atol=1e-5)


def test_only_the_rows_that_change_and_the_columns_that_do_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, arrays = make_model(), make_arrays(100, "uint8")
    response = ModelResponse(model, CPU, [0], arrays)
    monkeypatch.setattr(model, "first_output", None)
    values = cells_like(BOTH, arrays, np.arange(3))
    found = respond(response, 50, [(BOTH, values)])
    assert found.shape == (3, 50) and (found[0] != found[1]).any()
    assert found[0, 0] == pytest.approx(response.log_odds_NL[0, 0], abs=1e-5)
    assert response.to_changed(np.arange(0), [(BOTH, values[:0])]).shape == (0, 1)


def test_log_odds_are_cut_off_where_float32_leaves_no_digits() -> None:
    model, arrays = make_model(), make_arrays(50, "uint8")
    model.calibrate(1000.0, 0.0)
    response = ModelResponse(model, CPU, [0, 1], arrays)
    assert np.abs(response.unclipped_NL).max() > 16 == np.abs(response.log_odds_NL).max()
    assert np.abs(response.to_changed(np.arange(50), [(NUMBER, cells_like(NUMBER, arrays, np.arange(50)))])).max() == 16


@pytest.mark.parametrize("changes", [{}, {"input_norm": "layer"}, {"members": 1}], ids=str)
def test_members_stand_beside_what_they_say_together(changes: dict[str, Any]) -> None:
    model, arrays = make_model(**changes), make_arrays(60, "uint8")
    response, rows = ModelResponse(model, CPU, [1, 0], arrays), np.arange(0, 60, 2)
    settings: Settings = [(BOTH, cells_like(BOTH, arrays, rows[::-1].copy()))]
    found = response.of_members(rows, settings)
    assert found.shape == (30, 1 + model.config.members)
    np.testing.assert_allclose(found[:, 0], response.to_changed(rows, settings)[:, 0], atol=1e-5)
    probability = 1 / (1 + np.exp(-(found[:, 1:] + 0.2) / 1.3))
    mean = probability.mean(axis=1)
    # The mean of the probabilities before calibration, as ``make_model`` set it, and then the calibration.
    np.testing.assert_allclose(1.3 * np.log(mean / (1 - mean)) - 0.2, found[:, 0], atol=1e-4)
