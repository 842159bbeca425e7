"""Sizes of a network and of its training, chosen from the train split by rules that are written down here."""

from dataclasses import dataclass, replace

from dkan_core.config import ResolvedTrainConfig, TrainConfig
from dkan_core.config.strategies import MODEL_PARALLEL
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.format.split_info import SplitInfo

# The numbers below were chosen on validation rows: docs/benchmarks/experiments.md says of which sets, and what some of
# them are worth.

# Rows of a batch over the root of the train split's rows.
BATCH_PER_ROOT = 2.8
MIN_BATCH = 128
MAX_BATCH = 65_536
ROWS_TO_SEE = 1_500_000
# Too few steps cost more AP than any other choice: small data gets more epochs, and no plan recommends batches that
# leave fewer steps.
STEPS_TO_TAKE = 800
MIN_EPOCHS = 3
MAX_EPOCHS = 20

# Rows below which there are so many members of so many hidden units. Several members instead of one that is as wide are
# worth 0.029 of AP on tox21, 0.005 on bank_marketing and nothing on adult. On the flights, which have the most rows,
# width is worth more: 128 units instead of 64 gained 0.010 of AP, 256 another 0.005.
SIZES = ((16_000, 4, 128), (128_000, 2, 128))
# Members and hidden units for more rows, and for ``model="fastkan"``.
LARGE, PLAIN = (1, 256), (1, 64)
# Basis functions, and dropout of hidden units: by default, and where trials found that more can be learned. With a
# second hidden layer and 280,000 to 1,400,000 rows, dropout lost 0.004 to 0.006 of AP.
CENTERS, FINE_CENTERS = 8, 16
DROPOUT, NO_DROPOUT = 0.2, 0.0
# Rows from which on the architecture is searched, and from which on a second hidden layer is tried, as fewer do not
# show what it is worth; and the units of a first hidden layer over those of a second one.
SEARCH_ROWS, DEPTH_SEARCH_ROWS, WIDTH_PER_SECOND = 2_000, 50_000, 4
# What a search for the architecture decides, where none of it is given.
SEARCHED_SETTINGS = ("hidden", "num_centers", "dropout")

# Members of an additive model: the fewer, the less certain is the band that their spread gives.
ADDITIVE_MEMBERS = {"fast": 4, "default": 8, "best": 16}

# Rows times terms times labels up to which the tables of an additive model are fitted again, by penalized likelihood:
# about a minute on one core, and 400 MB, without what the sharpest pairs take. A step of a term costs as much as so
# many rows, however few there are.
MAX_FITTED_CELLS, MIN_FITTED_ROWS = 100_000_000, 25_000
# Pairs of such tables with ``pairs="auto"``, as many as these cells allow: the penalty draws those that are noise to
# nothing.
MIN_FITTED_PAIRS, MAX_FITTED_PAIRS = 48, 96
# Rows for each term from which on validation preferred that fit to gradients in every run that was tried. With four
# rows a term (fingerprints of 1,024 bits) gradients may be better by far.
MIN_ROWS_PER_TERM = 70

# Rows times terms times labels that a network's additive partner is fitted to, at most: three seconds on one core,
# and 150 MB, without what the sharpest pairs take. Of more rows it takes the first ones, which are shuffled, but no
# fewer than the first number below. Of fewer rows in all than the second one, neither the fit nor what it should count
# can be told.
MAX_BLEND_CELLS = 30_000_000
# Terms whose fit takes as long as that of one ID in each row.
TERMS_PER_ID = 10
MIN_SAMPLED_ROWS, MIN_BLEND_ROWS = 20_000, 100

# Positions of the first and last basis function: those of the paper, and wider ones of broader functions, which fit
# less noise. The wide grid gained 0.002 of AP, the mean of seven sets with fewer rows of the rarer class than this, and
# lost 0.001, that of three with more.
PAPER_GRID, WIDE_GRID = (-2.0, 2.0), (-3.0, 3.0)
WIDE_GRID_ROWS = 8_000


@dataclass(frozen=True, kw_only=True)
class SizeFactors:
    """Factors on the sizes that follow from the data."""

    members: float = 1.0
    width: float = 1.0
    batch: int = 1
    epochs: float = 1.0


# What they cost and bring is in docs/benchmarks/quality.md.
QUALITIES = {
    "fast": SizeFactors(members=0.5, width=0.5, batch=2, epochs=0.4),
    "default": SizeFactors(),
    "best": SizeFactors(members=4),
}


def rarer_class_rows(split: SplitInfo) -> float:
    """Return the rows of a label's rarer class, the mean over labels.

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


def searches_architecture(config: TrainConfig, rows: int) -> bool:
    """Return whether trials decide about the architecture: unless the settings say what they would.

    >>> searches_architecture(TrainConfig(), 5_000), searches_architecture(TrainConfig(hidden=(64,)), 5_000)
    (True, False)
    """
    if isinstance(config, ResolvedTrainConfig):
        return config.architecture_search
    is_open = config.architecture_search and config.model == "auto" and rows >= SEARCH_ROWS
    is_open = is_open and config.strategy not in MODEL_PARALLEL
    return is_open and all(getattr(config, name) is None for name in SEARCHED_SETTINGS)


def refined(config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    """Return the settings of a network with more basis functions, each of them narrower."""
    return replace(config, num_centers=FINE_CENTERS, dropout=NO_DROPOUT)


def deepened(config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    """Return the settings of a network with a second hidden layer."""
    return replace(config, hidden=(*config.hidden, max(1, config.hidden[-1] // WIDTH_PER_SECOND)), dropout=NO_DROPOUT)


def possible_findings(config: ResolvedTrainConfig) -> list[ResolvedTrainConfig]:
    """Return the settings that a search may find; the first are those of a run without one."""
    if not config.architecture_search:
        return [config]
    shallow = [config, refined(config)]
    return [*shallow, *map(deepened, shallow)]


def can_fit_tables(rows: int, terms: int, labels: int) -> bool:
    """Return whether the tables of an additive model of so many terms are fitted again.

    >>> can_fit_tables(2_000_000, 40, 1), can_fit_tables(2_000_000, 40, 12), can_fit_tables(5_000, 1_000, 12)
    (True, False, False)
    """
    return max(rows, MIN_FITTED_ROWS) * terms * labels <= MAX_FITTED_CELLS


def fitted_pairs(config: TrainConfig, columns: int, rows: int, labels: int) -> int | None:
    """Return how many pairs a run from scratch has whose tables are fitted again; None: they are not.

    >>> auto = TrainConfig(model="additive")
    >>> [fitted_pairs(auto, columns=28, rows=rows, labels=1) for rows in (10_000, 1_000_000, 2_000_000)]
    [96, 72, None]
    """
    if config.model != "additive" or config.init_from is not None:
        return None
    if config.pairs != "auto":
        pairs = int(config.pairs)
        return pairs if can_fit_tables(rows, columns + pairs, labels) else None
    fitting = MAX_FITTED_CELLS // (max(rows, MIN_FITTED_ROWS) * labels) - columns
    return min(fitting, MAX_FITTED_PAIRS) if fitting >= MIN_FITTED_PAIRS else None


def needs_no_gradients(config: TrainConfig, prepared: PreparedData) -> bool:
    """Return whether tables are fitted again, and to so many rows that they beat gradients on every set tried."""
    encoding, rows, labels = prepared.preprocessor, prepared.splits["train"].rows, len(prepared.labels)
    columns = len(encoding.numeric) + len(encoding.coded)
    pairs = fitted_pairs(config, columns, rows, labels)
    return pairs is not None and rows >= MIN_ROWS_PER_TERM * (columns + pairs)


def blend_rows(rows: int, terms: int, labels: int) -> int:
    """Return how many rows an additive model is fitted to that a network is to be blended with; 0: there is none.

    >>> [blend_rows(rows, terms=100, labels=1) for rows in (90, 100_000, 10_000_000)], blend_rows(5_000, 1_000, 12)
    ([0, 100000, 300000], 0)
    """
    fitted = min(rows, MAX_BLEND_CELLS // (terms * labels))
    return fitted if rows >= MIN_BLEND_ROWS and fitted >= min(rows, MIN_SAMPLED_ROWS) else 0


def batch_rows(config: TrainConfig, workers: int, rows: int) -> int:
    """Return the rows of a step over all workers, at most all there are."""
    if config.batch_size_per_worker is not None:
        return min(workers * config.batch_size_per_worker, rows)
    wanted = max(MIN_BATCH, min(MAX_BATCH, int(BATCH_PER_ROOT * rows**0.5)))
    by_rows = QUALITIES[config.quality].batch * (1 << (wanted.bit_length() - 1))
    return min(config.batch_size or min(MAX_BATCH, by_rows), rows)


def epoch_count(config: TrainConfig, rows: int, batch_size: int, *, needs_gradients: bool) -> int:
    """Return the passes over the train split at most: one where what gradients learn is of no use."""
    if not needs_gradients:
        return config.epochs or 1
    quality = QUALITIES[config.quality]
    by_rows = max(MIN_EPOCHS, min(10, round(ROWS_TO_SEE / rows)))
    # A larger batch is to save time, so it is no reason for more epochs.
    by_steps = min(MAX_EPOCHS, STEPS_TO_TAKE * (batch_size // quality.batch) // rows)
    return config.epochs or max(MIN_EPOCHS, round(quality.epochs * max(by_rows, by_steps)))
