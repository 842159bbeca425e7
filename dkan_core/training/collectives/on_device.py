"""The strategies where every rank has a GPU: what ranks exchange in a step, with state and optimizer on the devices.

Each rank applies the same update to the same parameters, as it does on the host, so that all states stay the same.

Sums by NCCL may be part of a CUDA graph. The documentation of NCCL and torch then requires: all ranks capture and
replay the same steps (``StepGraph``); the first sums are launched, so that connections exist before a capture; calls of
other threads, such as torch's watchdog, do not end the capture ("thread_local"); ``wait_for`` watches captured sums, as
torch does not; and graphs are released before the connections are closed (``DeviceRounds.close``).

Shape suffixes: P trainable parameters, N numbers of a buffer.
"""

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from dkan_core.training.collectives.allreduce import ring_all_reduce
from dkan_core.training.collectives.ddp import DdpModel
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.loss import total_weight
from dkan_core.training.compute.step_exchange import StepExchange
from dkan_core.training.state.parameter_store import UpdateRules

MIXING = "NCCL_GRAPH_MIXING_SUPPORT"
"""Variable that tells NCCL that launched and replayed sums are mixed."""

POLL_SECONDS = 1e-4
"""How often to check whether a device has reached an event: a step takes several times as long."""


class DeviceExchange(StepExchange):
    """Base of the strategies on GPUs; ``host_exchange.HostExchange`` is the counterpart on the host."""

    def __init__(self, process_group: ProcessGroup, replica: Replica, rules: UpdateRules) -> None:
        super().__init__(replica, rules.config)
        self.process_group = process_group

    @property
    def why_not_captured(self) -> str:
        if not self._sums_on_device:
            return "gloo takes sums through the host"
        # The last batch of an epoch is launched beside the graph.
        if os.environ.get(MIXING, "1") == "0":
            return f"{MIXING} is 0"
        return ""

    @property
    def _sums_on_device(self) -> bool:
        return self.process_group.device == self.replica.device

    def sum_over_ranks(self, buffer_N: Tensor) -> None:
        """Replace the numbers of every rank by their sum over all ranks."""
        if self._sums_on_device:
            self.all_reduce(buffer_N)
            return
        host_N = buffer_N.to(self.process_group.device)
        self.all_reduce(host_N)
        buffer_N.copy_(host_N)

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Do the same on the process group's device."""
        self.process_group.all_reduce(buffer_N)

    def wait_for_peers(self, record_activity: Callable[[], None]) -> None:
        self.process_group.wait_for_all(record_activity)

    def all_agree(self, agreed: bool) -> bool:
        """Return whether all ranks agree, so that all launch their sums in the same way."""
        refusals = torch.tensor([float(not agreed)], device=self.process_group.device)
        self.process_group.all_reduce(refusals)
        return refusals.item() == 0

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Wait until the device has reached an event; exit if that takes too long, as a rank may be gone."""
        deadline = time.monotonic() + self.config.exchange_timeout
        with self.process_group.exit_on_peer_loss():
            while not event.query():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"a step waited {self.config.exchange_timeout:g} s for the other ranks")
                time.sleep(POLL_SECONDS)


class GradientExchange(DeviceExchange):
    """``allreduce``: the gradient of a step is that of the global batch."""

    def __init__(self, process_group: ProcessGroup, replica: Replica, rules: UpdateRules) -> None:
        super().__init__(process_group, replica, rules)
        # The weight follows the gradient in the buffer, so one exchange sums both.
        self.buffer_N = torch.zeros(replica.values_P.numel() + 1, device=replica.device)
        replica.bind_gradients(self.buffer_N[:-1])

    def gradient(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Sum the gradients of all ranks, each weighted by its measured labels."""
        loss, weight = self.own_gradient(batch)
        self.replica.gradients_P.mul_(weight)
        total = self.buffer_N[-1]
        total.copy_(weight)
        self.sum_over_ranks(self.buffer_N)
        # A batch without a measured label has no mean; its gradient is zero.
        self.replica.gradients_P.div_(total.clamp(min=torch.finfo(total.dtype).tiny))
        return loss, weight, total


class RingExchange(GradientExchange):
    """``ring``: ``allreduce`` with sums around a ring."""

    def all_reduce(self, buffer_N: Tensor) -> None:
        ring_all_reduce(buffer_N, self.process_group)


class DdpExchange(DeviceExchange):
    """``ddp``: the gradient is averaged by DDP's hooks."""

    def __init__(self, process_group: ProcessGroup, replica: Replica, rules: UpdateRules) -> None:
        super().__init__(process_group, replica, rules)
        self.model = DdpModel(process_group, replica, rules.config)

    @property
    def why_not_captured(self) -> str:
        """Always a reason: DDP rebuilds its buckets in the first steps, and counts its calls on the host."""
        return "DDP counts its calls on the host; strategy allreduce computes the same, and can be captured"

    def gradient(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Compute this rank's share of the global loss, and let DDP average its gradient."""
        self.replica.gradients_P.zero_()
        weight = total_weight(batch, self.config)
        loss, total = self.model.backward(batch, weight)
        return loss, weight, total


class AveragingExchange(DeviceExchange):
    """``local-sgd``: parameters and moments are averaged after each round, weighted by rows; nothing in a step."""

    ends_rounds = True

    def __init__(self, process_group: ProcessGroup, replica: Replica, rules: UpdateRules) -> None:
        super().__init__(process_group, replica, rules)
        self.buffer_N = torch.zeros(3 * replica.values_P.numel() + 1, device=replica.device)

    @property
    def why_not_captured(self) -> str:
        """Never a reason: steps exchange nothing."""
        return ""

    def all_agree(self, agreed: bool) -> bool:
        """Return this rank's own answer: it steps alone."""
        return agreed

    def end_round(self, state_3P: Tensor, rows: int) -> None:
        """Replace parameters and moments by their mean over all ranks."""
        if self.process_group.size == 1:
            return
        torch.mul(state_3P.view(-1), rows, out=self.buffer_N[:-1])
        self.buffer_N[-1].fill_(rows)
        self.sum_over_ranks(self.buffer_N)
        torch.div(self.buffer_N[:-1], self.buffer_N[-1], out=state_3P.view(-1))
