"""What a worker needs of its device's memory: whether all rows lie there, and how many it computes at once."""

from dataclasses import dataclass

from dkan_core.training.compute.resident_rows import room_for_rows
from dkan_core.training.planning.sizes import show_size

# Share of a device's memory that a plan leaves free: for the driver, the allocator's rounding and other processes.
RESERVED_SHARE = 0.1

# As many parts as ``accumulate`` may have, rounded down to a power of two.
MAX_PARTS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class MemoryNeed:
    """Bytes that a worker's step needs: parameters and gradients, and more for every row."""

    fixed: float
    per_row: float

    def bytes_for(self, rows: float) -> float:
        """Return the bytes that a step on ``rows`` rows needs."""
        return self.fixed + rows * self.per_row


def fit_memory(small: tuple[int, int], large: tuple[int, int]) -> MemoryNeed:
    """Return the need that two measured (rows, bytes) lie on.

    >>> fit_memory((10, 1_500), (100, 6_000))
    MemoryNeed(fixed=1000.0, per_row=50.0)
    """
    rows, size = small
    more_rows, more_size = large
    per_row = max(0.0, (more_size - size) / (more_rows - rows)) if more_rows > rows else 0.0
    # Through the larger point, which is nearer to the sizes that are asked about.
    return MemoryNeed(fixed=more_size - more_rows * per_row, per_row=per_row)


def parts_that_fit(need: MemoryNeed, rows: float, device_memory: float) -> int | None:
    """Return the fewest parts, a power of two, in which a worker's rows fit into its device; None where not even one.

    >>> need = MemoryNeed(fixed=1_000.0, per_row=50.0)
    >>> [parts_that_fit(need, 100, memory) for memory in (10_000, 5_000, 1_000)]
    [1, 2, None]
    """
    usable = (1 - RESERVED_SHARE) * device_memory
    parts = 1
    while need.bytes_for(max(1.0, rows / parts)) > usable:
        if rows / parts <= 1 or parts >= MAX_PARTS:
            return None
        parts *= 2
    return parts


def why_rows_are_sent(data_in: str, size: int, device_memory: float | None) -> str:
    """Return why a GPU is sent every batch; empty where all rows lie on it.

    Args:
        data_in: The setting that says where rows are.
        size: Bytes of the train split on a GPU.
        device_memory: Bytes of a GPU; None where they are not known.

    >>> why_rows_are_sent("auto", 79 << 30, 80 << 30), why_rows_are_sent("auto", 60 << 30, 80 << 30)
    ('the 79 GB of the train split do not fit there, as 20 GB are kept free', '')
    >>> why_rows_are_sent("disk", 1 << 30, None), why_rows_are_sent("auto", 1 << 40, None)
    ('data_in is disk', '')
    """
    if data_in not in ("auto", "device"):
        return f"data_in is {data_in}"
    if device_memory is None or size <= room_for_rows(device_memory):
        return ""
    spare = show_size(device_memory - room_for_rows(device_memory))
    return f"the {show_size(size)} of the train split do not fit there, as {spare} are kept free"
