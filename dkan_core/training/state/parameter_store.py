"""The parameters of a run: how updates change them, and how a change is committed.

There are two copies of the state. A change is computed into the standby copy, and writing one record, the ledger,
commits it: at whatever moment the process is killed, an update is applied as a whole or not at all.

Shape suffixes: P trainable parameters, K arrays of the state.
"""

import logging
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.errors import TrainingError
from dkan_core.training.state.adamw import FlatAdamW, ParameterGroups
from dkan_core.training.state.aggregation import OptimizerStep, WorkerUpdate, aggregation_for
from dkan_core.training.state.ledger import Ledger, WorkPlan, add_to_digest
from dkan_core.training.state.schedule import Schedule, plan_work
from dkan_core.training.state.shared_memory import SharedMemory
from dkan_core.utils.arrays import Float32

# Refused updates in a row: a single bad batch is skipped without a change of the learning rate.
REFUSED_BEFORE_BACKOFF = 3
# After so many halvings the learning rate is a thousandth: what still diverges has another cause.
MAX_BACKOFFS = 10
# Steps after which AdamW's bias corrections are 1 in float64: moments from an earlier run are already free of bias, so
# they count as that old.
SETTLED_STEPS = 1_000_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateRules:
    """What the changes of a run's parameters depend on."""

    config: ResolvedTrainConfig
    schedule: Schedule
    work_plan: WorkPlan
    groups: ParameterGroups

    @classmethod
    def from_config(cls, config: ResolvedTrainConfig, train_rows: int, groups: ParameterGroups) -> "UpdateRules":
        """Return the rules of a resolved config."""
        return cls(config, Schedule.from_config(config, train_rows), plan_work(config, train_rows), groups)

    def optimizer_count(self, step: int) -> int:
        """Return AdamW's count of steps at a step of the run, counted from 0: its moments may be older than the run."""
        return step + 1 + (SETTLED_STEPS if self.config.init_optimizer == "kept" else 0)


def initialize_store(memory: SharedMemory, values_P: Float32, moments_2P: Float32 | None = None) -> None:
    """Begin with these parameters, and with these moments instead of zeros."""
    memory.buffers_2KP[0, 0] = values_P
    if moments_2P is not None:
        memory.buffers_2KP[0, 1:3] = moments_2P
        # In mode async the workers have moments, each its own.
        memory.moments_W2P[:] = moments_2P
    # The moving average has a value before the first evaluation, too.
    memory.buffers_2KP[0, 3:] = values_P
    memory.ledger.write(Ledger())
    save_restore_point(memory, Ledger())


def save_restore_point(memory: SharedMemory, ledger: Ledger) -> None:
    """Copy the committed state, and the workers' own moments, to where no further step changes them."""
    oldest = min(range(2), key=lambda index: memory.restore_points[index].read().version)
    # Invalidate it before overwriting it: if this process dies meanwhile, the other one remains.
    memory.restore_points[oldest].write(Ledger(version=-1))
    restore_point_KP = memory.restore_points_2KP[oldest]
    copy_state(memory, ledger, restore_point_KP)
    memory.restore_points[oldest].write(replace(ledger, checksum=checksum(restore_point_KP)))


def copy_for_checkpoint(memory: SharedMemory, ledger: Ledger) -> None:
    """Copy the committed state, and the workers' own moments, to where the launcher has asked for them.

    This is not a restore point: refused updates lead back to those, so the steps alone determine when they are made.
    """
    request = memory.checkpoint_request.read()
    copy_state(memory, ledger, memory.checkpoint_KP)
    memory.checkpoint_ledger.write(ledger)
    # Answer last: if this process dies before, its successor copies again.
    memory.checkpoint_answer.write(request)


def copy_state(memory: SharedMemory, ledger: Ledger, out_KP: Float32) -> None:
    """Copy the state that a ledger names, and the workers' own moments, into ``out_KP``."""
    state_KP = memory.buffers_2KP[ledger.active_buffer]
    out_KP[: len(state_KP)] = state_KP
    out_KP[len(state_KP) :] = memory.moments_W2P.reshape(-1, memory.shape.parameters)


def newest_restore_point(memory: SharedMemory, out_KP: Float32 | None = None) -> tuple[Ledger, Float32] | None:
    """Return a copy of the newest restore point, in ``out_KP`` where given; None where there is none that is whole."""
    copy_KP = np.empty_like(memory.restore_points_2KP[0]) if out_KP is None else out_KP
    for index in sorted(range(2), key=lambda index: -memory.restore_points[index].read().version):
        ledger = memory.restore_points[index].read()
        np.copyto(copy_KP, memory.restore_points_2KP[index])
        # The writer first marks the record as void, then writes the state, then the record.
        if ledger.version >= 0 and memory.restore_points[index].read() == ledger:
            return ledger, copy_KP
    return None


def checksum(state_KP: Float32) -> int:
    """Return the CRC-32 of a state, as if its arrays lay one after the other."""
    found = 0
    for array_P in state_KP:
        found = zlib.crc32(array_P.data, found)
    return found


class ParameterStore:
    """The committed state, and its only writer.

    Args:
        memory: Where it stands; ``initialize_store`` has been called on it once.
        rules: What changes depend on.
        threads: How many an update uses.
    """

    def __init__(self, memory: SharedMemory, rules: UpdateRules, threads: int = 1) -> None:
        self.memory = memory
        self.rules = rules
        self.optimizer = FlatAdamW(rules.groups, threads)
        self.ledger = memory.ledger.read()
        self._averages_are_equal = False
        """Whether both copies of the state are known to have the same moving average."""

    @property
    def state_KP(self) -> Float32:
        """The committed state: parameters, two moments, and the moving average where there is one."""
        state_KP: Float32 = self.memory.buffers_2KP[self.ledger.active_buffer]
        return state_KP

    @property
    def standby_KP(self) -> Float32:
        """The standby copy."""
        standby_KP: Float32 = self.memory.buffers_2KP[1 - self.ledger.active_buffer]
        return standby_KP

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate, below 1 after updates that were not finite."""
        return 0.5**self.ledger.backoffs

    def apply_updates(self, updates: Sequence[WorkerUpdate]) -> None:
        """Take updates in together, or refuse them together, and commit.

        Raises:
            TrainingError: Too many were refused, whatever the learning rate.
        """
        ledger = self._record_in_ledger(updates)
        losses_are_finite = all(math.isfinite(each.loss) for each in updates)
        if losses_are_finite and sum(each.weight for each in updates) == 0:
            # No label of these rows is measured: they are done, and there is nothing to learn from them.
            ledger = replace(ledger, refused_in_a_row=0)
        elif losses_are_finite and self._aggregate_into_standby(updates):
            if self.memory.shape.average:
                self._average_into_standby(ledger.step)
            ledger = replace(ledger, active_buffer=1 - ledger.active_buffer, refused_in_a_row=0)
        else:
            ledger = self._refuse(ledger)
        self.commit(ledger)

    def commit(self, ledger: Ledger) -> None:
        """Commit a ledger, and with it the copy of the state that it names."""
        self.ledger = replace(ledger, version=self.ledger.version + 1)
        self.memory.ledger.write(self.ledger)

    def _record_in_ledger(self, updates: Sequence[WorkerUpdate]) -> Ledger:
        """Return the ledger with the work units, rows and losses of updates in it."""
        ledger = self.ledger
        for each in updates:
            # One loss that is not finite would hide the mean of all others.
            finite = math.isfinite(each.loss)
            ledger = ledger.with_update(
                loss=each.loss if finite else 0.0, weight=each.weight if finite else 0.0, rows=each.rows
            )
        done = ledger.units_done + sum(each.units for each in updates)
        units = [each.unit + more for each in updates for more in range(each.units)]
        return replace(
            ledger.with_running_clock(),
            units_done=done,
            step=self.rules.work_plan.step_after_units(done),
            digest=add_to_digest(ledger.digest, units),
            next_unit=max(ledger.next_unit, 1 + max(units)),
            acked_lease=updates[-1].lease,
        )

    def _aggregate_into_standby(self, updates: Sequence[WorkerUpdate]) -> bool:
        """Compute the state after an update into the standby copy; return whether it is all finite."""
        config = self.rules.config
        # From the work plan, not a count of updates: a refused step counts in the schedule.
        done = self.rules.work_plan.steps_of_unit(updates[0].unit).start
        lr = self.rules.schedule.learning_rate(done) * self.lr_scale
        step = OptimizerStep(self.optimizer, lr, self.rules.optimizer_count(done), config.clip_norm)
        old_KP = self.state_KP
        new_KP = self.standby_KP
        finite = aggregation_for(config)(old_KP[:3], new_KP[:3], updates, step)
        self.optimizer.restore_frozen(old_KP[0], new_KP[0])
        return finite

    def _average_into_standby(self, step: int) -> None:
        """Take the parameters of the standby copy into its moving average, where an evaluation is due."""
        schedule = self.rules.schedule
        before = schedule.evaluations_due(self.ledger.step)
        old_P, new_P = self.state_KP[3], self.standby_KP[3]
        if due := schedule.evaluations_due(step) - before:
            # The average begins with the first evaluation, so that the initial parameters have no weight in it.
            decay = self.rules.config.ema_decay ** (due / schedule.evaluations_per_epoch) if before else 0.0
            np.multiply(old_P, decay, out=new_P)
            new_P += (1 - decay) * self.standby_KP[0]
            self._averages_are_equal = False
        elif not self._averages_are_equal:
            np.copyto(new_P, old_P)
            self._averages_are_equal = True

    def _refuse(self, ledger: Ledger) -> Ledger:
        """Return the ledger without the update; after several in a row go back and halve the learning rate."""
        # Its work units count as done: computing them again would give the same result.
        logger.warning("the update to step %d is not finite and is rejected", ledger.step)
        ledger = replace(ledger, refused=ledger.refused + 1, refused_in_a_row=ledger.refused_in_a_row + 1)
        return self._step_back(ledger) if ledger.refused_in_a_row == REFUSED_BEFORE_BACKOFF else ledger

    def _step_back(self, ledger: Ledger) -> Ledger:
        if ledger.backoffs == MAX_BACKOFFS:
            config = self.rules.config
            given = {"pos_weight": config.pos_weight != 1, "label_weights": bool(config.label_weights)}
            weights = " and ".join(["the row weights", *(name for name, is_set in given.items() if is_set)])
            raise TrainingError(
                f"loss is not finite at step {ledger.step}, even with 1/{2**MAX_BACKOFFS} of the learning rate; "
                f"check {weights}, or lower learning_rate or weight_decay"
            )
        restore_point = newest_restore_point(self.memory)
        assert restore_point is not None, "there is a restore point from the start"
        earlier, state_KP = restore_point
        self.standby_KP[:] = state_KP[: len(self.standby_KP)]
        self._averages_are_equal = False
        logger.warning("restored the parameters of step %d; continuing with half the learning rate", earlier.step)
        return replace(ledger, active_buffer=1 - ledger.active_buffer, refused_in_a_row=0, backoffs=ledger.backoffs + 1)
