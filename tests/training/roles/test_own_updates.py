"""A process that trains alone, with the optimizer where the model is, takes the steps of a parameter server."""

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
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.training.compute.local_steps import HostSteps
from dkan_core.training.roles import own_updates
from dkan_core.training.roles.own_updates import OwnSteps
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore, UpdateRules, initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.training.state.stopwatch import Stopwatch
from dkan_core.utils.arrays import Arrays
from tests.training.compute.test_device_steps import network, rows_in_memory, settings

SERVER = "parameter-server"


def stores(config: ResolvedTrainConfig, reader: ArraysReader | None = None) -> Iterator[ParameterStore]:
    """Yield the store after every commit of a run."""
    reader = reader or rows_in_memory()
    model = network(config)
    rules = UpdateRules.from_config(config, reader.rows, parameter_groups(model, config, reader.rows))
    values = flatten(model).numpy()
    memory = create_memory(MemoryShape(parameters=len(values), workers=1, average=config.ema_decay > 0))
    os.close(memory.handle)
    initialize_store(memory, values)
    store = ParameterStore(memory, rules)
    batches = SliceBatches(reader, config, 0)
    replica = Replica(model, torch.device("cpu"))
    stopwatch = Stopwatch(memory.worker_times[0])
    source = OwnSteps(store, HostSteps(replica, batches, rules), stopwatch) if config.takes_local_steps else None
    while (step := store.ledger.step) < rules.schedule.steps:
        updates = [gradient_of(replica, store, batches.get(step, 0))] if source is None else source.next_updates()
        store.apply_updates(updates)
        yield store
    batches.close()


def gradient_of(replica: Replica, store: ParameterStore, rows: Arrays) -> WorkerUpdate:
    """Return what the one worker of a parameter server pushes."""
    replica.load(store.state_KP[0])
    replica.bind_gradient_array(store.memory.pushes_WN[0])
    totals = replica.compute_gradient(rows, store.rules.config)
    return WorkerUpdate(unit=store.ledger.units_done, array_P=store.memory.pushes_WN[0], **totals._asdict())


@pytest.mark.parametrize("changes", [{}, {"ema_decay": 0.9}, {"clip_norm": 0.05}])
def test_optimizer_may_be_where_the_model_is(changes: dict[str, Any]) -> None:
    plain = settings(**{"strategy": SERVER, "sync_interval": None, "epochs": 2, "clip_norm": None, **changes})
    *_, expected = stores(plain)
    *_, found = stores(replace(plain, strategy="single"))
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
    assert [store.ledger.step for store in stores(config)] == steps


def test_steps_that_take_long_are_committed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_updates, "MAX_SECONDS", 1e-9)
    config = settings(strategy="single", sync_interval=None, epochs=1)
    assert [store.ledger.step for store in stores(config)] == list(range(1, 9))


@pytest.mark.parametrize("poisoned", [[10, 700], list(range(0, 1000, 50))])
def test_steps_that_lead_to_no_finite_numbers_are_refused_alone(
    poisoned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_updates, "MAX_SECONDS", 1e9)
    reader = rows_in_memory()
    reader.arrays["weight"][poisoned] = np.inf
    reader.arrays["labels"][poisoned] = 1
    plain = settings(strategy=SERVER, sync_interval=None, epochs=1, clip_norm=None)
    *_, expected = stores(plain, reader)
    *_, found = stores(replace(plain, strategy="single"), reader)
    assert found.ledger.refused == expected.ledger.refused > 0
    assert (found.ledger.backoffs, found.ledger.rows) == (expected.ledger.backoffs, expected.ledger.rows)
    np.testing.assert_array_equal(found.state_KP, expected.state_KP)
