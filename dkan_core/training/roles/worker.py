"""A worker process of the parameter server: computes updates on the work units that it is handed."""

from dataclasses import replace

import numpy as np

from dkan_core.training.compute.device_steps import make_local_steps
from dkan_core.training.compute.pinned_memory import pin
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.startup import ComputeProcess, open_compute_process
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.training.state.shared_memory import SHUTDOWN, Lease

# How often to look for a lease that no wake-up has told of: the server may have died before it notified.
POLL_SECONDS = 0.5


def main(spec: ProcessSpec) -> None:
    """Do work units until the server shuts the workers down."""
    with open_compute_process(spec) as process:
        Worker(spec, process).run()


class Worker:
    """Computes the updates of the work units that it is handed."""

    def __init__(self, spec: ProcessSpec, process: ComputeProcess) -> None:
        self.stopwatch = process.stopwatch
        self.config = spec.config
        self.memory = process.memory
        self.replica = process.replica
        self.batches = process.batches
        self.rank = spec.rank
        self.heartbeat = process.heartbeat
        self.work_plan = process.rules.work_plan
        self.wakeup = spec.wakeup(f"worker-{spec.rank}")
        self.server = spec.wakeup("server")
        self.lease = self.memory.leases[spec.rank]
        self.record = self.memory.pushes[spec.rank]
        self.push_N = self.memory.pushes_WN[spec.rank]
        # Keep the lease that an earlier process of this rank pushed last, so that its work unit is not computed again.
        self.push = replace(self.record.read(), generation=spec.generation)
        if spec.config.mode == "sync":
            # On the CPU the backward pass writes where the server reads: nothing is copied.
            self.replica.bind_gradient_array(self.push_N)
            # Every step copies parameters to the GPU and the gradient back.
            pin([*self.memory.buffers_2KP[:, 0], self.push_N], self.replica.device)
        else:
            on_step = process.heartbeat.record_activity
            self.local_steps = make_local_steps(self.replica, self.batches, process.rules, on_step)
            self.state_3P = np.empty((3, spec.shape.parameters), np.float32)
            pin([self.state_3P], self.replica.device)

    def run(self) -> None:
        """Work to the end."""
        compute = {"sync": self._gradient, "average": self._local_steps, "async": self._difference}[self.config.mode]
        self._publish_push()
        self.stopwatch.lap("other")
        while (lease := self._next_lease()).unit != SHUTDOWN:
            totals = compute(lease)
            self.push = replace(self.push, lease=lease.id, **totals._asdict())
            self._publish_push()
            self.stopwatch.lap("exchange")
        self.stopwatch.publish()

    def _publish_push(self) -> None:
        # After the array, so that a reader of the record finds the whole update.
        self.record.write(self.push)
        self.server.notify()

    def _next_lease(self) -> Lease:
        """Wait for a lease that is not done yet."""
        while True:
            self.heartbeat.record_activity()
            lease = self.lease.read()
            if lease.unit == SHUTDOWN or (lease.unit >= 0 and lease.id != self.push.lease):
                return lease
            self.wakeup.wait(POLL_SECONDS)
            self.stopwatch.lap("wait")

    def _gradient(self, lease: Lease) -> LossTotals:
        """Push the gradient of a work unit of one step."""
        (step,) = self.work_plan.steps_of_unit(lease.unit)
        self.replica.load(self.memory.buffers_2KP[lease.active_buffer, 0])
        self.stopwatch.lap("exchange")
        arrays = self.batches.get(step, self.work_plan.slice_of_unit(lease.unit))
        totals = self.replica.compute_gradient(arrays, self.config)
        self.stopwatch.lap("compute")
        self.replica.copy_buffer(self.replica.gradients_P, self.push_N)
        return totals

    def _local_steps(self, lease: Lease) -> LossTotals:
        """Push the parameters and moments that the steps of a work unit lead to."""
        self._copy_state()
        totals = self._take_steps(lease)
        np.copyto(self.push_N, self.state_3P.reshape(-1))
        return totals

    def _difference(self, lease: Lease) -> LossTotals:
        """Push by how much the steps of a work unit change the parameters; the moments are this worker's own."""
        self._copy_state()
        moments_2P = self.memory.moments_W2P[self.rank]
        self.state_3P[1:] = moments_2P
        start_P = self.state_3P[0].copy()
        totals = self._take_steps(lease)
        np.subtract(self.state_3P[0], start_P, out=self.push_N)
        # Store the moments last, and only if finite: a work unit that is computed again begins with about the same
        # ones.
        if np.isfinite(self.state_3P).all():
            moments_2P[:] = self.state_3P[1:]
        return totals

    def _take_steps(self, lease: Lease) -> LossTotals:
        self.stopwatch.lap("exchange")
        steps = self.work_plan.steps_of_unit(lease.unit)
        slice_index = self.work_plan.slice_of_unit(lease.unit)
        totals = self.local_steps.take(self.state_3P, steps, slice_index, lease.lr_scale)
        self.stopwatch.lap("compute")
        return totals

    def _copy_state(self) -> None:
        """Copy the shared parameters and moments, again if the server may have begun to overwrite them meanwhile."""
        # There is no lock that a killed worker could hold; the ledger shows whether a commit came in between.
        before = None
        while before is None or self.memory.ledger.read().units_done != before.units_done:
            before = self.memory.ledger.read()
            np.copyto(self.state_3P, self.memory.buffers_2KP[before.active_buffer, :3])
