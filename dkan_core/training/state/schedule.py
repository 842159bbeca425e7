"""How many steps a run takes, their learning rates, and when it evaluates; needs no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.data.loading.order import slice_of, steps_per_epoch
from dkan_core.training.state.ledger import WorkPlan


@dataclass(frozen=True)
class Schedule:
    """How many steps there are, the learning rate of each, and when to evaluate."""

    config: ResolvedTrainConfig
    steps_per_epoch: int

    @classmethod
    def from_config(cls, config: ResolvedTrainConfig, rows: int) -> "Schedule":
        """Return the schedule of a resolved config."""
        return cls(config, steps_per_epoch(rows, config.batch_size))

    @property
    def steps(self) -> int:
        """Steps of the run."""
        return self.config.epochs * self.steps_per_epoch

    @property
    def evaluations_per_epoch(self) -> int:
        """At most one a step."""
        return min(self.config.evaluations_per_epoch, self.steps_per_epoch)

    def evaluations_due(self, step: int) -> int:
        """Return how many evaluations are due in the first ``step`` steps."""
        return step * self.evaluations_per_epoch // self.steps_per_epoch

    def restore_points_due(self, step: int) -> int:
        """Return how many restore points are due in the first ``step`` steps."""
        between = self.config.checkpoint_steps
        return step // between if between else self.evaluations_due(step)

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step t, counted from 0, where the schedule spans T steps, and an epoch has E.

        The warm-up W is ``max(1, round(T * warmup_fraction))``, and up to it the rate is that below times (t + 1) / W:

        - cosine: ``peak * (1 + cos(pi * (t - W) / (T - W))) / 2``, and in the warm-up ``peak``
        - constant: ``peak``
        - exponential: ``peak * gamma ** (t / E)``

        Only the cosine and the warm-up depend on T. A resumed run with more epochs uses its new T, whatever T was
        before; with ``schedule_epochs`` T stays the same.
        """
        config, peak = self.config, self.config.learning_rate
        steps = (config.schedule_epochs or config.epochs) * self.steps_per_epoch
        # At least one step, also where a fraction of few steps rounds to none.
        warmup = max(1, round(steps * config.warmup_fraction))
        if config.schedule == "exponential":
            return peak * min(1.0, (step + 1) / warmup) * math.pow(config.gamma, step / self.steps_per_epoch)
        if step < warmup:
            return peak * (step + 1) / warmup
        if config.schedule == "constant":
            return peak
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


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
