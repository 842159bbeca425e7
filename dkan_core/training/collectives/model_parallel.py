"""What strategies that divide the model among ranks share: each rank's device holds only a part of it.

Every rank has the whole state in its host's memory, as with all strategies, so checkpoints, snapshots and the recovery
from a rank's death are the same. Each rank computes its part of a step's gradient, with zeros elsewhere: one sum over
all ranks makes it whole, however the model is divided.

Shape suffixes: P trainable parameters of the whole model.
"""

from abc import abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor

from dkan_core.model.base import TabularModel
from dkan_core.model.build import build_model
from dkan_core.training.collectives.host_exchange import HostExchange, RoundInputs, RoundTotals
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.utils.arrays import Arrays


class ModelParallelism(HostExchange):
    """One gradient a step, computed by ranks that each have a part of the model."""

    repeated: tuple[str, ...] = ()
    """Name prefixes of the parameters that all ranks of a copy have, with the same gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.per_copy = self.config.workers_per_copy
        self.part_index = self.process_group.rank % self.per_copy
        """Index of this rank among those that share a copy of the model."""

        self._shapes = {name: each.shape for name, each in self.replica.model.named_parameters() if each.requires_grad}
        # The current GPU, which may have another number in this process than in the settings.
        self.device = torch.device(torch.device(self.config.devices[self.process_group.rank]).type)
        with self.process_group.exit_on_peer_loss():
            part = self.take_part(build_model(self.replica.model.config))
        self.part = Replica(part, self.device, self.config.kernel)

    @abstractmethod
    def take_part(self, model: TabularModel) -> TabularModel:
        """Return a model with this rank's part of each parameter, under the same name; others need no gradient."""

    @abstractmethod
    def add_gradient(self, arrays: Arrays) -> LossTotals:
        """Add the gradient of a slice's loss, summed over its labels, to the part's gradient; return the mean loss.

        One rank of each copy returns loss, weight and rows; the others return zeros.
        """

    def run_sync_round(self, inputs: RoundInputs) -> RoundTotals:
        """Compute this rank's part of the gradient, and sum all parts."""
        (step,) = inputs.steps
        arrays = self.batches.get(step, self.process_group.rank)
        with torch.no_grad():
            for _, own, whole in self._slices(torch.from_numpy(inputs.state_KP[0])):
                own.copy_(whole)
        self.part.gradients_P.zero_()
        with self.process_group.exit_on_peer_loss():
            own_totals = self.add_gradient(arrays)
        self.update_N.zero_()
        for name, own, whole in self._slices(self.update_N):
            if self.part_index == 0 or not name.startswith(self.repeated):
                whole.copy_(own.grad)  # type: ignore[arg-type]
        self.write_tail(RoundTotals.for_round(inputs, *own_totals))
        self.process_group.all_reduce(self.buffer_N)
        totals = self.read_tail()
        if totals.weight:
            self.update_N.div_(totals.weight)
        return totals

    def _slices(self, flat_P: Tensor) -> "Iterator[tuple[str, Tensor, Tensor]]":
        """Yield name and value of each parameter of this rank, and its slice of an array of all parameters."""
        own = {name: each for name, each in self.part.model.named_parameters() if each.requires_grad}
        start = 0
        for name, shape in self._shapes.items():
            whole = flat_P[start : start + shape.numel()].view(shape)
            start += shape.numel()
            if name in own:
                yield name, own[name], divided(whole, own[name].shape, self.part_index)


def divided(whole: Tensor, shape: torch.Size, index: int) -> Tensor:
    """Return the view of a tensor that a rank has: the whole, or an even share along one dimension.

    >>> divided(torch.arange(8).view(2, 4), torch.Size([2, 2]), 1).tolist()
    [[2, 3], [6, 7]]
    """
    for dim, (size, own) in enumerate(zip(whole.shape, shape, strict=True)):
        if size != own:
            return whole.narrow(dim, index * own, own)
    return whole
