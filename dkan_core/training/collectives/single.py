"""One rank, whose gradient is the whole one."""

from torch import Tensor

from dkan_core.training.collectives.base import GradientStrategy, RoundInputs, RoundTotals


class Single(GradientStrategy):
    """Nothing to aggregate."""

    def run_sync_round(self, inputs: RoundInputs) -> RoundTotals:
        """Compute the gradient of the global batch, to the bit what one worker of a parameter server computes."""
        (step,) = inputs.steps
        arrays = self.batches.get(step, 0)
        self.replica.load(inputs.state_KP[0])
        loss, weight = self.replica.compute_gradient(arrays, self.config)
        return RoundTotals.for_round(inputs, loss=loss, weight=weight, rows=len(arrays["labels"]))

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Do nothing."""
