"""Settings of ``dkan train``: how a model is built and trained."""

import re
from dataclasses import dataclass
from typing import Any, Literal

from dkan_core.config.checks import check_bounds, check_types
from dkan_core.config.setting import setting
from dkan_core.errors import ConfigError

Strategy = Literal["auto", "parameter-server", "allreduce", "ddp", "ring", "local-sgd", "single"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How a model is built and trained. None: chosen from the data (``dkan_core.training.setup.defaults``)."""

    model: Literal["auto", "fastkan"] = setting("auto", "Model")
    """"auto" extends FastKAN with what suits the data; "fastkan" is one plain network."""

    members: int | None = setting(None, "Model")
    """Networks in the ensemble, trained together, with averaged probabilities. Default: from the number of rows."""

    hidden: tuple[int, ...] | None = setting(None, "Model")
    """Units in each member's hidden layer; several values make several layers. Default: from the number of rows."""

    num_centers: int = setting(8, "Model")
    """Gaussian basis functions per edge."""

    grid_min: float = setting(-2.0, "Model")
    """Center of the first basis function, in units of the layer's input."""

    grid_max: float = setting(2.0, "Model")
    """Center of the last basis function, in units of the layer's input."""

    input_norm: Literal["none", "layer"] = setting("none", "Model")
    """Normalization before the first layer; "layer" is LayerNorm, as in the reference implementation."""

    dropout: float = setting(0.2, "Model")
    """Fraction of hidden units dropped during training; independent of the number of workers."""

    binary_dropout: float = setting(0.2, "Model")
    """Fraction of binary inputs dropped during training; independent of the number of workers."""

    embedding_dim: int = setting(8, "Model")
    """Width of a categorical column's embedding."""

    init_from: str | None = setting(None, "Model")
    """Model (path or URI) whose architecture and weights to start from; prepare the data with `--like` this model."""

    strategy: Strategy = setting("auto", "Distribution")
    """How workers synchronize the parameters; "auto" is parameter-server, or allreduce under torchrun."""

    mode: Literal["sync", "average", "async"] = setting("sync", "Distribution")
    """What the server combines: gradients per step, parameters per sync interval, or updates as they arrive."""

    sync_interval: int | None = setting(None, "Distribution")
    """Steps that a worker takes alone between two synchronizations. Default: 1, or 8 if parameters are averaged."""

    max_staleness: int = setting(64, "Distribution")
    """Synchronizations after which an update is too old to be applied, in mode async."""

    workers: int | None = setting(None, "Distribution")
    """Training processes. Default: one per GPU, or one on the CPU."""

    device: str = setting("auto", "Distribution")
    """Where the workers compute: auto, cpu, cuda, or one device per worker, such as cuda:0,cuda:0,cpu."""

    slice_weights: tuple[float, ...] = setting((), "Distribution")
    """Relative share of a step's rows that each worker takes, one number per worker: more for a faster device.

    `dkan plan --device cuda:0,cpu` measures which numbers to use. Default: equal shares.
    """

    eval_device: str = setting("auto", "Distribution")
    """Where the evaluator computes, such as cuda:1; "auto" is a GPU without a worker, else the first worker's."""

    precision: Literal["fp32", "bf16"] = setting("fp32", "Training")
    """"bf16" computes matrix products in bfloat16; parameters and gradients stay float32."""

    accumulate: int = setting(1, "Training")
    """Micro-batches that a worker splits its rows of a step into, to save memory."""

    epochs: int | None = setting(None, "Training")
    """Maximum passes over the train split; may be raised when resuming. Default: from the number of rows."""

    batch_size: int | None = setting(None, "Training")
    """Rows per step over all workers. Default: from the number of rows."""

    batch_size_per_worker: int | None = setting(None, "Training")
    """Rows per step in each worker, instead of batch_size: the global batch grows with the workers."""

    learning_rate: float | None = setting(None, "Training")
    """Peak learning rate of AdamW. Default: from the batch size."""

    lr_scaling: Literal["none", "sqrt", "linear"] = setting("sqrt", "Training")
    """How the default learning rate grows with the batch size above 512 rows."""

    clip_norm: float | None = setting(None, "Training")
    """Maximum norm of a step's gradient; a larger gradient is scaled down. Default: no limit."""

    weight_decay: float = setting(1.0, "Training")
    """AdamW's decoupled weight decay."""

    pos_weight: float = setting(1.0, "Training")
    """Weight of positives in the loss; predicted probabilities are corrected for it."""

    label_weights: tuple[float, ...] = setting((), "Training")
    """Weight of each label in the loss, in the order of the labels. Default: equal weights."""

    warmup_fraction: float = setting(0.05, "Training")
    """Fraction of all steps over which the learning rate rises to its peak."""

    schedule: Literal["cosine", "constant", "exponential"] = setting("cosine", "Training")
    """Learning rate after warmup: half a cosine down to 0, constant, or multiplied by gamma in each epoch."""

    gamma: float = setting(0.9, "Training")
    """Factor applied to the learning rate per epoch, with schedule exponential."""

    evaluations_per_epoch: int = setting(1, "Training")
    """Evaluations on the valid split per epoch."""

    patience: int = setting(5, "Training")
    """Stop after this many evaluations without a better validation AP; may be raised when resuming."""

    ema_decay: float = setting(0.0, "Training")
    """Decay of a moving average of the parameters, which is evaluated alongside them; 0 disables it."""

    max_seconds: float | None = setting(None, "Training")
    """Stop after this many seconds of training and keep the best model. Default: no limit."""

    exchange_timeout: float = setting(60.0, "Distribution")
    """Seconds that a worker waits for the others before giving up, with a strategy that has no server."""

    checkpoint_steps: int | None = setting(None, "Output")
    """Steps between two checkpoints. Default: a checkpoint at each evaluation."""

    checkpoint_uri: str | None = setting(None, "Output")
    """Folder or URI for checkpoints; {run} becomes a digest of data and settings. Default: inside the run's folder."""

    resume: str = setting("never", "Training")
    """"auto" resumes from the newest checkpoint, if any, "best" from that of the best evaluation; or a path or URI."""

    tensorboard: bool = setting(False, "Output")
    """Write live curves for TensorBoard."""

    seed: int = setting(0, "Training")
    """Seed of initialization, batch order and dropout."""

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("device", "eval_device"):
            _check_device(name, getattr(self, name))
        weights = self.label_weights
        if any(not 0 <= weight < float("inf") for weight in weights) or (weights and not any(weights)):
            raise ConfigError(f"label_weights must be non-negative, and at least one positive, got {weights}")
        if self.batch_size is not None and self.batch_size_per_worker is not None:
            raise ConfigError(
                f"batch_size {self.batch_size} and batch_size_per_worker {self.batch_size_per_worker} "
                "exclude each other; set only one"
            )
        if any(not 0 < weight < float("inf") for weight in self.slice_weights):
            raise ConfigError(f"slice_weights must be positive, got {self.slice_weights}")
        check_network(self)
        check_bounds(self, _TRAIN_BOUNDS)


def check_network(config: Any) -> None:
    """Raise ConfigError where a field that settings and a saved architecture share is out of range."""
    if config.model == "fastkan" and (config.members or 1) != 1:
        raise ConfigError(f"members must be 1 with model fastkan, got {config.members}")
    if len(config.hidden or ()) > MAX_HIDDEN_LAYERS:
        raise ConfigError(f"hidden must have at most {MAX_HIDDEN_LAYERS} layers, got {len(config.hidden)}")
    if any(not 1 <= width <= MAX_HIDDEN_WIDTH for width in config.hidden or ()):
        raise ConfigError(f"hidden must be positive widths up to {MAX_HIDDEN_WIDTH:g}, got {config.hidden}")
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
