"""Updates that are no finite numbers are refused; the others are aggregated as their mode says."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dkan_core import TrainingError
from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.state.adamw import FlatAdamW, ParameterGroups
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import (
    MAX_BACKOFFS,
    REFUSED_BEFORE_BACKOFF,
    ParameterStore,
    UpdateRules,
    initialize_store,
    save_restore_point,
)
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from tests.settings import resolved

P = 40_000
CONFIG = resolved(epochs=10, batch_size=10, learning_rate=0.1, workers=2, sync_interval=1, weight_decay=0.0)


def store_of(config: ResolvedTrainConfig = CONFIG) -> ParameterStore:
    memory = create_memory(MemoryShape(parameters=P, workers=2, average=config.ema_decay > 0))
    os.close(memory.handle)
    initialize_store(memory, np.linspace(-1, 1, P, dtype=np.float32))
    return ParameterStore(memory, UpdateRules.from_config(config, 1000, ParameterGroups()))


def push(index: int, values: float | npt.NDArray[np.float32], **facts: float) -> WorkerUpdate:
    array = np.full(P, values, np.float32) if isinstance(values, float) else values
    defaults: dict[str, Any] = {
        "rank": index % 2,
        "lease": index,
        "loss": 0.5,
        "weight": 1.0,
        "rows": 5,
        "staleness": 0,
    }
    return WorkerUpdate(unit=index, array_P=array, **{**defaults, **facts})


def gradients(step: int, *values: float, **facts: float) -> list[WorkerUpdate]:
    return [push(2 * step + rank, value, **facts) for rank, value in enumerate(values)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_update_that_is_not_finite_is_refused_and_counted(bad: float) -> None:
    store = store_of()
    store.apply_updates(gradients(0, 1.0, 2.0))
    before = store.state_KP.copy()
    store.apply_updates(gradients(1, 1.0, bad))
    assert np.array_equal(store.state_KP, before)
    assert store.ledger.refused == 1 and store.ledger.step == 2 and store.ledger.rows == 20
    store.apply_updates(gradients(2, 1.0, 1.0))
    assert not np.array_equal(store.state_KP, before) and np.isfinite(store.state_KP).all()
    assert store.ledger.refused_in_a_row == 0 and store.lr_scale == 1


def test_loss_that_is_not_finite_refuses_the_update_and_stays_out_of_the_mean() -> None:
    store = store_of()
    store.apply_updates(gradients(0, 1.0, 1.0, loss=float("nan")))
    assert store.ledger.refused == 1 and store.ledger.figures(10).loss == 0


def test_refused_again_and_again_goes_back_and_halves_the_rate_then_ends() -> None:
    store = store_of()
    store.apply_updates(gradients(0, 1.0, 1.0))
    save_restore_point(store.memory, store.ledger)
    kept = store.state_KP.copy()
    store.apply_updates(gradients(1, 5.0, 5.0))
    step = 2
    for backoff in range(1, MAX_BACKOFFS + 1):
        for _ in range(REFUSED_BEFORE_BACKOFF):
            store.apply_updates(gradients(step, 1.0, float("nan")))
            step += 1
        assert np.array_equal(store.state_KP, kept) and store.lr_scale == 0.5**backoff
    for _ in range(REFUSED_BEFORE_BACKOFF - 1):
        store.apply_updates(gradients(step, 1.0, float("nan")))
        step += 1
    with pytest.raises(TrainingError, match="not finite at step"):
        store.apply_updates(gradients(step, 1.0, float("nan")))


def test_weights_that_are_set_are_named_where_the_loss_is_not_finite() -> None:
    store = store_of(replace(CONFIG, label_weights=(2.0, 1.0)))
    save_restore_point(store.memory, store.ledger)
    store.ledger = replace(store.ledger, backoffs=MAX_BACKOFFS, refused_in_a_row=REFUSED_BEFORE_BACKOFF - 1)
    with pytest.raises(TrainingError, match="check the row weights and label_weights, or lower learning_rate"):
        store.apply_updates(gradients(0, 1.0, float("nan")))


def test_step_whose_result_overflows_is_refused() -> None:
    store = store_of(replace(CONFIG, learning_rate=1e3, weight_decay=1e3))
    store.optimizer = FlatAdamW(ParameterGroups(((0, P, 1e37),)))
    store.apply_updates(gradients(0, 1.0, 1.0))
    assert store.ledger.refused == 1 and np.isfinite(store.state_KP).all()


def test_gradients_count_by_their_measured_labels_and_one_that_has_none_not_at_all() -> None:
    weighted, alone = store_of(), store_of()
    pushes = gradients(0, 3.0, 7.0)
    weighted.apply_updates([replace(pushes[0], weight=4.0), replace(pushes[1], weight=0.0)])
    alone.apply_updates(gradients(0, 3.0, 3.0))
    assert np.array_equal(weighted.state_KP, alone.state_KP)
    alone.apply_updates(gradients(1, 1.0, 1.0, weight=0.0))
    assert np.array_equal(weighted.state_KP, alone.state_KP) and alone.ledger.step == 2


def test_long_gradient_is_scaled_down_to_the_largest_norm() -> None:
    clipped, short = store_of(replace(CONFIG, clip_norm=1.0)), store_of()
    clipped.apply_updates(gradients(0, 3.0, 3.0))
    short.apply_updates(gradients(0, 1 / P**0.5, 1 / P**0.5))
    np.testing.assert_allclose(clipped.state_KP, short.state_KP, rtol=1e-5, atol=1e-9)


def test_parameters_and_moments_are_averaged_by_rows() -> None:
    store = store_of(replace(CONFIG, mode="average", sync_interval=4))
    first, second = (np.random.default_rng(seed).normal(size=3 * P).astype(np.float32) for seed in range(2))
    store.apply_updates([push(0, first, rows=30), push(1, second, rows=10)])
    expected = (0.75 * first + 0.25 * second).reshape(3, P)
    np.testing.assert_allclose(store.state_KP[:3], expected, rtol=1e-5, atol=1e-6)
    assert store.ledger.step == 4
    second[-1] = np.inf
    store.apply_updates([push(2, first), push(3, second)])
    np.testing.assert_allclose(store.state_KP[:3], expected, rtol=1e-5, atol=1e-6)
    assert store.ledger.refused == 1


def test_stale_difference_counts_less() -> None:
    store = store_of(replace(CONFIG, mode="async", sync_interval=4))
    before = store.state_KP[0].copy()
    store.apply_updates([push(0, 1.0)])
    store.apply_updates([push(1, 1.0, staleness=1)])
    np.testing.assert_allclose(store.state_KP[0] - before, 1.5, rtol=1e-5)


@pytest.mark.parametrize(("evaluations", "decay"), [(1, 0.25), (2, 0.5)])
def test_moving_average_takes_the_parameters_of_evaluations_alone(evaluations: int, decay: float) -> None:
    config = replace(CONFIG, batch_size=500, ema_decay=0.25, evaluations_per_epoch=evaluations)
    store, steps = store_of(config), 2 // evaluations
    expected = store.state_KP[0].copy()
    for step in range(1, 9):
        store.apply_updates(gradients(step - 1, 1.0, -2.0))
        if step % steps == 0:
            share = 1 - decay if step > steps else 1.0
            expected = (1 - share) * expected + share * store.state_KP[0]
        np.testing.assert_allclose(store.state_KP[3], expected, rtol=1e-5, atol=1e-6)


def test_moving_average_decays_for_every_evaluation_that_one_commit_passes() -> None:
    settings: dict[str, Any] = {"batch_size": 250, "sync_interval": 2, "mode": "average", "workers": 1, "device": "cpu"}
    store = store_of(replace(CONFIG, **settings, ema_decay=0.25, evaluations_per_epoch=4))
    averages = []
    for unit, value in enumerate([1.0, 0.0, 0.0]):
        store.apply_updates([push(unit, np.full(3 * P, value, np.float32), rank=0)])
        averages.append(float(store.state_KP[3, 0]))
    assert averages == pytest.approx([1.0, 0.5, 0.25]), "a quarter after an epoch of two commits"
