"""torch's DistributedDataParallel, as the reference that the other strategies are compared with.

Shape suffixes: M members, B rows, L labels.
"""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.model.base import TabularModel
from dkan_core.training.collectives.host_exchange import HostExchange, RoundInputs, RoundTotals
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import parts_of
from dkan_core.training.compute.loss import part_loss, total_weight
from dkan_core.training.compute.pinned_memory import to_tensors


class DistributedDataParallelism(HostExchange):
    """Gradients are averaged by hooks, in buckets, while the rest is still being computed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.model = DdpModel(self.process_group, self.replica, self.config)

    def run_sync_round(self, inputs: RoundInputs) -> RoundTotals:
        """Compute this rank's share of the global loss, and let DDP average its gradient."""
        (step,) = inputs.steps
        arrays = self.batches.get(step, self.process_group.rank)
        self.replica.load(inputs.state_KP[0])
        self.replica.gradients_P.zero_()
        batch = to_tensors(arrays, self.replica.device)
        weight = total_weight(batch, self.config)
        mean, _ = self.model.backward(batch, weight)
        self.write_tail(RoundTotals.for_round(inputs, mean.item(), weight.item(), len(arrays["labels"])))
        self.process_group.all_reduce(self._tail)
        self.update_N.copy_(self.replica.gradients_P)
        return self.read_tail()


class DdpModel:
    """A replica whose gradients torch's DistributedDataParallel averages."""

    def __init__(self, process_group: ProcessGroup, replica: Replica, config: ResolvedTrainConfig) -> None:
        self.process_group = process_group
        self.config = config
        devices = [replica.device] if replica.device.type == "cuda" else None
        with process_group.exit_on_peer_loss():
            self.model = DistributedDataParallel(_Logits(replica.model), device_ids=devices, init_sync=False)

    def backward(self, batch: dict[str, Tensor], weight: Tensor) -> tuple[Tensor, Tensor]:
        """Put the gradient of the global batch into the parameters' ``grad``, which is zero before.

        Args:
            batch: This rank's rows, maybe none.
            weight: Total weight of their measured labels.

        Returns:
            The mean loss of these rows, and the weight of the global batch: scalars.
        """
        total = weight.to(self.process_group.device, copy=True)
        self.process_group.all_reduce(total)
        total = total.to(weight.device)
        # DDP takes the plain mean over ranks; divided by this, losses add up to the mean over the labels of all.
        share = total / self.process_group.size
        loss = self._backward_in_parts(batch, share)
        return loss * share / torch.where(weight > 0, weight, 1.0), total

    def _backward_in_parts(self, batch: dict[str, Tensor], share: Tensor) -> Tensor:
        """Average the gradients of a batch's parts, the last one's while it is computed; return the loss."""
        losses = []
        # At least once, also without rows: the other ranks wait for this one's part of the average.
        parts = parts_of(batch, self.config)
        for part in parts:
            waits = nullcontext() if part is parts[-1] else self.model.no_sync()
            with waits, self.process_group.exit_on_peer_loss():
                part_of_loss = part_loss(self.model, part, self.config, share)
                torch.autograd.backward(part_of_loss)
            losses.append(part_of_loss.detach())
        return torch.stack(losses).sum()


class _Logits(nn.Module):
    """A module whose ``forward`` returns the logits of the model's members."""

    def __init__(self, model: TabularModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the logits ``(M, B, L)``."""
        return self.model.member_logits(**inputs)
