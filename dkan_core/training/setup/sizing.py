"""Default sizes of a network and of its training, as functions of the train split."""

from dataclasses import dataclass

from dkan_core.config import TrainConfig
from dkan_core.data.format.split_info import SplitInfo

# The numbers below were chosen on validation rows: docs/benchmarks/experiments.md names the data sets and some of the
# gains.

# Rows of a batch over the root of the train split's rows.
BATCH_PER_ROOT = 2.8
MIN_BATCH = 128
MAX_BATCH = 65_536
ROWS_TO_SEE = 1_500_000
# Too few steps cost more AP than any other choice: small data get more epochs, and no plan recommends batches that
# leave fewer steps.
STEPS_TO_TAKE = 800
MIN_EPOCHS = 3
MAX_EPOCHS = 20

# Upper limit of the rows, members, and hidden units of each. Several members instead of one of the same total width
# gained 0.029 of AP on tox21, 0.005 on bank_marketing and nothing on adult. On the flights, which have the most rows,
# width gains more: 128 units instead of 64 gained 0.010 of AP, 256 another 0.005.
SIZES = ((16_000, 4, 128), (128_000, 2, 128))
# Members and hidden units for more rows, and for ``model="fastkan"``.
LARGE, PLAIN = (1, 256), (1, 64)
# Basis functions, and dropout of hidden units; ``search_space`` has what a search may choose instead.
CENTERS, DROPOUT = 8, 0.2

# Members of an additive model: with fewer, the band given by their spread is less certain.
ADDITIVE_MEMBERS = {"fast": 4, "default": 8, "best": 16}

# Positions of the first and last basis function: those of the paper, and a wider grid, whose broader functions fit less
# noise. Used below this number of rows of the rarer class, the wide grid gained 0.002 of AP (mean of seven data sets);
# above, it lost 0.001 (mean of three).
PAPER_GRID, WIDE_GRID = (-2.0, 2.0), (-3.0, 3.0)
WIDE_GRID_ROWS = 8_000


@dataclass(frozen=True, kw_only=True)
class SizeFactors:
    """Factors on the sizes that follow from the data."""

    members: float = 1.0
    width: float = 1.0
    batch: int = 1
    epochs: float = 1.0


# docs/benchmarks/quality.md has their cost and benefit.
QUALITIES = {
    "fast": SizeFactors(members=0.5, width=0.5, batch=2, epochs=0.4),
    "default": SizeFactors(),
    "best": SizeFactors(members=4),
}


def rarer_class_rows(split: SplitInfo) -> float:
    """Return the rows of the rarer class of a label, averaged over the labels.

    >>> classes = {"bought": {"0": 90, "1": 10, "null": 0}, "returned": {"0": 4, "1": 6, "null": 90}}
    >>> rarer_class_rows(SplitInfo(rows=100, classes=classes, shards=[]))
    7.0
    """
    return sum(min(counts["0"], counts["1"]) for counts in split.classes.values()) / len(split.classes)


def grid_range(config: TrainConfig, rarer_rows: float) -> tuple[float, float]:
    """Return the positions of the first and the last basis function."""
    wide = config.model != "fastkan" and rarer_rows < WIDE_GRID_ROWS
    low, high = WIDE_GRID if wide else PAPER_GRID
    return low if config.grid_min is None else config.grid_min, high if config.grid_max is None else config.grid_max


def network_size(config: TrainConfig, rows: int) -> tuple[int, tuple[int, ...]]:
    """Return the members and the widths of each one's hidden layers."""
    if config.model == "additive":
        return config.members or ADDITIVE_MEMBERS[config.quality], ()
    by_rows = next(((members, width) for below, members, width in SIZES if rows < below), LARGE)
    members, width = PLAIN if config.model == "fastkan" else by_rows
    quality = QUALITIES[config.quality]
    width = int(quality.width * width)
    # A plain network has one member, whatever the quality.
    members = 1 if config.model == "fastkan" else max(1, int(quality.members * members))
    return config.members or members, (width,) if config.hidden is None else config.hidden


def batch_rows(config: TrainConfig, workers: int, rows: int) -> int:
    """Return the rows of a step over all workers, at most all there are."""
    if config.batch_size_per_worker is not None:
        return min(workers * config.batch_size_per_worker, rows)
    wanted = max(MIN_BATCH, min(MAX_BATCH, int(BATCH_PER_ROOT * rows**0.5)))
    by_rows = QUALITIES[config.quality].batch * (1 << (wanted.bit_length() - 1))
    return min(config.batch_size or min(MAX_BATCH, by_rows), rows)


def epoch_count(config: TrainConfig, rows: int, batch_size: int, *, needs_gradients: bool) -> int:
    """Return the maximum of passes over the train split: one if gradient training is of no use."""
    if not needs_gradients:
        return config.epochs or 1
    quality = QUALITIES[config.quality]
    by_rows = max(MIN_EPOCHS, min(10, round(ROWS_TO_SEE / rows)))
    # A larger batch is meant to save time, so it is no reason for more epochs.
    by_steps = min(MAX_EPOCHS, STEPS_TO_TAKE * (batch_size // quality.batch) // rows)
    return config.epochs or max(MIN_EPOCHS, round(quality.epochs * max(by_rows, by_steps)))
