"""Settings of a run, once nothing is left open (``dkan_core.training.setup.defaults.resolve``)."""

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from dkan_core.config.schema import STRICT, reports_config_errors
from dkan_core.config.strategies import MODEL_PARALLEL, ResolvedStrategy
from dkan_core.config.train import TrainConfig

EXECUTION_SETTINGS = (
    "device",
    "eval_device",
    "kernel",
    "data_in",
    "data_cache_gb",
    "max_seconds",
    "tensorboard",
    "tracking",
    "checkpoint_steps",
    "checkpoint_seconds",
    "checkpoint_uri",
    "exchange_timeout",
    "debug_distributed",
    "resume",
    "refit",
)
"""Where and how long a run computes, and what follows: none of it changes its course."""

# A field that is given no value here must not fall back on the None of TrainConfig.
RESOLVED = ConfigDict(**STRICT, validate_default=True)


@reports_config_errors
@dataclass(frozen=True, kw_only=True, config=RESOLVED)
class ResolvedTrainConfig(TrainConfig):
    """The same settings with every default chosen.

    None remains only where it means no limit, not used, or a choice that is made during the run.

    Checkpoints and metrics hold these fields; ``device`` names one device per worker there, separated by commas.
    """

    members: int
    hidden: tuple[int, ...]
    num_centers: int
    dropout: float
    grid_min: float
    grid_max: float
    strategy: ResolvedStrategy
    sync_interval: int
    workers: int
    epochs: int
    batch_size: int
    learning_rate: float
    ema_decay: float

    def __post_init__(self) -> None:
        TrainConfig(**vars(self))  # the bounds of these fields stand there

    @property
    def bags_rows(self) -> bool:
        """Whether each member leaves out rows, the same ones in every epoch."""
        return self.model == "additive"

    @property
    def has_server(self) -> bool:
        """Whether a parameter server has the state and the workers push to it; else collective workers have it."""
        return self.strategy == "parameter-server"

    @property
    def takes_local_steps(self) -> bool:
        """Whether ranks without a server take steps in memory of their own, and commit the state that these lead to."""
        return self.strategy in ("local-sgd", "single") or self.steps_on_devices

    @property
    def steps_on_devices(self) -> bool:
        """Whether rows, state and optimizer are on the workers' GPUs: without a server, if each worker has a GPU."""
        return not self.has_server and self.strategy not in MODEL_PARALLEL and "cpu" not in self.devices

    @property
    def workers_per_copy(self) -> int:
        """Workers that divide one copy of the model among them, and so take the same rows."""
        if self.strategy not in MODEL_PARALLEL:
            return 1
        return self.tensor_parallel_size if self.tensor_parallel_size is not None else self.workers

    @property
    def may_hold_rows(self) -> bool:
        """Whether all steps are taken on GPUs, which may then hold the rows."""
        return (self.takes_local_steps or self.mode != "sync") and "cpu" not in self.devices

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of each worker, such as ``("cuda:0", "cpu")``."""
        return tuple(self.device.split(","))
