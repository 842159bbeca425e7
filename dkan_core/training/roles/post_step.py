"""What happens after a commit: the end of training is noticed, a snapshot and a restore point are taken."""

from dataclasses import replace

from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.state.parameter_store import ParameterStore, save_restore_point
from dkan_core.training.state.snapshots import newest_snapshot, publish_snapshot


class PostStepHooks:
    """Takes snapshots and restore points when they are due, and tells whether training is to end.

    A process that dies in between has a successor that does it again, which changes nothing.

    Args:
        store: The state that counts.
        evaluator: The evaluator's wake-up; None for ranks that take no snapshots: all but the first.
    """

    def __init__(self, store: ParameterStore, evaluator: Wakeup | None) -> None:
        self.store = store
        self.memory = store.memory
        self.evaluator = evaluator
        self.schedule = store.rules.schedule
        self.limit = store.rules.config.max_seconds
        self.published = max(store.ledger.published, newest_snapshot(self.memory).step)
        self.restore_point_step = max(record.read().step for record in self.memory.restore_points)

    def ending_reason(self) -> str:
        """Return why training is to end now, one of ``ENDINGS``; an empty text where it is not."""
        control = self.memory.control.read()
        ledger = self.store.ledger
        if ledger.step == self.schedule.steps:
            return "epochs"
        if self.memory.evaluated.read().exhausted:
            return "patience"
        if control.stop:
            return "interrupt"
        return "time" if self._time_is_up() else ""

    def _time_is_up(self) -> bool:
        return self.limit is not None and self.store.ledger.seconds >= self.limit

    @property
    def snapshot_is_due(self) -> bool:
        """Whether the evaluator is to be given a snapshot."""
        ledger = self.store.ledger
        due = self.schedule.evaluations_due
        if self.evaluator is None:
            return False
        if ledger.ended:
            return not newest_snapshot(self.memory).final
        return due(ledger.step) != due(self.published)

    def publish_snapshot_if_due(self) -> bool:
        """Give the evaluator a snapshot if one is due; return False if one was and there was no free slot for it."""
        ledger = self.store.ledger
        if not self.snapshot_is_due:
            return True
        assert self.evaluator is not None, "a snapshot is due only where there is an evaluator"
        done = publish_snapshot(
            self.memory,
            ledger,
            steps_per_epoch=self.schedule.steps_per_epoch,
            time_is_up=self._time_is_up(),
        )
        self.published = ledger.step
        self.store.commit(replace(ledger.with_reset_counters(), published=ledger.step))
        self.evaluator.notify()
        return done

    @property
    def restore_point_is_due(self) -> bool:
        """Whether there is to be a restore point of this step."""
        ledger = self.store.ledger
        due = self.schedule.restore_points_due
        if self.restore_point_step == ledger.step:
            return False
        return bool(ledger.ended or due(ledger.step) > due(self.restore_point_step) or self.memory.control.read().save)

    def save_restore_point_if_due(self) -> None:
        """Make a restore point if one is due."""
        if self.restore_point_is_due:
            save_restore_point(self.memory, self.store.ledger)
            self.restore_point_step = self.store.ledger.step
