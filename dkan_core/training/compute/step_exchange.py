"""How a step on a device works with other processes: the interface, and its version for a process alone."""

from collections.abc import Callable

import torch
from torch import Tensor

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import add_gradient


class StepExchange:
    """Exchanges of steps that all processes take at the same time: the gradient, and the end of a round."""

    has_peers = True
    """Whether there are other processes."""

    ends_rounds = False
    """Whether anything is exchanged at the end of a round."""

    @property
    def why_not_captured(self) -> str:
        """Why no CUDA graph may hold what is exchanged in a step; empty where one may."""
        return ""

    def __init__(self, replica: Replica, config: ResolvedTrainConfig) -> None:
        self.replica = replica
        self.config = config

    def gradient(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Write the gradient for a step into the replica's gradients.

        Args:
            batch: This process's rows, maybe none.

        Returns:
            The mean loss of these rows, its weight, and the weight that the gradient is the mean over: scalars.
        """
        loss, weight = self.own_gradient(batch)
        return loss, weight, weight

    def own_gradient(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Put the gradient of the mean loss of this process's rows into the replica's; return that loss and its weight.

        No other process takes part.
        """
        self.replica.gradients_P.zero_()
        if len(batch["labels"]):
            return add_gradient(self.replica.model, batch, self.config)
        nothing = self.replica.gradients_P.new_zeros(())
        return nothing, nothing

    def end_round(self, state_3P: Tensor, rows: int) -> None:
        """Replace parameters and moments after a round by what the processes agree on.

        Args:
            state_3P: Changed in place.
            rows: Weight of this process's state.
        """

    def wait_for_peers(self, record_activity: Callable[[], None]) -> None:
        """Wait until all processes are ready to take steps, however long it takes them; record activity meanwhile."""

    def all_agree(self, agreed: bool) -> bool:
        """Return whether all processes agree; their steps have to be launched in the same way."""
        return agreed

    def wait_for(self, event: torch.cuda.Event) -> None:
        """Wait until the device has reached an event."""
        event.synchronize()


class NoExchange(StepExchange):
    """No other processes."""

    has_peers = False
