"""How many steps a run takes, when it evaluates, and how far it is; needs no torch."""

import time
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
        )

    def is_evaluated(self, step: int) -> bool:
        """Tell whether an evaluation is due after ``step`` steps."""
        part = step % self.steps_per_epoch * self.evaluations_per_epoch
        return part % self.steps_per_epoch < self.evaluations_per_epoch

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return learning_rate(step, steps=self.steps, peak=self.peak_rate, warmup_fraction=self.warmup_fraction)


class Pace:
    """Seconds since a run's first step; loss and rows since its last evaluation."""

    def __init__(self, schedule: Schedule, max_seconds: float | None) -> None:
        self.schedule, self.max_seconds = schedule, max_seconds
        self.begin()

    def begin(self) -> None:
        """Start the clock."""
        self.started = time.monotonic()
        self.restart()

    def restart(self) -> None:
        """Count loss and rows from here on."""
        self.loss, self.weight, self.rows = 0.0, 0.0, 0
        self.since = time.monotonic()

    def add(self, *, loss: float, weight: float, rows: int) -> None:
        """Count a gradient: its mean loss, the weight of that, and its rows."""
        self.loss += loss * weight
        self.weight += weight
        self.rows += rows

    @property
    def time_is_up(self) -> bool:
        """Whether the run has taken ``max_seconds``."""
        return self.max_seconds is not None and time.monotonic() - self.started >= self.max_seconds

    def facts(self, step: int) -> dict[str, float]:
        """Return how far the run is after ``step`` steps, its mean loss, and rows per second."""
        now = time.monotonic()
        return {
            "step": step,
            "epoch": step / self.schedule.steps_per_epoch,
            "seconds": now - self.started,
            "loss": self.loss / max(self.weight, 1e-30),
            "rows_per_second": self.rows / max(1e-9, now - self.since),
        }
