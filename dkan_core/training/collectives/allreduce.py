"""One all-reduce of one flat buffer a step; no hooks, nothing is packed or copied."""

from torch import Tensor

from dkan_core.training.collectives.base import GradientStrategy


class AllReduce(GradientStrategy):
    """Gradients are summed by torch.distributed, with NCCL or gloo."""

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Put the sum over all ranks in the place of each one's numbers."""
        # Overlapping it with the backward pass, as DDP does, gains nothing here: nearly all of the gradient is the
        # first layer's, which comes last.
        self.process_group.all_reduce(buffer_N)
