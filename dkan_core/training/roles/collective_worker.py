"""A collective worker, which is a rank of a run without a server: it computes, reduces, and does a server's work.

Every rank holds the whole state and applies the same reduced update to it by the same rules, so all ranks decide alike.
The first rank's state is that of the run: it is in the launcher's shared memory, and when any rank is killed, all of
them restart from its last commit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from dkan_core.training.collectives import DEVICE_STRATEGIES, HOST_STRATEGIES
from dkan_core.training.communication.flight_recorder import FlightRecorder
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.device_steps import DeviceSteps, make_local_steps
from dkan_core.training.roles.own_updates import OwnSteps
from dkan_core.training.roles.post_step import publish_to
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.rank_updates import DeviceRounds, ReducedUpdates, broadcast_state
from dkan_core.training.roles.startup import ComputeProcess, open_compute_process
from dkan_core.training.roles.training_loop import TrainingLoop, UpdateSource
from dkan_core.training.state.parameter_store import ParameterStore
from dkan_core.training.state.shared_memory import create_memory


def main(spec: ProcessSpec) -> None:
    """Train until the run ends, alone or with the other ranks."""
    with open_compute_process(spec) as process, _update_source(spec, process) as source:
        publish = None if spec.rank else publish_to(spec.wakeup("evaluator"), source.store)
        TrainingLoop(source, publish, process.heartbeat.record_activity).run()


@contextmanager
def _update_source(spec: ProcessSpec, process: ComputeProcess) -> Iterator[UpdateSource]:
    """Yield the source of this rank's updates, once the rank has the first rank's state."""
    if spec.config.strategy == "single":
        store = ParameterStore(process.memory, process.rules)
        steps = make_local_steps(process.replica, process.batches, process.rules, process.heartbeat.record_activity)
        yield OwnSteps(store, steps, process.stopwatch)
        return
    assert spec.rendezvous is not None, "ranks that exchange something have a rendezvous"
    device = process.replica.device
    recorder = FlightRecorder(spec.logs, spec.rank) if spec.config.debug_distributed else None
    timeout = spec.config.exchange_timeout
    process_group = ProcessGroup(spec.rendezvous, spec.rank, spec.shape.workers, device, timeout, recorder)
    process_group.stopwatch = process.stopwatch
    # Only the first rank writes to the launcher's memory.
    memory = create_memory(spec.shape) if spec.rank else process.memory
    # A rank that was restarted begins with empty memory, as all do at first.
    if process_group.size > 1:
        broadcast_state(memory, process_group)
    store = ParameterStore(memory, process.rules, spec.threads)
    on_step = process.heartbeat.record_activity
    if spec.config.steps_on_devices:
        exchange = DEVICE_STRATEGIES[spec.config.strategy](process_group, process.replica, process.rules)
        steps = DeviceSteps(process.replica, process.batches, process.rules, on_step, exchange)
        yield DeviceRounds(steps, process_group, store, process.stopwatch)
    else:
        make = HOST_STRATEGIES[spec.config.strategy]
        host_exchange = make(process_group, process.replica, process.batches, process.rules, on_step)
        yield ReducedUpdates(host_exchange, store, process.stopwatch)
    # Not after an error: closing waits for the other ranks, one of which may be gone.
    process_group.close()
