"""Settings of ``dkan train``: how a model is built and trained."""

import math
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from dkan_core.config.schema import INITIAL_MODEL, STRICT, Expected, Form, reports_config_errors, setting
from dkan_core.config.strategies import Strategy
from dkan_core.errors import ConfigError

# Far beyond what trains: so that a file cannot ask for millions of layers, whose modules alone would take minutes.
MAX_HIDDEN_LAYERS = 64

# Whether so wide a layer fits into memory is another question (``model.parameter_count.check_fits_memory``).
MAX_HIDDEN_WIDTH = 10**9

# Seeds are written as signed 64-bit integers.
MAX_SEED = 2**63 - 1

# The bound of the learning rate itself.
MAX_LR_MULTIPLIER = 1e3

Kernel = Literal["auto", "eager", "recompute", "native"]
"""Implementations of the layers: ``dkan_core.model.kernels``."""

DEVICE = r"(cpu|cuda(:[0-9]+)?)"


@reports_config_errors
@dataclass(frozen=True, kw_only=True, config=STRICT)
class TrainConfig:
    """How a model is built and trained. None: chosen from the data (``dkan_core.training.setup.defaults``)."""

    # In a component, `model` is the artifact that it writes.
    model: Literal["auto", "fastkan", "additive"] = setting("auto", "Model", form=Form(name="model_kind"))
    """"auto" extends FastKAN with what suits the data; "fastkan" is plain; "additive" has no hidden layer."""

    members: Annotated[int | None, Field(ge=1, le=1024)] = setting(None, "Model", form=True)
    """Networks in the ensemble, trained together, with averaged probabilities. Default: from the number of rows."""

    hidden: Annotated[
        tuple[Annotated[int, Field(ge=1, le=MAX_HIDDEN_WIDTH)], ...] | None,
        Field(max_length=MAX_HIDDEN_LAYERS),
        Expected(f"positive widths up to {MAX_HIDDEN_WIDTH:,}", items="layers"),
    ] = setting(None, "Model", form=Form(none="auto"))
    """Units in each member's hidden layer; several values make several layers.

    Default: from the number of rows; the search may add a second layer.
    """

    # It gained up to 0.07 of AP on measurements, 0.02 where many columns interact or say nothing.
    architecture_search: bool = setting(True, "Model", advanced=True, form=True)
    """Whether trials may change num_centers, hidden and dropout, and leave out useless columns, with model auto.

    Nothing is tried if one of the three is set, below 2,000 training rows, when continuing from a model, or with a
    strategy that divides the model; columns are left out only with one label and up to 30,000 rows, and a second hidden
    layer is tried only from 50,000 on.
    """

    quality: Literal["fast", "default", "best"] = setting("default", "Model", form=True)
    """Trade accuracy for time: "fast" trains a smaller network for fewer epochs, "best" a larger ensemble.

    Settings that you give are not changed.
    """

    pairs: Annotated[
        str,
        BeforeValidator(lambda given: str(given) if type(given) is int else given),
        Field(pattern="^(auto|[0-9]{1,3})$"),
        Expected("auto or a number from 0 to 999"),
    ] = setting("auto", "Model", advanced=True, form=True)
    """Pairs of columns with a term of their own, with model additive.

    "auto": up to 96, of which the penalized fit keeps those with an effect; without that fit, as many as improve
    predictions on unseen rows.
    """

    monotone: Annotated[
        tuple[Annotated[str, Field(pattern=r"(?s)^.+:[+-]$")], ...],
        Expected("columns with the sign of their curve, such as age:+ (never falls) or age:- (never rises)"),
    ] = setting((), "Model", advanced=True, form=True)
    """Numeric columns along which log-odds never fall (age:+) or never rise (age:-), with model additive."""

    # Where trials do not ask for them, 16 gained nothing. This and what follows: docs/benchmarks/experiments.md.
    num_centers: Annotated[int | None, Field(ge=2, le=256)] = setting(None, "Model", advanced=True, form=True)
    """Gaussian basis functions per edge. Default: 8; 16 if trials find that more help."""

    grid_min: Annotated[float | None, Field(ge=-1e6, le=1e6)] = setting(None, "Model", advanced=True)
    """Center of the first basis function, in units of the layer's input. Default: from the rows of the rarer class."""

    grid_max: Annotated[float | None, Field(ge=-1e6, le=1e6)] = setting(None, "Model", advanced=True)
    """Center of the last basis function, in units of the layer's input. Default: from the rows of the rarer class."""

    # LayerNorm mixes columns that have nothing to do with each other: it lost AP, and took nearly three times the time.
    input_norm: Literal["none", "layer"] = setting("none", "Model", advanced=True)
    """Normalization before the first layer; "layer" is LayerNorm, as in the reference implementation."""

    # Without it 0.0015 of AP were lost; more gained nothing.
    dropout: Annotated[float | None, Field(ge=0, le=0.99)] = setting(None, "Model", form=Form(none=-1.0))
    """Fraction of hidden units dropped during training.

    Default: 0.2; 0 if the search chooses 16 basis functions or a second hidden layer.
    """

    # Without it 0.004 of AP were lost on a table of 1,024 binary columns.
    binary_dropout: Annotated[float, Field(ge=0, le=0.99)] = setting(0.2, "Model", advanced=True)
    """Fraction of binary inputs dropped during training; independent of the number of workers."""

    embedding_dim: Annotated[int, Field(ge=1, le=1024)] = setting(8, "Model", advanced=True)
    """Width of a categorical column's embedding."""

    # What it costs and brings is in docs/benchmarks/strategies.md.
    sketch_rank: Annotated[int, Field(ge=0, le=4096)] = setting(0, "Model", advanced=True, form=True)
    """Rank of the random sketches whose factors are trained instead of the first layer's weights; 0 for no sketches."""

    # Without it 0.010 of AP were lost, the mean of 32 sets that nothing else was chosen on.
    blend: bool = setting(True, "Model", form=True)
    """Average the network of model auto with an additive model of the same rows; validation AP chooses the weight."""

    init_from: Annotated[str | None, Field(pattern=r"\S"), Expected("a path or a URI")] = setting(
        None, "Model", form=INITIAL_MODEL
    )
    """Model (path or URI) whose architecture and weights to start from; prepare the data with `--like` this model."""

    init_optimizer: Literal["fresh", "kept"] = setting("fresh", "Model", advanced=True)
    """Optimizer state to start with after `init_from`: zero moments, or those of that run's best checkpoint."""

    freeze: tuple[str, ...] = setting((), "Model", advanced=True)
    """Part of the `init_from` model to keep unchanged, given as the prefix of its tensor names, such as encoder."""

    lr_multipliers: tuple[str, ...] = setting((), "Model", advanced=True)
    """Learning rate factor of a part of the model, as PART=FACTOR; the longest prefix of a tensor's name applies."""

    strategy: Strategy = setting("auto", "Distribution", form=True)
    """How workers synchronize.

    "auto": allreduce under torchrun; otherwise parameter-server if mode is not sync, single with one worker, allreduce
    if each worker has its own GPU, and parameter-server in all other cases.
    """

    tensor_parallel_size: Annotated[int | None, Field(ge=2, le=1024)] = setting(None, "Distribution", advanced=True)
    """Workers that divide one copy of the model among them, with strategy hybrid. Default: 2."""

    # sync has the AP of one worker. On the flights, average lost 0.006 of it with two workers and 0.013 with four,
    # async 0.009 and 0.019.
    mode: Literal["sync", "average", "async"] = setting("sync", "Distribution", advanced=True)
    """What the server aggregates: gradients per step, parameters per sync interval, or updates as they arrive."""

    sync_interval: Annotated[int | None, Field(ge=1, le=10**9)] = setting(None, "Distribution", advanced=True)
    """Steps that a worker takes by itself between two synchronizations. Default: 1, or 8 if parameters are averaged."""

    # An update counts 1 / (1 + staleness): beyond this it would add less than 2% of what it says.
    max_staleness: Annotated[int, Field(ge=0, le=10**9)] = setting(64, "Distribution", advanced=True)
    """Synchronizations after which an update is too old to be applied, in mode async."""

    workers: Annotated[int | None, Field(ge=1, le=1024)] = setting(None, "Distribution")
    """Training processes. Default: one per GPU, or one on the CPU."""

    device: Annotated[
        str,
        Field(pattern=f"^(auto|{DEVICE}(,{DEVICE})*)$"),
        Expected("auto, cpu, cuda, or devices such as cuda:0,cuda:1,cpu"),
    ] = setting("auto", "Distribution")
    """Where the workers compute: auto, cpu, cuda, or one device per worker, such as cuda:0,cuda:0,cpu."""

    slice_weights: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1e9)], ...], Expected("positive, and at most 1e9")
    ] = setting((), "Distribution", advanced=True)
    """Relative share of a step's rows that each worker takes, one number per worker: more for a faster device.

    `dkan plan --device cuda:0,cpu` measures which numbers to use. Default: equal shares.
    """

    eval_device: Annotated[str, Field(pattern=f"^(auto|{DEVICE})$"), Expected("auto, cpu, cuda or cuda:1")] = setting(
        "auto", "Distribution", advanced=True
    )
    """Where the evaluator computes, such as cuda:1; "auto" is a GPU without a worker, else the first worker's.

    Where `--device` names GPUs, "auto" is the first worker's.
    """

    precision: Literal["fp32", "bf16"] = setting("fp32", "Training")
    """"bf16" computes matrix products in bfloat16, where the device is faster at that; the rest stays float32.

    On a CPU it helps with many numeric columns: with AMX, and with AVX-512 BF16 if they are not stored as uint8.
    """

    kernel: Kernel = setting("auto", "Training", advanced=True)
    """Implementation of the layers; "auto" is the fastest correct one on the device: native C++ on a CPU, if built."""

    accumulate: Annotated[int, Field(ge=1, le=10**6)] = setting(1, "Training", advanced=True)
    """Micro-batches that a worker splits its rows of a step into, to save memory."""

    epochs: Annotated[int | None, Field(ge=1, le=10**9)] = setting(None, "Training", form=True)
    """Maximum passes over the train split; may be raised when resuming. Default: from the number of rows."""

    batch_size: Annotated[int | None, Field(ge=1, le=10**9)] = setting(None, "Training", form=True)
    """Rows per step over all workers. Default: from the number of rows."""

    batch_size_per_worker: Annotated[int | None, Field(ge=1, le=10**9)] = setting(None, "Training", advanced=True)
    """Rows per step in each worker, instead of `batch_size`: the global batch grows with the workers."""

    learning_rate: Annotated[float | None, Field(ge=1e-12, le=1e3)] = setting(None, "Training", form=True)
    """Peak learning rate of AdamW. Default: from the batch size; a tenth of that when continuing from a model."""

    lr_scaling: Literal["none", "sqrt", "linear"] = setting("sqrt", "Training", advanced=True)
    """How the default learning rate grows with the batch size above 512 rows."""

    clip_norm: Annotated[float | None, Field(ge=1e-12, le=1e12)] = setting(None, "Training", advanced=True)
    """Maximum norm of a step's gradient; a larger gradient is scaled down. Default: no limit."""

    # A decay of 0.1 lost 0.010 of AP.
    weight_decay: Annotated[float, Field(ge=0, le=1e3)] = setting(1.0, "Training", form=True)
    """AdamW's decoupled weight decay."""

    pos_weight: Annotated[float, Field(ge=1e-6, le=1e6)] = setting(1.0, "Training", form=True)
    """Weight of positives in the loss; predicted probabilities are corrected for it."""

    label_weights: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e6)], ...],
        Expected("from 0 to 1,000,000, and at least one 1e-6 or more"),
    ] = setting((), "Training", form=True)
    """Weight of each label in the loss, in the order of the labels. Default: equal weights."""

    warmup_fraction: Annotated[float, Field(ge=0, le=1)] = setting(0.05, "Training", advanced=True)
    """Fraction of all steps over which the learning rate rises to its peak."""

    schedule: Literal["cosine", "constant", "exponential"] = setting("cosine", "Training", advanced=True)
    """Learning rate after warmup: half a cosine down to 0, constant, or multiplied by gamma in each epoch."""

    schedule_epochs: Annotated[int | None, Field(ge=1, le=10**6)] = setting(None, "Training", advanced=True)
    """Epochs that the learning rate schedule spans; a run may end before the schedule does. Default: epochs."""

    gamma: Annotated[float, Field(ge=1e-6, le=1)] = setting(0.9, "Training", advanced=True)
    """Factor applied to the learning rate per epoch, with schedule exponential."""

    evaluations_per_epoch: Annotated[int, Field(ge=1, le=10**6)] = setting(1, "Training", advanced=True)
    """Evaluations on the valid split per epoch."""

    patience: Annotated[int, Field(ge=1, le=10**9)] = setting(5, "Training", form=True)
    """Stop after this many evaluations without a better validation AP; may be raised when resuming."""

    # It gained 0.002 of AP, the mean of ten sets, nine of them better.
    refit: bool = setting(False, "Training", form=True)
    """Train once more, on the train and valid splits together, with everything that was chosen on valid.

    The second training takes as many epochs as the best model of the first. Metrics stay those of the first model,
    which had not seen valid.
    """

    ema_decay: Annotated[float | None, Field(ge=0, le=1 - 1e-9)] = setting(None, "Training", advanced=True)
    """Decay per epoch of a moving average of the parameters over evaluations, evaluated alongside them; 0 disables it.

    Default: 0.5; 0 with model additive.
    """

    max_seconds: Annotated[float | None, Field(ge=1e-3, le=1e12)] = setting(None, "Training", form=True)
    """Stop after this many seconds of training and keep the best model. Default: no limit."""

    data_in: Literal["auto", "device", "memory", "disk", "remote"] = setting("auto", "Distribution", advanced=True)
    """Where each worker keeps its rows: on its GPU, in memory, or on disk; "auto" is the first of these with room.

    Data in a bucket are read on demand; "disk" downloads them first, "remote" keeps nothing in memory.
    """

    data_cache_gb: Annotated[float | None, Field(ge=0, le=1e9)] = setting(None, "Distribution", advanced=True)
    """Disk space in GB for data from a bucket, in the folder for temporary files. Default: half of what is free."""

    # Without a limit of its own torch.distributed waits 30 minutes for a peer whose node is gone.
    exchange_timeout: Annotated[float, Field(ge=1, le=86_400)] = setting(60.0, "Distribution", advanced=True)
    """Seconds that a worker waits for the others before giving up, with a strategy that has no server."""

    debug_distributed: bool = setting(False, "Distribution")
    """Record and check what ranks exchange, with a strategy that has no server; RUN/logs has the details."""

    checkpoint_steps: Annotated[int | None, Field(ge=1, le=10**12)] = setting(None, "Output", advanced=True)
    """Steps between two checkpoints. Default: one per evaluation, unless writing takes over 5% of the time."""

    # Under Kubeflow Pipelines a pod that is removed has no time to write one: this is what is lost then.
    checkpoint_seconds: Annotated[float, Field(ge=0, le=1e9)] = setting(120.0, "Output", advanced=True)
    """Maximum seconds between two checkpoints, more if writing one takes over a twentieth of that; 0 sets no limit."""

    checkpoint_uri: Annotated[
        str | None,
        Field(pattern=r"^(([^{}\x00]|\{run\})*([^{}\x00:/]|\{run\}))?/*$"),
        Expected("a folder or a URI such as s3://bucket/{run}, without other placeholders"),
    ] = setting(None, "Output")
    """Folder or URI for checkpoints; {run} becomes a digest of data and settings. Default: inside the run's folder."""

    resume: Annotated[str, Field(pattern=r"\S"), Expected("auto, best, never, or a path or a URI")] = setting(
        "never", "Training"
    )
    """Where to resume from: "auto" (newest checkpoint), "best" (that of the best evaluation), or a path or URI.

    "auto" starts a new run if there is no checkpoint. A path is that of a run, of its checkpoints, or of one of them.
    """

    tensorboard: bool = setting(False, "Output")
    """Write live curves for TensorBoard."""

    tracking: Literal["auto", "none", "mlflow"] = setting("auto", "Output")
    """Where else to log the run; "auto" is MLflow if MLFLOW_TRACKING_URI is set."""

    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = setting(0, "Training", form=True)
    """Seed of initialization, batch order and dropout."""

    def __post_init__(self) -> None:
        if self.model == "fastkan" and (self.members or 1) != 1:
            raise ConfigError(f"members must be 1 with model fastkan, got {self.members}")
        _check_additive(self)
        if self.grid_min is not None and self.grid_max is not None and not self.grid_max > self.grid_min:
            raise ConfigError(f"grid_max must be above grid_min, got {self.grid_min} to {self.grid_max}")
        if self.label_weights and max(self.label_weights) < 1e-6:
            raise ConfigError(
                f"label_weights must be from 0 to 1,000,000, and at least one 1e-6 or more, got {self.label_weights}"
            )
        if self.batch_size is not None and self.batch_size_per_worker is not None:
            raise ConfigError(
                f"batch_size {self.batch_size} and batch_size_per_worker {self.batch_size_per_worker} "
                "exclude each other; set only one"
            )
        if self.schedule_epochs is not None and (self.epochs or 0) > self.schedule_epochs:
            raise ConfigError(f"schedule_epochs must be at least epochs, {self.epochs}, got {self.schedule_epochs}")
        if self.init_from is None:
            needing = {"freeze": ", ".join(self.freeze), "init_optimizer": self.init_optimizer.removeprefix("fresh")}
            for name, value in needing.items():
                if value:
                    raise ConfigError(f"{name} {value}: there is no model to start from; set init_from")
        part_factors(self)


def _check_additive(config: TrainConfig) -> None:
    """Check the settings that only an additive model has, or any other but that."""
    if config.model == "additive":
        for name, what in {
            "hidden": "hidden layer",
            "sketch_rank": "first layer whose weights could be sketched",
        }.items():
            if value := getattr(config, name):
                raise ConfigError(f"{name}: model additive has no {what}, got {value}")
    elif config.pairs != "auto" or config.monotone:
        name = "monotone" if config.monotone else "pairs"
        raise ConfigError(f"{name}: requires model additive, got {config.model}")


def part_factors(config: TrainConfig) -> dict[str, float]:
    """Return the factor of the learning rate of each part of the model that has one: 0 of a frozen part.

    Raises:
        ConfigError: A factor is no number from 0 to 1000, or a part has two.

    >>> part_factors(TrainConfig(init_from="run", freeze=("encoder",), lr_multipliers=("network.first=0.1",)))
    {'encoder': 0.0, 'network.first': 0.1}
    """
    factors = dict.fromkeys(config.freeze, 0.0)
    for text in config.lr_multipliers:
        part, _, number = text.partition("=")
        try:
            factor = float(number)
        except ValueError:
            factor = math.nan
        if not part or not 0 <= factor <= MAX_LR_MULTIPLIER:
            raise ConfigError(
                f"lr_multipliers must be PART=FACTOR with a factor from 0 to {MAX_LR_MULTIPLIER:g}, "
                f"such as encoder=0.1, got {text!r}"
            )
        if part in factors:
            what = "is frozen, too" if part in config.freeze else "has two factors"
            raise ConfigError(f"lr_multipliers {text}: {part} {what}; give one of them")
        factors[part] = factor
    return factors
