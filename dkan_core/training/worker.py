"""A worker process: takes its slice of each global batch, computes the gradient, pushes it, pulls the parameters."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from dkan_core.data.loader import open_split, prefetched, run_batches
from dkan_core.data.manifest import read_manifest
from dkan_core.data.shards import Arrays
from dkan_core.model.tabular import ModelConfig, TabularFastKAN
from dkan_core.training.channel import Channel, inherited
from dkan_core.training.job import Job, run_child
from dkan_core.training.memory import SharedMemory
from dkan_core.training.step import bind, worker_step


def work(job: Job) -> None:
    """Train until the server says stop or every epoch is done."""
    torch.set_num_threads(job.threads)
    device = torch.device("cuda", job.rank) if job.config.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model = TabularFastKAN(ModelConfig.from_dict(job.model)).to(device)
    exchange = Exchange(job.open_memory(), job.rank, device, inherited(job.peers[0]))
    bind(model, exchange.values_P, exchange.gradients_P)
    exchange.pull()
    for step, arrays in enumerate(prefetched(_batches(job))):
        loss, weight = worker_step(model, arrays, device, job.config, step=step, rank=job.rank)
        if not exchange.push(step, loss=loss, weight=weight, rows=len(arrays["labels"])):
            return
        exchange.pull()


def _batches(job: Job) -> Iterator[Arrays]:
    folder = Path(job.prepared)
    with open_split(folder, read_manifest(folder), "train") as reader:
        yield from run_batches(reader, job.config, job.rank)


class Exchange:
    """A worker's side of the exchange with the parameter server.

    On the CPU the model lives in the shared memory itself and nothing is copied; on CUDA it has buffers of its own.
    """

    def __init__(self, memory: SharedMemory, rank: int, device: torch.device, server: Channel) -> None:
        self.server = server
        self.shared_values_P = torch.from_numpy(memory.values_P)
        self.shared_gradients_P = torch.from_numpy(memory.gradients_WP[rank])
        self.values_P: Tensor = self.shared_values_P
        self.gradients_P: Tensor = self.shared_gradients_P
        if device.type == "cuda":
            self.values_P = torch.empty_like(self.shared_values_P, device=device)
            self.gradients_P = torch.zeros_like(self.shared_gradients_P, device=device)

    def push(self, step: int, *, loss: float, weight: float, rows: int) -> bool:
        """Hand the gradient over and wait until the server has applied the step; False when training ends."""
        if self.gradients_P is not self.shared_gradients_P:
            self.shared_gradients_P.copy_(self.gradients_P)
        self.server.send(step=step, loss=loss, weight=weight, rows=rows)
        return bool(self.server.receive()["go"])

    def pull(self) -> None:
        """Take the parameters as they are now."""
        if self.values_P is not self.shared_values_P:
            self.values_P.copy_(self.shared_values_P)


if __name__ == "__main__":
    run_child(work)
