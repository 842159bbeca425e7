"""One rank of a run that takes its steps as on a GPU, here on the CPU, over gloo: with every strategy in turn.

Its steps are launched, or captured as recorded graphs, which one of the ranks may not be able to.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dkan_core import TrainConfig
from dkan_core.config.strategies import Strategy
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import SliceBatches, open_split
from dkan_core.training.collectives import DEVICE_STRATEGIES
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.communication.rendezvous import Rendezvous
from dkan_core.training.compute import device_steps
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.training.roles.rank_updates import DeviceRounds
from dkan_core.training.roles.training_loop import TrainingLoop
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.untrained_model import untrained_model
from dkan_core.training.state.parameter_store import ParameterStore, UpdateRules, initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.training.state.stopwatch import Stopwatch
from dkan_core.utils.arrays import Float32
from tests.training.compute.recorded_graph import RecordedGraph, failing, record_graphs

STRATEGIES: tuple[Strategy, ...] = ("allreduce", "ring", "ddp", "local-sgd")
CPU = torch.device("cpu")

LAUNCHED, CAPTURED = "launched", "captured"
NOT_BY_ALL = ("one cannot capture", "one has no room")
"""What happens to the second rank."""


@contextmanager
def way_of(name: str, rank: int) -> Iterator[list[RecordedGraph]]:
    """Let steps be launched, or captured in such a way; yield the list of the graphs."""
    with pytest.MonkeyPatch.context() as patch:
        graphs = [] if name == LAUNCHED else record_graphs(patch)
        if rank and name == NOT_BY_ALL[0]:
            patch.setattr(torch.cuda, "graph", failing)
        elif rank and name == NOT_BY_ALL[1]:
            patch.setattr(device_steps, "rows_on_device", lambda *_: None)
        yield graphs


def uneven_batch(rows: int) -> int:
    """Return a batch size whose last batch lacks one row: only one of two ranks has as many in it as in the others."""
    return next(size for size in range(20, rows) if (rows + 1) % size == 0)


def last_state(prepared: Path, strategy: Strategy, rank: int, port: int, way: str) -> Float32:
    """Train with another rank; return parameters and moments."""
    manifest = read_manifest(prepared)
    batch_size = uneven_batch(manifest.splits["train"].rows)
    # Native passes compute on a CPU alone, and may keep what a GPU could not.
    settings = TrainConfig(epochs=1, hidden=(8,), workers=2, device="cpu", batch_size=batch_size, kernel="recompute")
    settings = replace(settings, strategy=strategy)
    config = replace(resolve(settings, manifest.splits["train"].rows), device="cuda:0,cuda:1", accumulate=2)
    assert config.steps_on_devices
    with open_split(prepared, manifest, "train") as reader:
        architecture = choose_architecture(reader, manifest, config)
        model = untrained_model(architecture, manifest, config)
        values_P = flatten(model).numpy()
        rules = UpdateRules.from_config(config, reader.rows, parameter_groups(model, config, reader.rows))
        memory = create_memory(MemoryShape.from_config(config, len(values_P)))
        initialize_store(memory, values_P)
        group = ProcessGroup(Rendezvous(port=port, prefix=f"{strategy} {way}"), rank, 2, CPU, config.exchange_timeout)
        replica, batches = Replica.from_architecture(architecture.to_dict(), CPU), SliceBatches(reader, config, rank)
        exchange = DEVICE_STRATEGIES[strategy](group, replica, rules)
        store = ParameterStore(memory, rules)
        source = DeviceRounds(DeviceSteps(replica, batches, rules, exchange=exchange), group, store, Stopwatch())
        TrainingLoop(source, None).run()
        batches.close()
        group.close()
    assert store.ledger.step == rules.schedule.steps
    return store.state_KP.copy()


def main() -> None:
    """Write the last states: the arguments are the prepared data, the rank, the store's port, and the file."""
    torch.set_num_threads(1)
    folder, own_rank, port, out = sys.argv[1:]
    cases = [(strategy, way) for strategy in STRATEGIES for way in (LAUNCHED, CAPTURED)]
    cases += [("allreduce", way) for way in NOT_BY_ALL]
    found: dict[str, Any] = {}
    for strategy, way in cases:
        with way_of(way, int(own_rank)) as graphs:
            found[f"{strategy} {way}"] = last_state(Path(folder), strategy, int(own_rank), int(port), way)
            found[f"replays {strategy} {way}"] = [graph.replays for graph in graphs]
    np.savez(out, **found)
    assert not dist.is_initialized()
