"""A process that does what a parameter server's worker does, but for the gradient: it reads, writes and says so."""

import time
from dataclasses import replace

import torch

from dkan_core.training.communication.messages import inherited
from dkan_core.training.planning.probes.processes import MEASURED
from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.startup import use_device
from dkan_core.training.state.shared_memory import SHUTDOWN, Push


def main(spec: ProcessSpec) -> None:
    """Exchange until the server shuts the workers down; report when each exchange was done, in seconds."""
    device = use_device(spec)
    memory = spec.open_memory()
    wakeup = spec.wakeup(f"worker-{spec.rank}")
    server = spec.wakeup("server")
    # Without it the server would take this process for dead.
    Heartbeat(memory, spec.role, spec.rank)
    pushed = spec.shape.pushed
    target_NP = torch.from_numpy(memory.pushes_WN[spec.rank]).view(pushed, -1)
    own_NP = torch.zeros(target_NP.shape, device=device)
    record = memory.pushes[spec.rank]
    push = replace(Push(), generation=spec.generation, weight=1.0, rows=1)
    times = []
    record.write(push)
    server.notify()
    while (lease := memory.leases[spec.rank].read()).unit != SHUTDOWN:
        if lease.unit < 0 or lease.id == push.lease:
            wakeup.wait()
            continue
        own_NP.copy_(torch.from_numpy(memory.buffers_2KP[lease.active_buffer, :pushed]))
        times.append(time.monotonic())
        target_NP.copy_(own_NP)
        push = replace(push, lease=lease.id)
        record.write(push)
        server.notify()
    inherited(spec.launcher).send(kind=MEASURED, times=times)
