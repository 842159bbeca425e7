"""The sizes from which on dividing a model would pay are those that no longer fit into one device."""

import pytest

from dkan_core import TrainConfig
from dkan_core.model.build import build_model
from dkan_core.training.compute.flat_model import parameter_count
from dkan_core.training.planning.device_memory import RESERVED_SHARE
from dkan_core.training.planning.model_parallel import BYTES_PER_PARAMETER, ModelParallelPlan, model_parallel_plans
from dkan_core.training.setup.defaults import resolve
from tests.model.architectures import CONFIG, changed

MEMORY = 4 << 20


def parameters(hidden: tuple[int, ...]) -> int:
    return parameter_count(build_model(changed(CONFIG, hidden=hidden)))


def divided(hidden: tuple[int, ...], memory: float | None, workers: int = 4) -> tuple[ModelParallelPlan, ...]:
    asked = TrainConfig(device="cpu", hidden=hidden, members=CONFIG.members, num_centers=CONFIG.num_centers)
    config = resolve(asked, 1000)
    return model_parallel_plans(parameters(hidden), config, len(CONFIG.labels), workers, memory)


@pytest.mark.parametrize("hidden", [(32,), (32, 64), (64, 32, 32)])
def test_width_and_depth_from_which_on_it_pays_fill_the_memory_of_a_device(hidden: tuple[int, ...]) -> None:
    found = {each.strategy: each for each in divided(hidden, MEMORY)}
    width, layers = found["tensor-parallel"].hidden_from, found["pipeline"].layers_from
    assert width is not None and layers is not None and found["hybrid"].hidden_from == width
    fits = (1 - RESERVED_SHARE) * MEMORY / BYTES_PER_PARAMETER
    # Biases and norms are not counted for each width.
    grown = tuple(round(width * each / hidden[0]) for each in hidden)
    assert parameters(grown) == pytest.approx(fits, rel=0.05)
    deep, less = (hidden[0],) * layers, (hidden[0],) * (layers - 1)
    assert parameters(less) < 1.05 * fits and parameters(deep) > fits


def test_workers_hold_shares_of_all_layers_but_the_last() -> None:
    last = BYTES_PER_PARAMETER * CONFIG.members * 32 * len(CONFIG.labels) * (CONFIG.num_centers + 1)
    for workers in (2, 4):
        found = divided((32, 32), MEMORY, workers)[0]
        assert found.bytes_whole == BYTES_PER_PARAMETER * parameters((32, 32))
        assert found.bytes_per_worker == pytest.approx((found.bytes_whole - last) / workers + last)


def test_hybrid_needs_two_groups_and_additive_models_are_not_divided() -> None:
    assert [each.strategy for each in divided((32,), None, workers=3)] == ["tensor-parallel", "pipeline"]
    assert all(each.hidden_from is None and each.layers_from is None for each in divided((32,), None))
    additive = resolve(TrainConfig(device="cpu", model="additive"), 1000)
    assert model_parallel_plans(1000, additive, 1, 4, MEMORY) == ()
