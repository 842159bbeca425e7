"""Processes that exchange gradients of one size in different ways, with a gate between rounds of steps.

No scheme computes a gradient: it is there from the start, where the backward pass would leave it.
All end a step with the same new parameters in every worker.

Shape suffixes: P trainable parameters of the model, W workers.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dkan_core import FastKAN
from dkan_core.training.communication.process_group import LOOPBACK
from dkan_core.training.compute.flat_model import Replica, trained_parameters
from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.parameter_server import server_loop
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.startup import ComputeProcess
from dkan_core.training.roles.worker import Worker
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.training.state.stopwatch import Stopwatch
from dkan_core.utils.arrays import Arrays

RATE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Seat:
    """What a worker of any scheme is told."""

    rank: int
    workers: int
    sizes: tuple[int, ...]
    """Of the FastKAN whose gradient is exchanged."""

    steps: int
    """Between two gates."""

    optimizer: bool
    """Whether a step of AdamW belongs to a step."""

    gate: Connection | None
    """To the benchmark; a server has none."""

    def model(self) -> FastKAN:
        """Return the model, the same in every worker, with a gradient."""
        torch.manual_seed(0)
        model = FastKAN(list(self.sizes))
        for parameter in trained_parameters(model):
            parameter.grad = torch.randn_like(parameter)
        return model

    def repeat(self, step: Callable[[], object]) -> None:
        """Take steps, waiting at the gate before each round, until the benchmark ends."""
        while True:
            self.wait()
            for _ in range(self.steps):
                step()

    def wait(self) -> None:
        """Signal that a round is done, and wait for the next one."""
        assert self.gate is not None
        self.gate.send(None)
        self.gate.recv()


def seated(work: Callable[..., None], *args: Any) -> None:
    """Run a process of a scheme until the benchmark hangs up."""
    torch.set_num_threads(1)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        work(*args)


class Handed:
    """A spec on its way to a process that is being spawned, with its handles."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.spec.to_json(), "handles": [DupFd(handle) for handle in self.spec.handles()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        handles = [handle.detach() for handle in state["handles"]]
        self.spec = ProcessSpec.from_json(state["text"]).with_handles(-1, handles)


def serve(handed: Handed, optimizer: bool) -> None:
    """Be the parameter server: the real one, in its real loop."""
    loop = server_loop(handed.spec)
    if not optimizer:
        loop.source.store.optimizer.step = lambda *_, **__: True  # type: ignore[method-assign]
    loop.run()


def work(handed: Handed, seat: Seat) -> None:
    """Be a worker of the parameter server: the real one, in its real loop, but for the gradient."""
    spec = handed.spec
    memory = spec.open_memory()
    process = ComputeProcess(
        memory=memory,
        heartbeat=Heartbeat(memory, spec.role, spec.rank),
        rules=UpdateRules.from_config(spec.config, spec.train_rows, spec.groups),
        replica=_Given(seat.model(), torch.device("cpu")),  # type: ignore[arg-type]
        batches=_Gated(seat),  # type: ignore[arg-type]
    )
    worker = Worker(spec, process)
    torch.from_numpy(worker.push_N).normal_()
    worker.run()


class _Given(Replica):
    """A replica whose gradient is there already."""

    def compute_gradient(self, *_: object, **__: object) -> LossTotals:
        return LossTotals(loss=0.5, weight=1.0, rows=1)


class _Gated:
    """Batches without content, a gate before each round."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.stopwatch = Stopwatch()

    def get(self, step: int, _: int) -> Arrays:
        if step % self.seat.steps == 0:
            self.seat.wait()
        return {"labels": np.zeros((1, 1), np.uint8)}


def all_reduce(seat: Seat, store: str) -> None:
    """Sum one flat buffer with gloo, then step alone."""
    _meet(seat, store)
    values_P = torch.cat([parameter.detach().reshape(-1) for parameter in trained_parameters(seat.model())])
    values_P.requires_grad_()
    gradient_P = values_P.grad = torch.randn_like(values_P)
    optimizer = torch.optim.AdamW([values_P], RATE, fused=True)

    def step() -> None:
        dist.all_reduce(gradient_P)
        gradient_P.div_(seat.workers)
        if seat.optimizer:
            optimizer.step()

    seat.repeat(step)


def ddp(seat: Seat, store: str) -> None:
    """Let torch's DistributedDataParallel average gradients, then step alone."""
    _meet(seat, store)
    model = DistributedDataParallel(_Ready(seat.model()), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(model())
        if seat.optimizer:
            optimizer.step()

    seat.repeat(step)


class _Ready(nn.Module):
    """A module whose backward pass has nothing to compute."""

    def __init__(self, model: FastKAN) -> None:
        super().__init__()
        self.weights = nn.ParameterList(parameter.detach().clone() for parameter in trained_parameters(model))
        self.gradients = [parameter.grad for parameter in trained_parameters(model)]

    def forward(self) -> Tensor:
        return _Backward.apply(self.gradients, *self.weights)  # type: ignore[no-any-return]


class _Backward(torch.autograd.Function):
    """Something whose gradients are there already."""

    @staticmethod
    def forward(ctx: Any, gradients: list[Tensor], *_: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.gradients


def _meet(seat: Seat, store: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=seat.rank, world_size=seat.workers)


def queue_server(seat: Seat, inbox: "Queue[Any]", outboxes: "list[Queue[Any]]") -> None:
    """Average the arrays that come through a queue, step, and send the parameters back through others."""
    model = seat.model()
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(trained_parameters(model), RATE, fused=True)
    while True:
        received = [inbox.get() for _ in range(seat.workers)]
        for name in received[0]:
            mean = np.mean([each[name] for each in received], axis=0)
            named[name].grad = torch.from_numpy(mean)
        if seat.optimizer:
            optimizer.step()
        for outbox in outboxes:
            outbox.put({name: parameter.detach().numpy() for name, parameter in named.items()})


def queue_worker(seat: Seat, inbox: "Queue[Any]", outbox: "Queue[Any]") -> None:
    """Send gradients as numpy arrays through a queue; take the parameters from another."""
    model = seat.model()
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.grad is not None}

    def step() -> None:
        inbox.put({name: parameter.grad.numpy() for name, parameter in named.items() if parameter.grad is not None})
        received = outbox.get()
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(torch.from_numpy(received[name]))

    seat.repeat(step)


def process_cpu(pid: int) -> float:
    """Return the CPU seconds that a process has used, all its threads included, by the kernel's clock for it."""
    return time.clock_gettime((~pid << 3) | 2)
