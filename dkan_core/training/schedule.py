"""How many steps a run takes, their learning rates, and when it evaluates; needs no torch."""

from dataclasses import dataclass

from dkan_core.config import TrainConfig
from dkan_core.data.loader import slice_of, steps_per_epoch
from dkan_core.training.ledger import Ranges
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


def ranges_of(config: TrainConfig, rows: int) -> Ranges:
    """Return how the work of a resolved config is cut up."""
    assert config.epochs is not None and config.batch_size is not None
    assert config.sync_interval is not None and config.workers is not None
    return Ranges(config.epochs, steps_per_epoch(rows, config.batch_size), config.sync_interval, config.workers)


def rows_after(ranges: Ranges, done: int, *, rows: int, config: TrainConfig) -> int:
    """Return the rows in the first ``done`` ranges of a run.

    Args:
        ranges: How its work is cut up.
        done: How many of them.
        rows: Rows of the train split.
        config: Resolved settings.

    >>> config = TrainConfig(batch_size=4)
    >>> [rows_after(Ranges(2, 3, 1, 2), done, rows=10, config=config) for done in (0, 1, 2, 5, 6, 7)]
    [0, 2, 4, 9, 10, 12]
    """
    assert config.batch_size is not None
    begun, batch_size = ranges.steps_of(done), config.batch_size
    epochs, step = divmod(begun.start, ranges.steps_per_epoch)
    share = 0
    for place in range(step, step + len(begun)):
        first, _ = slice_of(
            rows,
            place,
            batch_size=batch_size,
            rank=done % ranges.workers,
            workers=ranges.workers,
            weights=config.slice_weights,
        )
        share += first - place * batch_size
    return epochs * rows + min(step * batch_size, rows) + share
