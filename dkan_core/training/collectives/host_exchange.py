"""What ranks exchange in a round, with the state on the host: the base of the strategies without a server.

Shape suffixes: P trainable parameters, K arrays of the state, N numbers of a buffer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import astuple, dataclass, fields
from typing import Self

import torch
from torch import Tensor

from dkan_core.data.loading.loader import SliceBatches
from dkan_core.training.communication.process_group import ProcessGroup
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.utils.arrays import Float32

# float32 counts exactly up to 2**24; split in two numbers, rows are exact up to 2**36.
ROWS_UNIT = 1 << 12


@dataclass(frozen=True, kw_only=True)
class RoundTotals:
    """Values summed over the ranks along with gradients or parameters, in float32; counts are split to stay exact."""

    weight: float = 0.0
    """Sum over the measured labels."""

    loss: float = 0.0
    """Times its weight."""

    row_units: float = 0.0
    """Rows, in units of ``ROWS_UNIT``."""

    row_remainder: float = 0.0
    """The remaining rows."""

    ending: float = 0.0
    """Why the run ends after this round, as decided by the first rank: an index of ``ENDINGS``."""

    checksum: float = 0.0
    """Checksum of the state at the last restore point: the same in every rank unless they have diverged."""

    square: float = 0.0
    """The checksum, squared."""

    broken: float = 0.0
    """Ranks whose steps lead to values that are not finite."""

    rounds: float = 0.0
    """How many rounds follow before the next commit, by the first rank's clock; 0 where there is one a commit."""

    @classmethod
    def for_round(cls, inputs: "RoundInputs", loss: float, weight: float, rows: int) -> "RoundTotals":
        """Return what one rank adds to the totals."""
        row_units, row_remainder = divmod(rows, ROWS_UNIT)
        return cls(
            weight=weight,
            loss=loss * weight,
            row_units=row_units,
            row_remainder=row_remainder,
            ending=inputs.ending,
            checksum=inputs.checksum,
            square=inputs.checksum**2,
        )

    @classmethod
    def from_tensor(cls, totals: Tensor) -> Self:
        """Return the totals in a tensor, which has them in the order of the fields."""
        return cls(**dict(zip((field.name for field in fields(cls)), totals.tolist(), strict=True)))

    def over_ranks(self, process_group: ProcessGroup) -> Self:
        """Return the sum over all ranks."""
        totals = torch.tensor(astuple(self), device=process_group.device)
        process_group.all_reduce(totals)
        return self.from_tensor(totals)

    def checksums_agree(self, size: int) -> bool:
        """Return whether the checksums of ``size`` ranks are all the same; each rank finds the same answer."""
        return int(self.checksum) ** 2 == size * int(self.square)

    @property
    def mean_loss(self) -> float:
        """Mean over the measured labels."""
        return self.loss / self.weight if self.weight else 0.0

    @property
    def rows(self) -> int:
        """Rows of all ranks."""
        return int(self.row_units) * ROWS_UNIT + int(self.row_remainder)


TOTALS = len(fields(RoundTotals))


@dataclass(frozen=True, kw_only=True)
class RoundInputs:
    """What a rank begins a round with."""

    state_KP: Float32
    """The committed state."""

    steps: range
    lr_scale: float
    """Factor of the learning rate."""

    ending: int
    """What this rank knows about the end of the run, as an index of ``ENDINGS``."""

    checksum: int = 0
    """See ``RoundTotals``."""


@dataclass
class HostExchange(ABC):
    """How ranks combine their gradients or their parameters, with the state on the host.

    ``on_device.DeviceExchange`` is the counterpart for GPUs, where a rank takes its steps without the host.
    """

    process_group: ProcessGroup
    replica: Replica
    batches: SliceBatches
    rules: UpdateRules
    on_step: Callable[[], None] = lambda: None
    """Called after each step of a round that has several."""

    arrays = 1
    """How many times P numbers a round aggregates."""

    def __post_init__(self) -> None:
        self.config = self.rules.config
        count = self.arrays * self.replica.values_P.numel()
        # The totals follow the numbers in the buffer, so one exchange sums both.
        self.buffer_N = torch.zeros(count + TOTALS, device=self.process_group.device)
        self.update_N = self.buffer_N[:count]
        self._tail = self.buffer_N[count:]

    @abstractmethod
    def run_sync_round(self, inputs: RoundInputs) -> RoundTotals:
        """Leave the update of a round, the same in every rank, in ``update_N``; return what was summed."""

    def reduced_update(self) -> Float32:
        """Return the update of the last round as an array, valid until the next one."""
        reduced_N: Float32 = self.update_N.cpu().numpy()
        return reduced_N

    def write_tail(self, own: RoundTotals) -> None:
        """Write this rank's part of the totals behind its numbers."""
        self._tail.copy_(torch.tensor(astuple(own)))

    def read_tail(self) -> RoundTotals:
        """Return the totals behind the numbers, once they are summed."""
        return RoundTotals.from_tensor(self._tail)
