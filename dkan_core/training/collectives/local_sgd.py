"""Local SGD (Stich 2019, arXiv:1805.09767) with AdamW: local steps, and an average every ``sync_interval``.

Each rank begins a round with the common state and has its own moments until the round ends; then parameters and moments
are averaged, weighted by rows. So only the common state has to be kept, and a single rank equals plain training to the
bit.

Shape suffixes: P trainable parameters, N numbers of a buffer.
"""

import numpy as np
import torch

from dkan_core.training.collectives.host_exchange import HostExchange, RoundInputs, RoundTotals
from dkan_core.training.compute.device_steps import make_local_steps


class LocalSGD(HostExchange):
    """Parameters and moments are averaged by torch.distributed."""

    arrays = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.local_steps = make_local_steps(self.replica, self.batches, self.rules, self.on_step)
        self.state_3P = np.zeros((self.arrays, self.replica.values_P.numel()), np.float32)

    def run_sync_round(self, inputs: RoundInputs) -> RoundTotals:
        """Take the steps of a round alone, then average."""
        # A copy, so that a refused round leaves the committed state as it was.
        np.copyto(self.state_3P, inputs.state_KP[: self.arrays])
        totals = self.local_steps.take(self.state_3P, inputs.steps, self.process_group.rank, inputs.lr_scale)
        own = RoundTotals.for_round(inputs, *totals)
        self.update_N.copy_(torch.from_numpy(self.state_3P.reshape(-1)))
        self.write_tail(own)
        if self.process_group.size > 1:
            self.update_N.mul_(own.rows)
            self.process_group.all_reduce(self.buffer_N)
            self.update_N.div_(self.read_tail().rows)
        return self.read_tail()
