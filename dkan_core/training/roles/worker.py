"""A worker process of the parameter server: computes updates on the work units that it is handed."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import SliceBatches, open_split
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.local_steps import LocalSteps
from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.stopwatch import Stopwatch, TimedBatches
from dkan_core.training.state.adamw import AdamState
from dkan_core.training.state.parameter_store import Rules
from dkan_core.training.state.process_spec import ProcessSpec
from dkan_core.training.state.shared_memory import SHUTDOWN, Lease, SharedMemory
from dkan_core.utils.resources import peak_resident_memory

PATIENCE_SECONDS = 0.5
"""How often to look for a lease that no wake-up has told of: the server may have died before it notified."""


def main(spec: ProcessSpec) -> None:
    """Do work units until the server shuts the workers down."""
    torch.set_num_threads(spec.threads)
    device = torch.device(spec.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    memory = spec.open_memory()
    folder = Path(spec.prepared)
    heartbeat = Heartbeat(memory, spec.role, spec.rank)
    with open_split(folder, read_manifest(folder), "train") as reader:
        stopwatch = Stopwatch(memory.worker_times[spec.rank], peak_memory_of(device))
        batches = TimedBatches(reader, spec.config, spec.rank, stopwatch)
        Worker(spec, memory, Replica.from_architecture(spec.model, device), batches, heartbeat, stopwatch).run()
        batches.close()


def peak_memory_of(device: torch.device) -> Callable[[], int]:
    """Return what tells the bytes that this process has held at most on a device, on the CPU all resident ones."""
    return peak_resident_memory if device.type == "cpu" else partial(torch.cuda.max_memory_allocated, device)


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
        self._say()
        self.stopwatch.lap("other")
        while (lease := self._next_lease()).unit != SHUTDOWN:
            loss, weight, rows = self._update(lease)
            self.push = replace(self.push, lease=lease.id, loss=loss, weight=weight, rows=rows)
            self._say()
            self.stopwatch.lap("exchange")
        self.stopwatch.publish()

    def _say(self) -> None:
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
        part = self.rules.work_plan.slice_of_unit(lease.unit)
        arrays = self.batches.get(step, part)
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
            facts = self._take_steps(lease)
            np.copyto(self.push_N, self.state_3P.reshape(-1))
            return facts
        moments_2P = self.memory.moments_W2P[self.rank]
        self.state_3P[1:] = moments_2P
        start_P = self.state_3P[0].copy()
        facts = self._take_steps(lease)
        np.subtract(self.state_3P[0], start_P, out=self.push_N)
        # Only now, and only if they are numbers: a work unit that is computed again begins with about the same moments.
        if np.isfinite(self.state_3P).all():
            moments_2P[:] = self.state_3P[1:]
        return facts

    def _take_steps(self, lease: Lease) -> tuple[float, float, int]:
        plan = self.rules.work_plan
        state = AdamState(*self.state_3P)
        steps = plan.steps_of_unit(lease.unit)
        part = plan.slice_of_unit(lease.unit)
        facts = self.local_steps.take(state, steps, part, lease.lr_scale)
        self.stopwatch.lap("compute")
        return facts

    def _copy_state(self) -> None:
        """Copy the shared parameters and moments, again if the server may have begun to overwrite them meanwhile."""
        before = None
        while before is None or self.memory.ledger.read().units_done != before.units_done:
            before = self.memory.ledger.read()
            np.copyto(self.state_3P, self.memory.buffers_2KP[before.active_buffer, :3])
