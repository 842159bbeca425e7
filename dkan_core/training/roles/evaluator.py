"""The evaluator process: scores snapshots on the validation split and keeps the best model on disk.

It scores the snapshots in the order in which they were taken, until patience is used up. So the best model does not
depend on how fast the evaluator is, or how often it was killed. Only if it is far behind, or if the run's time is up,
it skips to the newest snapshot.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dkan_core.data.format.origin import KEPT_ORIGINS, origin_of
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import OutputError
from dkan_core.model.saved_model import save_model
from dkan_core.training.communication.messages import Channel, inherited
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.roles.heartbeat import Heartbeat
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.startup import read_data, use_device
from dkan_core.training.state.checkpoint_file import Checkpoint, run_facts
from dkan_core.training.state.checkpoint_store import read_model, write_checkpoint
from dkan_core.training.state.schedule import Schedule
from dkan_core.training.state.shared_memory import EvaluatorProgress, SharedMemory, Snapshot
from dkan_core.training.state.snapshots import StateSnapshot, newest_snapshot, scored_values, snapshots_beyond
from dkan_core.training.state.stopwatch import Stopwatch
from dkan_core.training.validation.finishing import Finisher
from dkan_core.training.validation.scorer import BestParameters, ValidationScorer
from dkan_core.utils.file_names import MODEL_FOLDER

# Snapshots that may wait. Half of ``MAX_SLOTS``, so that stale ones are skipped before the slots run out; more than a
# run has evaluations by default, so that none is skipped in a run that ends before this process has started, and its
# best model is the same each time.
MAX_BACKLOG = 32
# Largest share of the time spent on saving: in a short run nearly every evaluation is the best so far.
MAX_SAVING_SHARE = 0.05
# Shortest wait after a failure to save.
RETRY_SECONDS = 5.0
# How often to look for a snapshot without a wake-up: the server may have died before it sent one.
POLL_SECONDS = 0.5

logger = logging.getLogger(__name__)


def main(spec: ProcessSpec) -> None:
    """Evaluate snapshots until the final one."""
    device = use_device(spec)
    memory = spec.open_memory()
    wakeup = spec.wakeup("evaluator")
    heartbeat = Heartbeat(memory, spec.role)
    stopwatch = Stopwatch(memory.evaluator_time)
    evaluator = Evaluator(spec, device, inherited(spec.launcher), stopwatch)
    # Scoring a split takes many calls of the model, each of which shows activity.
    evaluator.scorer.replica.model.register_forward_hook(lambda *_: heartbeat.record_activity())
    stopwatch.lap("other")
    dealt_with = memory.evaluated.read().number
    while not is_over(memory, dealt_with):
        heartbeat.record_activity()
        waiting = list(snapshots_beyond(memory, dealt_with))
        if not waiting:
            # While waiting, prepare what saving the first model needs.
            evaluator.finisher.make_ready()
            evaluator.save_again()
            wakeup.wait(POLL_SECONDS)
            stopwatch.lap("wait")
            continue
        # Snapshots from the checkpoint are never skipped: the interrupted run would have scored them all.
        behind = waiting[0].snapshot.number > spec.republished and is_behind([each.snapshot for each in waiting])
        if behind:
            logger.warning("evaluation lags behind: %d snapshots are skipped", len(waiting) - 1)
        chosen = waiting[-1 if behind else 0]
        evaluator.take(chosen)
        dealt_with = chosen.snapshot.number
        if chosen.snapshot.final:
            evaluator.save_last()
        number = dealt_with if evaluator.held is None else evaluator.held - 1
        memory.evaluated.write(
            EvaluatorProgress(number=number, exhausted=int(evaluator.scorer.early_stopping.exhausted))
        )


def is_over(memory: SharedMemory, dealt_with: int) -> bool:
    """Return whether the final snapshot is dealt with."""
    newest = newest_snapshot(memory)
    return bool(newest.final) and newest.number <= dealt_with


def is_behind(snapshots: Sequence[Snapshot]) -> bool:
    """Return whether all but the newest snapshot are to be skipped: too many wait, or the time of the run is up."""
    return len(snapshots) > MAX_BACKLOG or (len(snapshots) > 1 and bool(snapshots[-1].time_is_up))


class Evaluator:
    """Scores snapshots and writes the best model."""

    def __init__(self, spec: ProcessSpec, device: torch.device, launcher: Channel, stopwatch: Stopwatch) -> None:
        folder = Path(spec.prepared)
        self.spec = spec
        self.launcher = launcher
        self.stopwatch = stopwatch
        self.prepared = read_data(spec)
        self.history = list(spec.history)
        self._schedule = Schedule.from_config(spec.config, spec.train_rows)
        reader = open_split(folder, self.prepared, "valid")
        replica = Replica.from_architecture(spec.model, device, spec.config.kernel)
        self.scorer = ValidationScorer(replica, reader, spec.config.patience, spec.choices)
        if spec.choices is None:
            # An earlier evaluator may have died: patience counts over both.
            self.scorer.early_stopping.replay(spec.history)
        self.finisher = Finisher(
            lambda: open_split(folder, self.prepared, "train"),
            reader,
            self.prepared,
            spec.config,
            spec.choices,
        )
        self.best: BestParameters | None = None
        self.unsaved: StateSnapshot | None = None
        """The snapshot of ``best``, until that is on disk."""

        self._has_failed = False
        """Whether saving failed; ``unsaved`` is then a copy, and no longer in a slot."""

        self._next_save = time.monotonic()

    @property
    def held(self) -> int | None:
        """Number of the best snapshot if it is not on disk; if this process dies, the next one scores it again.

        None after a failure to save: the disk may be full for longer than the slots of later snapshots last.
        """
        return None if self.unsaved is None or self._has_failed else self.unsaved.snapshot.number

    def take(self, each: StateSnapshot) -> None:
        """Score a snapshot, unless an earlier process has, and save the best one if saving is due."""
        snapshot = each.snapshot
        reported = self.history[-1]["step"] if self.history else -1
        if snapshot.step <= reported or self.scorer.skips(final=bool(snapshot.final)):
            return
        if not each.is_whole:
            logger.warning("the snapshot of step %d is damaged and is skipped", snapshot.step)
            return
        values_VP = scored_values(each.state_KP, self.spec.shape)
        entry, best = self.scorer.score_parameters(values_VP, snapshot.figures(), is_due=self._is_due(snapshot.step))
        self.stopwatch.lap("score")
        if best is not None:
            self.best = best
            self.unsaved = each
            self._has_failed = False
        self.history.append(entry)
        if self._may_save(snapshot):
            self._try_to_save()
        self.stopwatch.lap("save")
        self.stopwatch.publish()
        self.launcher.send(kind="evaluation", saved=self.unsaved is None, **entry)

    def _is_due(self, step: int) -> bool:
        """Return whether an evaluation is due at a step; none is where a run was interrupted in between."""
        before = self.history[-1]["step"] if self.history else 0
        return self._schedule.evaluations_due(step) > self._schedule.evaluations_due(before)

    def _may_save(self, newest: Snapshot) -> bool:
        """Return whether saving has taken little enough time, or the unsaved best holds a quarter of the slots."""
        waiting = 0 if self.held is None else 1 + newest.number - self.held
        return time.monotonic() >= self._next_save or 4 * waiting >= self.spec.shape.snapshot_slots

    def _try_to_save(self) -> None:
        """Write the best model; if that fails, keep it in memory, as training does not depend on it."""
        began = time.monotonic()
        try:
            self.save()
        except OutputError as error:
            if self.unsaved is not None and not self._has_failed:
                self.unsaved = replace(self.unsaved, state_KP=self.unsaved.state_KP.copy())
            self._has_failed = True
            now = time.monotonic()
            self._next_save = now + max(RETRY_SECONDS, (now - began) / MAX_SAVING_SHARE)
            text = f"{error}; the best model is kept in memory, training continues, and saving is tried again"
            self.launcher.send(kind="warning", text=text)

    def save_again(self) -> None:
        """Write the best model, if an earlier attempt has failed some time ago, and tell the launcher."""
        if self._has_failed and time.monotonic() >= self._next_save:
            self._try_to_save()
            if self.unsaved is None:
                self.launcher.send(kind="saved")
            self.stopwatch.lap("save")

    def save_last(self) -> None:
        """Write the best model at the end of a run, unless it is on disk, and tell the launcher.

        Raises:
            OutputError: It cannot be written; an earlier one stays.
        """
        if self.unsaved is not None:
            self.save()
            self.launcher.send(kind="saved")

    def save(self) -> None:
        """Write the best model, unless it is on disk.

        Raises:
            OutputError: It cannot be written; an earlier one stays.
        """
        best = self.best
        if best is None or self.unsaved is None:
            return
        # This takes time only once in a run, so it does not count as saving time.
        self.finisher.make_ready()
        began = time.monotonic()
        replica = self.scorer.replica
        replica.load(best.values_P)
        model, metrics = self.finisher.finish(replica.model, best)
        # A refit keeps the metrics of its first training, whose splits were separate.
        metrics.setdefault("data", self.prepared.fingerprint)
        metrics.setdefault("origin", origin_of(self.prepared).model_dump())
        if self.spec.earlier_origins:
            metrics.setdefault("earlier_origins", self.spec.earlier_origins[:KEPT_ORIGINS])
        folder = Path(self.spec.run) / MODEL_FOLDER
        save_model(folder, model, self.prepared.preprocessor, metrics)
        self._write_state(self.unsaved, folder)
        self.unsaved = None
        self._has_failed = False
        now = time.monotonic()
        self._next_save = now + (now - began) / MAX_SAVING_SHARE

    def _write_state(self, each: StateSnapshot, model: Path) -> None:
        """Write the state of the best model as a checkpoint, for ``--resume best``; training does not need it."""
        step = each.snapshot.step
        checkpoint = Checkpoint(
            **run_facts(self.prepared.fingerprint, self.spec.model, self.spec.config),
            ledger=each.ledger,
            state_KP=each.state_KP,
            history=[entry for entry in self.history if entry["step"] <= step],
            model=read_model(model),
        )
        try:
            write_checkpoint(self.spec.best, checkpoint)
        except OutputError as error:
            text = f"{error}; --resume best will resume from an earlier evaluation than that of step {step}"
            self.launcher.send(kind="warning", text=text)
