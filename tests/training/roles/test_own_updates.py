"""A process that trains alone: with the optimizer in the store, or where the model is."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.loading.in_memory import ArraysReader
from dkan_core.data.loading.loader import SliceBatches
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import decayed_ranges, flatten
from dkan_core.training.compute.local_steps import HostSteps
from dkan_core.training.roles import own_updates
from dkan_core.training.roles.own_updates import OwnSteps, OwnUpdates
from dkan_core.training.roles.stopwatch import Stopwatch
from dkan_core.training.state.parameter_store import ParameterStore, Rules, initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from tests.training.compute.test_device_steps import network, rows_in_memory, settings


def stores(config: ResolvedTrainConfig, reader: ArraysReader | None = None) -> Iterator[ParameterStore]:
    """Yield the store after every commit of a run."""
    reader = reader or rows_in_memory()
    model = network(config)
    rules = Rules.from_config(config, reader.rows, decayed_ranges(model, config, reader.rows))
    values = flatten(model).numpy()
    memory = create_memory(MemoryShape(parameters=len(values), workers=1, average=config.ema_decay > 0))
    os.close(memory.handle)
    initialize_store(memory, values)
    store = ParameterStore(memory, rules)
    batches = SliceBatches(reader, config, 0)
    replica = Replica(model, torch.device("cpu"))
    stopwatch = Stopwatch(memory.worker_times[0])
    source: OwnSteps | OwnUpdates
    if config.takes_local_steps:
        source = OwnSteps(store, HostSteps(replica, batches, rules), stopwatch)
    else:
        source = OwnUpdates(store, replica, lambda step: batches.get(step, 0), stopwatch)
    while store.ledger.step < rules.schedule.steps:
        store.apply_updates(source.next_updates())
        yield store
    batches.close()


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.9}])
def test_optimizer_may_be_where_the_model_is(changes: dict[str, Any]) -> None:
    plain = settings(**{"strategy": "single", "sync_interval": None, "epochs": 2, "clip_norm": None, **changes})
    *_, expected = stores(plain)
    *_, found = stores(replace(plain, device="cuda:0"))
    np.testing.assert_array_equal(found.state_KP, expected.state_KP)
    for name in ("units_done", "step", "digest", "rows"):
        assert getattr(found.ledger, name) == getattr(expected.ledger, name), name


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({}, [1, 8, 16]),
        ({"evaluations_per_epoch": 3}, [1, 3, 6, 8, 11, 14, 16]),
        ({"checkpoint_steps": 5}, [1, 5, 8, 10, 15, 16]),
        ({"batch_size": 80}, [1, 11, 13, 23, 26]),
    ],
)
def test_steps_are_committed_when_something_is_due(
    changes: dict[str, Any], steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_updates, "MAX_STEPS", 10)
    monkeypatch.setattr(own_updates, "MAX_SECONDS", 1e9)
    config = settings(**{"strategy": "single", "sync_interval": None, "epochs": 2, "clip_norm": None, **changes})
    assert [store.ledger.step for store in stores(replace(config, device="cuda:0"))] == steps


def test_steps_that_take_long_are_committed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_updates, "MAX_SECONDS", 1e-9)
    config = settings(strategy="single", sync_interval=None, epochs=1)
    assert [store.ledger.step for store in stores(replace(config, device="cuda:0"))] == list(range(1, 9))


@pytest.mark.parametrize("poisoned", [[10, 700], list(range(0, 1000, 50))])
def test_steps_that_lead_to_no_finite_numbers_are_refused_alone(
    poisoned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_updates, "MAX_SECONDS", 1e9)
    reader = rows_in_memory()
    reader.arrays["weight"][poisoned] = np.inf
    reader.arrays["labels"][poisoned] = 1
    plain = settings(strategy="single", sync_interval=None, epochs=1, clip_norm=None)
    *_, expected = stores(plain, reader)
    *_, found = stores(replace(plain, device="cuda:0"), reader)
    assert found.ledger.refused == expected.ledger.refused > 0
    assert (found.ledger.backoffs, found.ledger.rows) == (expected.ledger.backoffs, expected.ledger.rows)
    np.testing.assert_array_equal(found.state_KP, expected.state_KP)
