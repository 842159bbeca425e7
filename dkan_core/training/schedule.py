"""How many steps a run takes, their learning rates, and when it evaluates; needs no torch."""

from dataclasses import dataclass

from dkan_core.config import TrainConfig
from dkan_core.data.loader import steps_per_epoch
from dkan_core.training.optimizer import learning_rate


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many steps there are, the learning rate of each, and when to evaluate."""

    steps: int
    steps_per_epoch: int
    evaluations_per_epoch: int
    peak_rate: float
    warmup_fraction: float
    checkpoint_steps: int | None

    @classmethod
    def of(cls, config: TrainConfig, rows: int) -> "Schedule":
        """Return the schedule of a resolved config."""
        assert config.epochs is not None and config.batch_size is not None and config.learning_rate is not None
        per_epoch = steps_per_epoch(rows, config.batch_size)
        return cls(
            steps=config.epochs * per_epoch,
            steps_per_epoch=per_epoch,
            evaluations_per_epoch=min(config.evaluations_per_epoch, per_epoch),
            peak_rate=config.learning_rate,
            warmup_fraction=config.warmup_fraction,
            checkpoint_steps=config.checkpoint_steps,
        )

    def evaluations_due(self, step: int) -> int:
        """Return how many evaluations are due in the first ``step`` steps."""
        return step * self.evaluations_per_epoch // self.steps_per_epoch

    def restore_points_due(self, step: int) -> int:
        """Return how many restore points are due in the first ``step`` steps."""
        return step // self.checkpoint_steps if self.checkpoint_steps else self.evaluations_due(step)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return learning_rate(step, steps=self.steps, peak=self.peak_rate, warmup_fraction=self.warmup_fraction)
