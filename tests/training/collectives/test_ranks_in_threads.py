"""Ranks in threads of one process: what they sum, and that all decide alike."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dkan_core import TrainConfig
from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import SliceBatches, open_split
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.collectives import DEVICE_STRATEGIES
from dkan_core.training.collectives.allreduce import AllReduce, ring_all_reduce
from dkan_core.training.collectives.host_exchange import HostExchange, RoundInputs, RoundTotals
from dkan_core.training.collectives.local_sgd import LocalSGD
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute import flat_model, gradient, step_exchange
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.training.roles.rank_updates import DeviceRounds, RankUpdates, ReducedUpdates
from dkan_core.training.roles.training_loop import TrainingLoop
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import (
    REFUSED_BEFORE_BACKOFF,
    ParameterStore,
    UpdateRules,
    initialize_store,
)
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.training.state.stopwatch import Stopwatch
from tests.training.processes import UNRESPONSIVE_SECONDS

INPUTS = RoundInputs(state_KP=np.zeros((3, 1), np.float32), steps=range(1), lr_scale=1.0, ending=0)


def in_threads(size: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, name=str(rank), args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("size", "count"), [(2, 7), (3, 1), (3, 10), (3, 12), (4, 1001)])
def test_ring_gives_every_rank_the_sum(size: int, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    buffers = [torch.randn(count, generator=generator) for _ in range(size)]
    expected = torch.stack(buffers).sum(0)
    links: list[SimpleQueue[torch.Tensor]] = [SimpleQueue() for _ in range(size)]

    def work(rank: int) -> None:
        def exchange(out_N: torch.Tensor, into_N: torch.Tensor) -> None:
            links[(rank + 1) % size].put(out_N.clone())
            into_N.copy_(links[rank].get(timeout=UNRESPONSIVE_SECONDS))

        group: Any = SimpleNamespace(rank=rank, size=size, exchange_with_neighbors=exchange)
        ring_all_reduce(buffers[rank], group)

    in_threads(size, work)
    torch.testing.assert_close(buffers[0], expected)
    assert all(torch.equal(buffer, buffers[0]) for buffer in buffers)


@pytest.mark.parametrize("rows", [0, 5, 4096, 123_456_789])
def test_rows_of_many_ranks_are_counted_exactly(rows: int) -> None:
    parts = [RoundTotals.for_round(INPUTS, loss=0.5, weight=2.0, rows=rows) for _ in range(3)]
    total = torch.tensor([[part.row_units, part.row_remainder] for part in parts]).sum(0)
    assert RoundTotals(row_units=total[0].item(), row_remainder=total[1].item()).rows == 3 * rows


class ThreadGroup(ProcessGroup):
    """Ranks that share memory."""

    broadcasts = 0

    def __init__(self, rank: int, barrier: threading.Barrier, parts: dict[int, Any]) -> None:
        self.rank = rank
        self.size = 2
        self.device = torch.device("cpu")
        self.barrier = barrier
        self.parts = parts

    def all_reduce(self, buffer_N: torch.Tensor) -> None:
        self.parts[self.rank] = buffer_N.clone()
        self.barrier.wait(UNRESPONSIVE_SECONDS)
        buffer_N.copy_(self.parts[0] + self.parts[1])
        self.barrier.wait(UNRESPONSIVE_SECONDS)

    def wait_for_all(self, record_activity: Callable[[], None]) -> None:
        self.barrier.wait(UNRESPONSIVE_SECONDS)

    def broadcast(self, arrays: list[torch.Tensor], facts: list[object]) -> None:
        self.broadcasts += 1
        if self.rank == 0:
            self.parts[-1] = ([array.clone() for array in arrays], list(facts))
        self.barrier.wait(UNRESPONSIVE_SECONDS)
        if self.rank:
            for array, first in zip(arrays, self.parts[-1][0], strict=True):
                array.copy_(first)
            facts[:] = self.parts[-1][1]


Source = Callable[[ThreadGroup, Replica, SliceBatches, ParameterStore], RankUpdates]


class Spoilt(AllReduce):
    """One rank's gradient is not finite for some rounds."""

    rounds, drifts = 0, False

    def run_sync_round(self, inputs: RoundInputs) -> RoundTotals:
        if self.drifts and self.rounds == 4:
            inputs.state_KP[0] += 1e-3 * self.process_group.rank
        return super().run_sync_round(inputs)

    def all_reduce(self, buffer_N: torch.Tensor) -> None:
        self.rounds += 1
        if self.drifts:
            return self.process_group.all_reduce(buffer_N)
        if self.process_group.rank == 1 and 3 <= self.rounds < 3 + REFUSED_BEFORE_BACKOFF:
            buffer_N[0] = torch.nan
        self.process_group.all_reduce(buffer_N)


class Drifting(Spoilt):
    """One rank's parameters change by themselves."""

    drifts = True


def reduced(kind: type[HostExchange]) -> Source:
    """Return what makes a rank take its steps on the host."""

    def source(group: ThreadGroup, replica: Replica, batches: SliceBatches, store: ParameterStore) -> RankUpdates:
        return ReducedUpdates(kind(group, replica, batches, store.rules), store, Stopwatch())

    return source


def on_device(group: ThreadGroup, replica: Replica, batches: SliceBatches, store: ParameterStore) -> RankUpdates:
    """Take a rank's steps as on a GPU."""
    exchange = DEVICE_STRATEGIES[store.rules.config.strategy](group, replica, store.rules)
    return DeviceRounds(DeviceSteps(replica, batches, store.rules, exchange=exchange), group, store, Stopwatch())


def train_in_threads(
    prepared: Path, make_source: Source, **changes: Any
) -> tuple[dict[int, ParameterStore], dict[int, ThreadGroup]]:
    """Train two ranks on the CPU; with other devices in ``changes``, as if they were there."""
    manifest = read_manifest(prepared)
    settings = TrainConfig(
        blend=False,
        strategy=changes.pop("strategy", "allreduce"),
        sync_interval=changes.pop("sync_interval", None),
        batch_size=changes.pop("batch_size", 64),
        epochs=2,
        hidden=(8,),
        workers=2,
        device="cpu",
        dropout=0.0,
        binary_dropout=0.0,
    )
    config = replace(resolve(settings, manifest.splits["train"].rows), **changes)
    readers = [open_split(prepared, manifest, "train") for _ in range(2)]
    architecture = choose_architecture(readers[0], manifest, config)
    model = untrained_model(architecture, manifest, config)
    values_P = flatten(model).numpy()
    rules = UpdateRules.from_config(config, readers[0].rows, parameter_groups(model, config, readers[0].rows))
    barrier = threading.Barrier(2)
    parts: dict[int, Any] = {}
    stores: dict[int, ParameterStore] = {}
    process_groups: dict[int, ThreadGroup] = {}

    def work(rank: int) -> None:
        memory = create_memory(MemoryShape.from_config(config, len(values_P)))
        initialize_store(memory, values_P)
        replica = Replica.from_architecture(architecture.to_dict(), torch.device("cpu"))
        batches = SliceBatches(readers[rank], config, rank)
        process_groups[rank] = ThreadGroup(rank, barrier, parts)
        store = stores[rank] = ParameterStore(memory, rules)
        source = make_source(process_groups[rank], replica, batches, store)
        try:
            TrainingLoop(source, None).run()
        except BaseException:
            # Else the other rank would wait for this one.
            barrier.abort()
            raise
        finally:
            batches.close()

    in_threads(2, work)
    for reader in readers:
        reader.close()
    return stores, process_groups


def test_update_that_is_no_number_is_refused_by_all(prepared: Path) -> None:
    stores, _ = train_in_threads(prepared, reduced(Spoilt))
    ledgers: list[Ledger] = [replace(stores[rank].ledger, used=0.0, started=0.0, since=0.0) for rank in range(2)]
    assert ledgers[0] == ledgers[1] and ledgers[0].step == stores[0].rules.schedule.steps
    assert (ledgers[0].refused, ledgers[0].backoffs) == (REFUSED_BEFORE_BACKOFF, 1)
    assert np.array_equal(stores[0].state_KP, stores[1].state_KP) and np.isfinite(stores[0].state_KP).all()


def test_ranks_that_drift_apart_take_the_first_ones_state(prepared: Path) -> None:
    stores, process_groups = train_in_threads(prepared, reduced(Drifting))
    assert [process_groups[rank].broadcasts for rank in range(2)] == [1, 1]
    assert np.array_equal(stores[0].state_KP, stores[1].state_KP)


GPUS = "cuda:0,cuda:1"


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (AllReduce, {"strategy": "allreduce"}),
        (AllReduce, {"strategy": "allreduce", "clip_norm": 0.01, "slice_weights": (1e-6, 1.0)}),
        (AllReduce, {"strategy": "allreduce", "ema_decay": 0.9, "evaluations_per_epoch": 3}),
        (LocalSGD, {"strategy": "local-sgd", "sync_interval": 3}),
    ],
)
def test_steps_on_devices_are_those_on_the_host(
    kind: type[HostExchange], changes: dict[str, Any], prepared: Path
) -> None:
    expected = train_in_threads(prepared, reduced(kind), **changes)[0][0]
    found, other = train_in_threads(prepared, on_device, device=GPUS, **changes)[0].values()
    assert np.array_equal(found.state_KP, other.state_KP)
    for array, expected_array in zip(found.state_KP, expected.state_KP, strict=True):
        assert np.linalg.norm(array - expected_array) < 2e-3 * np.linalg.norm(expected_array)
    for name in ("units_done", "step", "digest", "rows", "refused"):
        assert getattr(found.ledger, name) == getattr(expected.ledger, name) == getattr(other.ledger, name), name
    assert found.ledger.since_loss == pytest.approx(expected.ledger.since_loss, rel=1e-4)
    assert found.ledger.version < expected.ledger.version or "ema_decay" in changes, "many steps are one commit"


@pytest.mark.parametrize(("kind", "strategy"), [(AllReduce, "allreduce"), (LocalSGD, "local-sgd")])
def test_steps_on_devices_that_lead_to_no_finite_numbers_are_refused_by_all(
    kind: type[HostExchange], strategy: str, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one rank sees the cause, and so many are refused that the learning rate is halved."""
    add_gradient = gradient.add_gradient

    def spoilt(model: TabularFastKAN, batch: dict[str, torch.Tensor], config: ResolvedTrainConfig) -> Any:
        loss, weight = add_gradient(model, batch, config)
        is_spoilt = threading.current_thread().name == "1" and bool(batch["dropout_key"][0] > 0)
        return loss * (torch.nan if is_spoilt else 1.0), weight

    for module in (gradient, step_exchange):
        monkeypatch.setattr(module, "add_gradient", spoilt)
    monkeypatch.setattr(flat_model, "prepare_step", lambda *_, **__: None)
    changes = {"strategy": strategy, "sync_interval": 2 if kind is LocalSGD else None, "batch_size": 32}
    expected = train_in_threads(prepared, reduced(kind), **changes)[0][0]
    found, other = train_in_threads(prepared, on_device, device=GPUS, **changes)[0].values()
    assert (found.ledger.refused, found.ledger.backoffs) == (expected.ledger.refused, expected.ledger.backoffs)
    assert found.ledger.refused > REFUSED_BEFORE_BACKOFF and found.ledger.backoffs
    assert np.array_equal(found.state_KP, other.state_KP) and np.isfinite(found.state_KP).all()
    assert found.ledger.step == other.ledger.step == found.rules.schedule.steps


def test_ranks_that_drift_apart_on_devices_take_the_first_ones_state(prepared: Path) -> None:
    def drifting(group: ThreadGroup, replica: Replica, batches: SliceBatches, store: ParameterStore) -> RankUpdates:
        if group.rank:
            store.state_KP[:] += 2e-3
        return on_device(group, replica, batches, store)

    stores, groups = train_in_threads(prepared, drifting, device=GPUS)
    assert np.array_equal(stores[0].state_KP, stores[1].state_KP)
    assert [groups[rank].broadcasts for rank in range(2)] == [1, 1]
    assert stores[0].ledger.step == stores[0].rules.schedule.steps
