"""How many steps a run takes, their learning rates, and when it evaluates; needs no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.loading.order import slice_of, steps_per_epoch
from dkan_core.training.state.ledger import WorkPlan


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How many steps there are, the learning rate of each, and when to evaluate."""

    steps: int
    schedule_steps: int
    """Steps of the learning rate's schedule: at least ``steps``."""

    steps_per_epoch: int
    evaluations_per_epoch: int
    peak_learning_rate: float
    warmup_fraction: float
    shape: str
    """``TrainConfig.schedule``."""

    gamma: float
    checkpoint_steps: int | None

    @classmethod
    def from_config(cls, config: ResolvedTrainConfig, rows: int) -> "Schedule":
        """Return the schedule of a resolved config."""
        per_epoch = steps_per_epoch(rows, config.batch_size)
        return cls(
            steps=config.epochs * per_epoch,
            schedule_steps=(config.schedule_epochs or config.epochs) * per_epoch,
            steps_per_epoch=per_epoch,
            evaluations_per_epoch=min(config.evaluations_per_epoch, per_epoch),
            peak_learning_rate=config.learning_rate,
            warmup_fraction=config.warmup_fraction,
            shape=config.schedule,
            gamma=config.gamma,
            checkpoint_steps=config.checkpoint_steps,
        )

    def evaluations_due(self, step: int) -> int:
        """Return how many evaluations are due in the first ``step`` steps."""
        return step * self.evaluations_per_epoch // self.steps_per_epoch

    def restore_points_due(self, step: int) -> int:
        """Return how many restore points are due in the first ``step`` steps."""
        return step // self.checkpoint_steps if self.checkpoint_steps else self.evaluations_due(step)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step t, counted from 0, where T steps are ``schedule_steps`` and E an epoch.

        The warm-up W is ``max(1, round(T * warmup_fraction))``, and up to it the rate is that below times (t + 1) / W:

        - cosine: ``peak * (1 + cos(pi * (t - W) / (T - W))) / 2``, and in the warm-up ``peak``
        - constant: ``peak``
        - exponential: ``peak * gamma ** (t / E)``

        Only the cosine and the warm-up depend on T. A resumed run with more epochs uses its new T, whatever T was
        before; with ``schedule_epochs`` T stays the same.
        """
        # At least one step, also where a fraction of few steps rounds to none.
        warmup = max(1, round(self.schedule_steps * self.warmup_fraction))
        rise = min(1.0, (step + 1) / warmup)
        if self.shape == "exponential":
            return self.peak_learning_rate * rise * math.pow(self.gamma, step / self.steps_per_epoch)
        if step < warmup:
            return self.peak_learning_rate * (step + 1) / warmup
        if self.shape == "constant":
            return self.peak_learning_rate
        falling = max(1, self.schedule_steps - warmup)
        return self.peak_learning_rate * 0.5 * (1 + math.cos(math.pi * (step - warmup) / falling))


def plan_work(config: ResolvedTrainConfig, rows: int) -> WorkPlan:
    """Return how the work of a resolved config is cut up."""
    return WorkPlan(config.epochs, steps_per_epoch(rows, config.batch_size), config.sync_interval, config.workers)


def rows_after_units(plan: WorkPlan, done: int, *, rows: int, batch_size: int, weights: Sequence[float] = ()) -> int:
    """Return the rows in the first ``done`` work units of a run.

    Args:
        plan: How its work is cut up.
        done: How many of them.
        rows: Rows of the train split.
        batch_size: Rows of a step over all workers.
        weights: Relative shares of a step's rows that the workers take.

    >>> [rows_after_units(WorkPlan(2, 3, 1, 2), done, rows=10, batch_size=4) for done in (0, 1, 2, 5, 6, 7)]
    [0, 2, 4, 9, 10, 12]
    """
    begun = plan.steps_of_unit(done)
    epochs, step = divmod(begun.start, plan.steps_per_epoch)
    share = 0
    for at_step in range(step, step + len(begun)):
        first, _ = slice_of(
            rows,
            at_step,
            batch_size=batch_size,
            rank=done % plan.workers,
            workers=plan.workers,
            weights=weights,
        )
        share += first - at_step * batch_size
    return epochs * rows + min(step * batch_size, rows) + share
