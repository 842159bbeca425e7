"""The parameter server: hands out work units, aggregates what the workers make of them, steps the optimizer.

It can be killed at any moment: all state is in shared memory, and the next server continues from there. It hands
snapshots to the evaluator and restore points to the launcher, and never waits for either.
"""

from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.post_step import publish_to
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.training_loop import TrainingLoop
from dkan_core.training.roles.work_assignment import AsyncAssignment, SyncAssignment
from dkan_core.training.state.parameter_store import ParameterStore, UpdateRules
from dkan_core.training.state.stopwatch import Stopwatch


def main(spec: ProcessSpec) -> None:
    """Serve until every epoch is done, or the run is asked to end."""
    server_loop(spec).run()


def server_loop(spec: ProcessSpec) -> TrainingLoop:
    """Return the training loop of the server."""
    memory = spec.open_memory()
    heartbeat = Heartbeat(memory, spec.role)
    stopwatch = Stopwatch(memory.server_time)
    store = ParameterStore(memory, UpdateRules.from_config(spec.config, spec.train_rows, spec.groups))
    workers = [spec.wakeup(f"worker-{rank}") for rank in range(spec.config.workers)]
    assignment = AsyncAssignment if spec.config.mode == "async" else SyncAssignment
    source = assignment(store, spec.wakeup("server"), workers, stopwatch)
    return TrainingLoop(source, publish_to(spec.wakeup("evaluator"), store), heartbeat.record_activity)
