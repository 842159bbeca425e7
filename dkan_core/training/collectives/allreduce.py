"""Gradients summed as one flat buffer a step: by torch.distributed, or around a ring that is written out.

No hooks, and nothing is packed or copied. In the ring each rank talks to its two neighbours alone: with W ranks each
number is sent 2 (W - 1) / W times by each, whatever W, and every sum has one fixed order.

Shape suffixes: N numbers of a buffer.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from dkan_core.training.collectives.base import GradientStrategy

Exchange = Callable[[Tensor, Tensor], None]
"""Sends the first to the next rank and fills the second from the one before."""


class AllReduce(GradientStrategy):
    """Gradients are summed by torch.distributed, with NCCL or gloo."""

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Put the sum over all ranks in the place of each one's numbers."""
        # Overlapping it with the backward pass, as DDP does, gains nothing here: nearly all of the gradient is the
        # first layer's, which comes last.
        self.process_group.all_reduce(buffer_N)


class Ring(GradientStrategy):
    """Gradients are summed around a ring."""

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Put the sum over all ranks in the place of each one's numbers."""
        ring_all_reduce(
            buffer_N, self.process_group.rank, self.process_group.size, self.process_group.exchange_with_neighbors
        )


def ring_all_reduce(buffer_N: Tensor, rank: int, size: int, exchange: Exchange) -> None:
    """Put the sum over a ring of ranks in the place of each one's numbers.

    The buffer is cut into as many chunks as there are ranks. First each chunk goes around and grows to a sum, which
    is whole at one rank; then the sums go around.

    Args:
        buffer_N: One rank's numbers.
        rank: Its position in the ring.
        size: Ranks of the ring.
        exchange: How it talks to its neighbours.
    """
    chunks = torch.tensor_split(buffer_N, size)
    scratch = torch.empty_like(chunks[0])
    # After this, each rank has one chunk that is summed.
    for turn in range(size - 1):
        target = chunks[(rank - turn - 1) % size]
        received = scratch[: len(target)]
        exchange(chunks[(rank - turn) % size], received)
        target += received
    for turn in range(size - 1):
        exchange(chunks[(rank - turn + 1) % size], chunks[(rank - turn) % size])
