"""Settings of ``dkan train``: how a model is built and trained."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from dkan_core.config.checks import check_bounds, check_types
from dkan_core.errors import ConfigError

Strategy = Literal["auto", "parameter-server", "allreduce", "ddp", "ring", "local-sgd", "single"]


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
        check_types(self)
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
        check_bounds(self, _TRAIN_BOUNDS)


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
    check_bounds(config, _NETWORK_BOUNDS)


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
