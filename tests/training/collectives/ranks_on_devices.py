"""One rank of a run that takes its steps as on a GPU, here on the CPU, over gloo: with every strategy in turn.

``python -m tests.training.collectives.ranks_on_devices PREPARED RANK PORT OUT`` writes the last states to OUT.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dkan_core import TrainConfig
from dkan_core.config.train import Strategy
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import SliceBatches, open_split
from dkan_core.training.collectives.on_device import EXCHANGES
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.communication.rendezvous import Rendezvous
from dkan_core.training.compute.device_steps import DeviceSteps
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import decayed_ranges, flatten, untrained_model
from dkan_core.training.roles.post_step import PostStepHooks
from dkan_core.training.roles.rank_updates import DeviceRounds
from dkan_core.training.roles.stopwatch import Stopwatch
from dkan_core.training.roles.training_loop import TrainingLoop
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.state.adamw import Float32
from dkan_core.training.state.parameter_store import ParameterStore, Rules, initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, create_memory

STRATEGIES: tuple[Strategy, ...] = ("allreduce", "ring", "ddp", "local-sgd")
CPU = torch.device("cpu")


def last_state(prepared: Path, strategy: Strategy, rank: int, port: int) -> Float32:
    """Train with another rank; return parameters and moments."""
    manifest = read_manifest(prepared)
    settings = TrainConfig(strategy=strategy, epochs=1, hidden=(8,), workers=2, device="cpu", batch_size=50)
    config = replace(resolve(settings, manifest.splits["train"].rows), device="cuda:0,cuda:1", accumulate=2)
    assert config.steps_on_devices
    with open_split(prepared, manifest, "train") as reader:
        architecture = choose_architecture(reader, manifest, config)
        model = untrained_model(architecture, manifest, config)
        values_P = flatten(model).numpy()
        rules = Rules.from_config(config, reader.rows, decayed_ranges(model, config, reader.rows))
        memory = create_memory(MemoryShape.from_config(config, len(values_P)))
        initialize_store(memory, values_P)
        group = ProcessGroup(Rendezvous(port=port, prefix=strategy), rank, 2, CPU, config.exchange_timeout)
        replica, batches = Replica.from_architecture(architecture.to_dict(), CPU), SliceBatches(reader, config, rank)
        exchange = EXCHANGES[strategy](group, replica, rules)
        store = ParameterStore(memory, rules)
        source = DeviceRounds(DeviceSteps(replica, batches, rules, exchange=exchange), group, store, Stopwatch())
        TrainingLoop(store, source, PostStepHooks(store, None), Stopwatch()).run()
        batches.close()
        group.close()
    assert store.ledger.step == rules.schedule.steps
    return store.state_KP.copy()


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, own_rank, port, out = sys.argv[1:]
    states: dict[str, Any] = {name: last_state(Path(folder), name, int(own_rank), int(port)) for name in STRATEGIES}
    np.savez(out, **states)
    assert not dist.is_initialized()
