"""The training loop: take updates, apply them, do what is due after a step, until the run ends.

The parameter server, every rank of a run without one, and training inside the caller's process all run this loop. What
differs is where the updates come from: pushed by workers, reduced over the ranks, or computed by the process itself.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from dkan_core.training.roles.post_step import PostStepHooks, Publish
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore
from dkan_core.training.state.stopwatch import Stopwatch

# How often to look whether the evaluator has freed a slot for the final snapshot, of which it sends no notice.
SLOT_SECONDS = 0.1


class UpdateSource(ABC):
    """Where the updates of a run come from.

    Args:
        store: The committed state that they change.
        stopwatch: Of this process.
    """

    may_begin = True
    """Whether new work may be begun; set by the loop, False while something waits for ``is_idle``."""

    def __init__(self, store: ParameterStore, stopwatch: Stopwatch) -> None:
        self.store = store
        self.stopwatch = stopwatch

    @property
    def is_idle(self) -> bool:
        """Whether every work unit that was begun is applied: snapshots and restore points would lose the others."""
        return True

    @property
    def counters(self) -> dict[str, int]:
        """Fields of the ledger that the source counts."""
        return {}

    @abstractmethod
    def next_updates(self) -> Sequence[WorkerUpdate]:
        """Return updates to be applied together; none where there is none yet, after a short wait."""

    def release(self, updates: Sequence[WorkerUpdate]) -> None:  # noqa: B027 - only work that is handed out is taken back
        """Take note that updates were applied, before the next commit."""

    def agree_on_ending(self, reason: str) -> str:
        """Return why training ends now, one of ``ENDINGS``, as agreed on by all processes that hold this state.

        Args:
            reason: As this process sees it; empty where training goes on.
        """
        return reason

    def close(self) -> None:  # noqa: B027 - only workers have to be told
        """Take note that training has ended."""


class TrainingLoop:
    """The loop over updates.

    Args:
        source: Where they come from.
        publish: Publishes snapshots; None for every rank but the first.
        on_turn: Called at every turn, also while there is nothing to do: the sign of activity.
    """

    def __init__(
        self, source: UpdateSource, publish: Publish | None, on_turn: Callable[[], None] = lambda: None
    ) -> None:
        self.source = source
        self.hooks = PostStepHooks(source.store, publish)
        self.on_turn = on_turn

    def run(self) -> None:
        """Train to the end, and first finish what an earlier generation of this process left undone."""
        # An earlier process may have died after a commit, before it did what was due.
        self._run_hooks()
        while not self.source.store.ledger.ended:
            self.on_turn()
            updates = self.source.next_updates()
            if updates:
                self.source.store.apply_updates(updates)
                self.source.release(updates)
                self.source.stopwatch.lap("update")
            self._run_hooks()
        self.source.close()
        self.source.stopwatch.publish()
        # Other snapshots may be skipped, so that training never waits for their evaluation; the final one may not.
        while not self.hooks.publish_snapshot_if_due():
            self.on_turn()
            time.sleep(SLOT_SECONDS)

    def _run_hooks(self) -> None:
        """Do what is due, once the source is idle."""
        # Commit the counters separately: a push may come too late while nothing else is committed.
        self.hooks.commit(**self.source.counters)
        ending = ""
        if not self.source.store.ledger.ended:
            ending = self.source.agree_on_ending(self.hooks.ending_reason())
        is_due = bool(ending) or self.hooks.is_due
        if is_due and self.source.is_idle:
            # Publish before the evaluation, whose line in the history says where the time went until then.
            self.source.stopwatch.publish()
            self.hooks.run(ending)
        self.source.may_begin = not is_due or self.source.is_idle
