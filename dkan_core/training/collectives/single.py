"""One rank, whose gradient is the whole one."""

from torch import Tensor

from dkan_core.training.collectives.base import GradientStrategy, Sums, Task


class Single(GradientStrategy):
    """Nothing to merge."""

    def round(self, task: Task) -> Sums:
        """Compute the gradient of the global batch, to the bit what one worker of a parameter server computes."""
        (step,) = task.steps
        arrays = self.batches.get(step, 0)
        self.replica.load(task.state_KP[0])
        loss, weight = self.replica.gradient(arrays, self.config)
        return Sums.of(task, loss=loss, weight=weight, rows=len(arrays["labels"]))

    def all_reduce(self, buffer_N: Tensor) -> None:
        """Do nothing."""
