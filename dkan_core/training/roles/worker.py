"""A worker process of the parameter server: computes updates on the work units that it is handed."""

from dataclasses import replace

import numpy as np

from dkan_core.data.loading.loader import SliceBatches
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.local_steps import LocalSteps
from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.startup import open_batches, use_device
from dkan_core.training.roles.stopwatch import Stopwatch
from dkan_core.training.state.adamw import AdamState
from dkan_core.training.state.parameter_store import Rules
from dkan_core.training.state.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import SHUTDOWN, Lease, SharedMemory

PATIENCE_SECONDS = 0.5
"""How often to look for a lease that no wake-up has told of: the server may have died before it notified."""


def main(spec: ProcessSpec) -> None:
    """Do work units until the server shuts the workers down."""
    device = use_device(spec)
    memory = spec.open_memory()
    heartbeat = Heartbeat(memory, spec.role, spec.rank)
    with open_batches(spec, memory, device) as batches:
        replica = Replica.from_architecture(spec.model, device)
        Worker(spec, memory, replica, batches, heartbeat, batches.stopwatch).run()


class Worker:
    """The loop over leases."""

    def __init__(
        self,
        spec: ProcessSpec,
        memory: SharedMemory,
        replica: Replica,
        batches: SliceBatches,
        heartbeat: Heartbeat,
        stopwatch: Stopwatch,
    ) -> None:
        self.stopwatch = stopwatch
        self.config = spec.config
        self.memory = memory
        self.replica = replica
        self.batches = batches
        self.rank = spec.rank
        self.heartbeat = heartbeat
        self.rules = Rules.from_config(spec.config, spec.train_rows, spec.decayed)
        self.wakeup = spec.wakeup(f"worker-{spec.rank}")
        self.server = spec.wakeup("server")
        self.lease = memory.leases[spec.rank]
        self.record = memory.pushes[spec.rank]
        self.push_N = memory.pushes_WN[spec.rank]
        self.push = replace(self.record.read(), generation=spec.generation)
        self.local = spec.config.mode != "sync"
        if self.local:
            self.local_steps = LocalSteps(replica, batches, self.rules, heartbeat.record_activity)
            self.state_3P = np.empty((3, spec.shape.parameters), np.float32)
        else:
            replica.bind_gradient_array(self.push_N)

    def run(self) -> None:
        """Work to the end."""
        self._publish_push()
        self.stopwatch.lap("other")
        while (lease := self._next_lease()).unit != SHUTDOWN:
            loss, weight, rows = self._update(lease)
            self.push = replace(self.push, lease=lease.id, loss=loss, weight=weight, rows=rows)
            self._publish_push()
            self.stopwatch.lap("exchange")
        self.stopwatch.publish()

    def _publish_push(self) -> None:
        self.record.write(self.push)
        self.server.notify()

    def _next_lease(self) -> Lease:
        """Wait for a lease that is not done yet."""
        while True:
            self.heartbeat.record_activity()
            lease = self.lease.read()
            if lease.unit == SHUTDOWN or (lease.unit >= 0 and lease.id != self.push.lease):
                return lease
            self.wakeup.wait(PATIENCE_SECONDS)
            self.stopwatch.lap("wait")

    def _update(self, lease: Lease) -> tuple[float, float, int]:
        """Put a work unit's update into the push buffer; return its mean loss, the weight of that, and its rows."""
        if self.local:
            return self._take_local_steps(lease)
        (step,) = self.rules.work_plan.steps_of_unit(lease.unit)
        slice_index = self.rules.work_plan.slice_of_unit(lease.unit)
        arrays = self.batches.get(step, slice_index)
        self.replica.load(self.memory.buffers_2KP[lease.active_buffer, 0])
        self.stopwatch.lap("exchange")
        loss, weight = self.replica.compute_gradient(arrays, self.config)
        self.stopwatch.lap("compute")
        self.replica.copy_buffer(self.replica.gradients_P, self.push_N)
        return loss, weight, len(arrays["labels"])

    def _take_local_steps(self, lease: Lease) -> tuple[float, float, int]:
        """Take the steps of a work unit alone, from the shared state on; push where they lead, or the difference."""
        self._copy_state()
        self.stopwatch.lap("exchange")
        if self.config.mode == "average":
            loss_weight_rows = self._take_steps(lease)
            np.copyto(self.push_N, self.state_3P.reshape(-1))
            return loss_weight_rows
        moments_2P = self.memory.moments_W2P[self.rank]
        self.state_3P[1:] = moments_2P
        start_P = self.state_3P[0].copy()
        loss_weight_rows = self._take_steps(lease)
        np.subtract(self.state_3P[0], start_P, out=self.push_N)
        # Only now, and only if they are numbers: a work unit that is computed again begins with about the same moments.
        if np.isfinite(self.state_3P).all():
            moments_2P[:] = self.state_3P[1:]
        return loss_weight_rows

    def _take_steps(self, lease: Lease) -> tuple[float, float, int]:
        plan = self.rules.work_plan
        state = AdamState(*self.state_3P)
        steps = plan.steps_of_unit(lease.unit)
        slice_index = plan.slice_of_unit(lease.unit)
        loss_weight_rows = self.local_steps.take(state, steps, slice_index, lease.lr_scale)
        self.stopwatch.lap("compute")
        return loss_weight_rows

    def _copy_state(self) -> None:
        """Copy the shared parameters and moments, again if the server may have begun to overwrite them meanwhile."""
        before = None
        while before is None or self.memory.ledger.read().units_done != before.units_done:
            before = self.memory.ledger.read()
            np.copyto(self.state_3P, self.memory.buffers_2KP[before.active_buffer, :3])
