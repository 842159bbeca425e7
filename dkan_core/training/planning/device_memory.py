"""What a worker needs of its device's memory, and whether its rows must be computed in parts."""

from dataclasses import dataclass

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

    Args:
        need: Of one step.
        rows: Of a worker's slice.
        device_memory: Bytes of the device.

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
