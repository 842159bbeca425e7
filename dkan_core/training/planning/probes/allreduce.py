"""A process that sums a buffer with others, as the ranks of a run without a server do."""

import time

import torch

from dkan_core.training.collectives.allreduce import ring_all_reduce
from dkan_core.training.communication.messages import inherited
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.planning.probes.processes import MEASURED
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.startup import use_device


def main(spec: ProcessSpec) -> None:
    """Sum as often as the run has steps; report when each sum was there, in seconds."""
    device = use_device(spec)
    assert spec.rendezvous is not None, "ranks that exchange something have a rendezvous"
    process_group = ProcessGroup(spec.rendezvous, spec.rank, spec.shape.workers, device, spec.config.exchange_timeout)
    buffer_N = torch.zeros(spec.shape.parameters, device=process_group.device)
    times = []
    for _ in range(spec.train_rows // spec.shape.workers):
        if spec.config.strategy == "ring":
            ring_all_reduce(buffer_N, process_group)
        else:
            process_group.all_reduce(buffer_N)
        if process_group.device.type == "cuda":
            # The call only enqueues the sum: without waiting for it, the time would be that of a launch.
            torch.cuda.synchronize(process_group.device)
        times.append(time.monotonic())
    process_group.close()
    inherited(spec.launcher).send(kind=MEASURED, times=times)
