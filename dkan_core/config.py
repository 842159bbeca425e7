"""Settings of the commands: frozen, keyword-only, checked once, documented field by field.

The string under a field is its help text on the command line (see ``dkan_core.cli``).
"""

import re
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin

from dkan_core.errors import ConfigError

Strategy = Literal["auto", "parameter-server", "allreduce", "ddp", "ring", "local-sgd", "single"]


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """How raw Parquet becomes prepared shards."""

    label: tuple[str, ...] = ()
    """Label column holding 0, 1 or null (not measured); several make a multi-label data set."""

    drop: tuple[str, ...] = ()
    """Column to leave out."""

    group: str | None = None
    """Column whose equal values stay in one split; it is no feature."""

    split_column: str | None = None
    """Column holding train, valid or test for each row; it is no feature."""

    split: str = "70/10/20"
    """Percent of rows (or groups) in train/valid/test when there is no split column."""

    weight: str | None = None
    """Column holding a non-negative weight for each row; it is no feature."""

    numeric_dtype: Literal["uint8", "float16", "float32"] = "uint8"
    """Storage type of the numeric columns' normal scores."""

    seed: int = 0
    """Decides split, statistics sample and shuffle."""

    like: str | None = None
    """Model or prepared data, path or URI, whose encoding and labels are taken instead of fitting an encoding."""

    def __post_init__(self) -> None:
        _check_types(self)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be from 0 to {2**63 - 1}, got {self.seed}")
        if not self.label and self.like is None:
            raise ConfigError("label: name at least one label column")
        roles = [*self.label, *self.drop, *filter(None, (self.group, self.split_column, self.weight))]
        twice = sorted({name for name in roles if roles.count(name) > 1})
        if twice:
            raise ConfigError(f"column {twice[0]!r} is named for two roles; each column has one")
        if self.group is not None and self.split_column is not None:
            raise ConfigError(
                f"split_column {self.split_column!r} already decides the splits; drop the group column {self.group!r}"
            )
        self.split_percent  # noqa: B018 - raises when malformed

    @property
    def split_percent(self) -> tuple[int, int, int]:
        """Percent of rows in train, valid and test."""
        parts = self.split.split("/")
        if len(parts) != 3 or not all(part.isdecimal() for part in parts):
            raise ConfigError(f"split must be three whole percentages such as 70/10/20, got {self.split!r}")
        train, valid, test = (int(part) for part in parts)
        if train + valid + test != 100 or train == 0 or valid == 0:
            raise ConfigError(f"split must add up to 100 with some train and valid, got {self.split!r}")
        return train, valid, test


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is built and trained. None: chosen from the data (``dkan_core.training.setup.defaults``)."""

    model: Literal["auto", "fastkan"] = "auto"
    """"auto" adds to FastKAN what tabular data needs, chosen from the data; "fastkan" is one plain network."""

    members: int | None = None
    """Networks trained as one, whose probabilities are averaged. Default: from the number of rows."""

    hidden: tuple[int, ...] | None = None
    """Width of a member's hidden layer; several make it deeper. Default: from the number of rows."""

    num_centers: int = 8
    """Gaussian basis functions on each edge."""

    grid_min: float = -2.0
    """Position of the first basis function."""

    grid_max: float = 2.0
    """Position of the last basis function."""

    input_norm: Literal["none", "layer"] = "none"
    """Normalization before the first layer; "layer" is the reference's LayerNorm."""

    dropout: float = 0.2
    """Share of hidden units dropped while training; which, seed, row and step decide, and not the number of workers."""

    binary_dropout: float = 0.2
    """Share of binary inputs dropped while training, drawn in the same way."""

    embedding_dim: int = 8
    """Width of a categorical column's embedding."""

    init_from: str | None = None
    """Model to start from, path or URI: its architecture and weights; the data are prepared with --like it."""

    strategy: Strategy = "auto"
    """How the workers keep one set of parameters. "auto" is parameter-server, or allreduce under torchrun."""

    mode: Literal["sync", "average", "async"] = "sync"
    """What the server merges: gradients each step, parameters each sync interval, or differences as they come."""

    sync_interval: int | None = None
    """Steps that a worker takes alone between two merges. Default: 1, or 8 where parameters are merged."""

    max_staleness: int = 64
    """Merges, in mode async, after which an update is too old to be taken."""

    workers: int | None = None
    """Training processes. Default: one per GPU, or one on the CPU."""

    device: str = "auto"
    """Where the workers compute: auto, cpu, cuda, or one device per worker such as cuda:0,cuda:0,cpu."""

    slice_weights: tuple[float, ...] = ()
    """Rows of each step that a worker takes, relative to the others', one number for each: more on a faster device.

    Default: all the same. `dkan plan --device cuda:0,cpu` measures which numbers to give.
    """

    eval_device: str = "auto"
    """Where the evaluator computes, such as cuda:1. Default: a GPU that no worker has, else as the first worker."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """"bf16" computes matrix products in bfloat16; parameters and gradients stay float32."""

    accumulate: int = 1
    """Parts that a worker computes its rows of a step in, one after the other, to save memory."""

    epochs: int | None = None
    """Passes over the train split at most; a run that is resumed may have more. Default: from the number of rows."""

    batch_size: int | None = None
    """Rows of one step over all workers. Default: from the number of rows."""

    batch_size_per_worker: int | None = None
    """Rows of one step in each worker, instead of batch_size: the global batch grows with the workers."""

    learning_rate: float | None = None
    """AdamW's learning rate at its peak. Default: from the batch size."""

    lr_scaling: Literal["none", "sqrt", "linear"] = "sqrt"
    """How the default learning rate grows with the batch size above 512 rows."""

    clip_norm: float | None = None
    """Largest norm of a step's gradient; a longer one is scaled down. Default: no limit."""

    weight_decay: float = 1.0
    """AdamW's decoupled weight decay."""

    pos_weight: float = 1.0
    """Weight of positives in the loss; probabilities are corrected for it."""

    label_weights: tuple[float, ...] = ()
    """Weight of a label in the loss, one for each in the order of the labels. Default: all the same."""

    warmup_fraction: float = 0.05
    """Share of the steps over which the learning rate rises to its peak."""

    schedule: Literal["cosine", "constant", "exponential"] = "cosine"
    """The learning rate after its rise: half a cosine to 0 at the last step, the peak, or gamma times less an epoch."""

    gamma: float = 0.9
    """Factor of the learning rate per epoch, with schedule exponential."""

    evaluations_per_epoch: int = 1
    """Validation snapshots in an epoch."""

    patience: int = 5
    """Stop after this many evaluations without a better validation AP; a run that is resumed may have more."""

    ema_decay: float = 0.0
    """Decay of a moving average of the parameters, evaluated in parallel with them; 0 is none."""

    max_seconds: float | None = None
    """Stop after this many seconds of training, keeping the best model."""

    exchange_timeout: float = 60.0
    """Seconds that a worker of a strategy without a server waits for the others before it gives up on them."""

    checkpoint_steps: int | None = None
    """Steps between two checkpoints. Default: one at each evaluation."""

    checkpoint_uri: str | None = None
    """Folder or URI for checkpoints; {run} becomes a digest of data and settings. Default: in the run's folder."""

    resume: str = "never"
    """"auto" resumes from the newest checkpoint, if there is one, "best" from the best evaluation; or a path or URI."""

    tensorboard: bool = False
    """Write live curves for TensorBoard."""

    seed: int = 0
    """Decides initialization, batch order and dropout."""

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("device", "eval_device"):
            _check_device(name, getattr(self, name))
        weights = self.label_weights
        if any(not 0 <= weight < float("inf") for weight in weights) or (weights and not any(weights)):
            raise ConfigError(f"label_weights must hold non-negative numbers, one above 0, got {weights}")
        if self.batch_size is not None and self.batch_size_per_worker is not None:
            raise ConfigError(
                f"batch_size {self.batch_size}: batch_size_per_worker {self.batch_size_per_worker} is given as well; "
                "set one of them"
            )
        if any(not 0 < weight < float("inf") for weight in self.slice_weights):
            raise ConfigError(f"slice_weights must hold positive numbers, got {self.slice_weights}")
        check_network(self)
        _check_bounds(self, _TRAIN_BOUNDS)


def check_network(config: Any) -> None:
    """Raise ConfigError where a field that settings and a saved architecture share is out of range."""
    if config.model == "fastkan" and (config.members or 1) != 1:
        raise ConfigError(f"members must be 1 with model fastkan, got {config.members}")
    if len(config.hidden or ()) > MAX_HIDDEN_LAYERS:
        raise ConfigError(f"hidden must hold at most {MAX_HIDDEN_LAYERS} widths, got {len(config.hidden)}")
    if any(not 1 <= width <= MAX_HIDDEN_WIDTH for width in config.hidden or ()):
        raise ConfigError(f"hidden must hold positive widths up to {MAX_HIDDEN_WIDTH:g}, got {config.hidden}")
    if not config.grid_max > config.grid_min:
        raise ConfigError(f"grid_max must be above grid_min, got {config.grid_min} to {config.grid_max}")
    _check_bounds(config, _NETWORK_BOUNDS)


def _check_bounds(config: Any, bounds: tuple[tuple[str, float, float], ...]) -> None:
    for name, low, high in bounds:
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{name} must be from {low:g} to {high:g}, got {value}")


MAX_HIDDEN_LAYERS = 64
"""Far beyond what trains: so that a file cannot ask for millions of layers, whose modules alone would take minutes."""

MAX_HIDDEN_WIDTH = 10**9
"""Whether so wide a layer fits into memory is another question (``model.architecture.check_fits_memory``)."""

_NETWORK_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("num_centers", 2, 256),
    ("grid_min", -1e6, 1e6),
    ("grid_max", -1e6, 1e6),
    ("dropout", 0, 0.99),
    ("binary_dropout", 0, 0.99),
    ("members", 1, 1024),
    ("embedding_dim", 1, 1024),
)

_TRAIN_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("workers", 1, 1024),
    ("accumulate", 1, 1e6),
    ("epochs", 1, 1e9),
    ("batch_size", 1, 1e9),
    ("batch_size_per_worker", 1, 1e9),
    ("learning_rate", 1e-12, 1e3),
    ("clip_norm", 1e-12, 1e12),
    ("weight_decay", 0, 1e3),
    ("pos_weight", 1e-6, 1e6),
    ("warmup_fraction", 0, 1),
    ("gamma", 1e-6, 1),
    ("evaluations_per_epoch", 1, 1e6),
    ("patience", 1, 1e9),
    ("sync_interval", 1, 1e9),
    ("max_staleness", 0, 1e9),
    ("ema_decay", 0, 1 - 1e-9),
    ("checkpoint_steps", 1, 1e12),
    ("max_seconds", 1e-3, 1e12),
    ("exchange_timeout", 1, 86_400),
    ("seed", 0, 2**63 - 1),
)


def _check_device(name: str, value: str) -> None:
    devices = value.split(",") if name == "device" else [value]
    if value != "auto" and not all(re.fullmatch(r"cpu|cuda(:\d+)?", device) for device in devices):
        wanted = "auto, cpu, cuda" + (", or devices such as cuda:0,cuda:1,cpu" if name == "device" else " or cuda:1")
        raise ConfigError(f"{name} must be {wanted}, got {value!r}")


def element_type(expected: Any) -> type:
    """Return the type of the values of a field of several."""
    return int if "int" in str(expected) else float if "float" in str(expected) else str


def _check_types(config: Any) -> None:
    for field in fields(config):
        _check_type(field.name, getattr(config, field.name), field.type)


def _check_type(name: str, value: object, expected: Any) -> None:
    """Raise ConfigError when ``value`` is none of the choices, or plainly of another type than the annotation."""
    text = str(expected)
    if value is None:
        fits = "None" in text
    elif get_origin(expected) is Literal:
        fits = value in get_args(expected)
    elif text.startswith("tuple"):
        allowed = (int, float) if element_type(expected) is float else (element_type(expected),)
        fits = isinstance(value, tuple) and all(type(item) in allowed for item in value)
    elif "bool" in text:
        fits = isinstance(value, bool)
    elif "int" in text or "float" in text:
        allowed = (int, float) if "float" in text else (int,)
        fits = isinstance(value, allowed) and not isinstance(value, bool) and abs(value) != float("inf")
    else:
        fits = isinstance(value, str)
    if not fits:
        wanted = expected.__name__ if expected in (int, str, float, bool) else text
        wanted = "finite" if value in (float("inf"), -float("inf")) else wanted
        wanted = f"one of {', '.join(get_args(expected))}" if get_origin(expected) is Literal else wanted
        hint = f"; write ({value!r},)" if isinstance(value, str) and text.startswith("tuple") else ""
        raise ConfigError(f"{name} must be {wanted}, got {value!r}{hint}")
