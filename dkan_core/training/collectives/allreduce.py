"""Gradients summed as one flat buffer a step: by torch.distributed, or around a ring that is written out.

No hooks are needed, and nothing is packed or copied. In the ring, each rank talks only to its two neighbours: with W
ranks, each rank sends every number 2 (W - 1) / W times, and every sum has one fixed order.

Shape suffixes: N numbers of a buffer.
"""

import torch
from torch import Tensor

from dkan_core.training.collectives.host_exchange import HostExchange, RoundInputs, RoundTotals
from dkan_core.training.communication.process_group import ProcessGroup


class AllReduce(HostExchange):
    """One gradient a step: that of the global batch, the mean over its measured labels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replica.device == self.process_group.device:
            self.replica.bind_gradients(self.update_N)

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Replace the numbers of every rank by their sum, with torch.distributed over NCCL or gloo."""
        # Overlapping it with the backward pass, as DDP does, gains nothing here: nearly all of the gradient is the
        # first layer's, which comes last.
        self.process_group.all_reduce(buffer_N)

    def run_sync_round(self, inputs: RoundInputs) -> RoundTotals:
        """Compute this rank's gradient, and sum the gradients of all ranks, weighted by measured labels."""
        (step,) = inputs.steps
        self.replica.load(inputs.state_KP[0])
        own = self.replica.compute_gradient(self.batches.get(step, self.process_group.rank), self.config)
        if self.replica.gradients_P.data_ptr() != self.update_N.data_ptr():
            self.update_N.copy_(self.replica.gradients_P)
        # Labels count alike, whichever rank has them: the sum is the gradient of the global batch.
        self.update_N.mul_(own.weight)
        self.write_tail(RoundTotals.for_round(inputs, *own))
        self.all_reduce(self.buffer_N)
        totals = self.read_tail()
        # A batch without a measured label has no mean.
        if totals.weight:
            self.update_N.div_(totals.weight)
        return totals


class Ring(AllReduce):
    """``AllReduce`` with sums around a ring."""

    def all_reduce(self, buffer_N: Tensor) -> None:
        ring_all_reduce(buffer_N, self.process_group)


def ring_all_reduce(buffer_N: Tensor, process_group: ProcessGroup) -> None:
    """Replace the numbers of every rank by their sum over the ring.

    The buffer is cut into as many chunks as there are ranks. First each chunk goes around and grows to a sum, which
    is whole at one rank; then the sums go around.
    """
    rank, size, exchange = process_group.rank, process_group.size, process_group.exchange_with_neighbors
    chunks = torch.tensor_split(buffer_N, size)
    scratch = torch.empty_like(chunks[0])
    # After this loop, each rank has the whole sum of one chunk.
    for turn in range(size - 1):
        target = chunks[(rank - turn - 1) % size]
        received = scratch[: len(target)]
        exchange(chunks[(rank - turn) % size], received)
        target += received
    for turn in range(size - 1):
        exchange(chunks[(rank - turn + 1) % size], chunks[(rank - turn) % size])
