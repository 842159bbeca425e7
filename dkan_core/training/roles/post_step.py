"""What happens after a commit: the end of training is noticed, snapshots, restore points and checkpoints are taken."""

from collections.abc import Callable
from dataclasses import replace

from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import ParameterStore, copy_for_checkpoint, save_restore_point
from dkan_core.training.state.snapshots import newest_snapshot, publish_snapshot

Publish = Callable[[Ledger, bool], bool]
"""Publishes the state of a ledger for evaluation, given whether the time is up; False where it cannot be."""


def publish_to(evaluator: Wakeup, store: ParameterStore) -> Publish:
    """Return a function that hands snapshots to the evaluator process."""

    def publish(ledger: Ledger, time_is_up: bool) -> bool:
        steps_per_epoch = store.rules.schedule.steps_per_epoch
        done = publish_snapshot(store.memory, ledger, steps_per_epoch=steps_per_epoch, time_is_up=time_is_up)
        evaluator.notify()
        return done

    return publish


class PostStepHooks:
    """Takes snapshots, restore points and copies for checkpoints when due, and tells whether training is to end.

    If the process dies in between, its successor repeats this, which changes nothing.

    Args:
        store: The committed state.
        publish: Publishes snapshots; None for every rank but the first, as only that one takes snapshots.
    """

    def __init__(self, store: ParameterStore, publish: Publish | None) -> None:
        self.store = store
        self.memory = store.memory
        self.publish = publish
        self.schedule = store.rules.schedule
        self.limit = store.rules.config.max_seconds
        # The memory is ahead of the ledger if a process died between publishing and its commit.
        newest = newest_snapshot(self.memory)
        self.final_is_published = bool(newest.final)
        self.published_step = max(store.ledger.published, newest.step)
        self.restore_point_step = max(record.read().step for record in self.memory.restore_points)
        self.answered = self.memory.checkpoint_answer.read().number

    def ending_reason(self) -> str:
        """Return why training is to end now, one of ``ENDINGS``; an empty text where it is not."""
        if self.store.ledger.step == self.schedule.steps:
            return "epochs"
        if self.memory.evaluated.read().exhausted:
            return "patience"
        if self.memory.control.read().stop:
            return "interrupt"
        return "time" if self._time_is_up() else ""

    def _time_is_up(self) -> bool:
        return self.limit is not None and self.store.ledger.seconds >= self.limit

    @property
    def is_due(self) -> bool:
        """Whether a restore point, a snapshot or a copy for a checkpoint is due."""
        return self._restore_point_is_due or self._snapshot_is_due or self._checkpoint_is_requested

    def run(self, ending: str) -> None:
        """Do what is due; every work unit that was begun has been applied.

        Args:
            ending: Why training ends now, one of ``ENDINGS``; empty where it goes on.
        """
        # Commit first: the ledgers in the snapshot and in the restore point then mark these as the last ones.
        if ending:
            self.store.commit(self.store.ledger.with_end(ending))
        self.publish_snapshot_if_due()
        if self._restore_point_is_due:
            save_restore_point(self.memory, self.store.ledger)
            self.restore_point_step = self.store.ledger.step
        if self._checkpoint_is_requested:
            copy_for_checkpoint(self.memory, self.store.ledger)
            self.answered = self.memory.checkpoint_answer.read().number

    def commit(self, **changes: int) -> None:
        """Commit the ledger with some fields changed, if any of them differs."""
        # Called at every turn of the loop, nearly always without a change: make a new ledger only for a change.
        if any(getattr(self.store.ledger, name) != value for name, value in changes.items()):
            self.store.commit(replace(self.store.ledger, **changes))

    @property
    def _snapshot_is_due(self) -> bool:
        if self.publish is None:
            return False
        if self.store.ledger.ended:
            return not self.final_is_published
        due = self.schedule.evaluations_due
        return due(self.store.ledger.step) != due(self.published_step)

    def publish_snapshot_if_due(self) -> bool:
        """Publish a snapshot if one is due; return False if it could not be taken."""
        if self.publish is None or not self._snapshot_is_due:
            return True
        ledger = self.store.ledger
        done = self.publish(ledger, self._time_is_up())
        self.final_is_published = done and bool(ledger.ended)
        # Also if no slot was free: training goes on, and the snapshot of a later step replaces this one.
        self.published_step = ledger.step
        self.store.commit(replace(ledger.with_reset_counters(), published=ledger.step))
        return done

    @property
    def _restore_point_is_due(self) -> bool:
        ledger = self.store.ledger
        due = self.schedule.restore_points_due
        if self.restore_point_step == ledger.step:
            return False
        return bool(ledger.ended or due(ledger.step) > due(self.restore_point_step))

    @property
    def _checkpoint_is_requested(self) -> bool:
        # Requests are only in the launcher's memory: of several ranks, only the first sees them.
        return self.memory.checkpoint_request.read().number > self.answered
