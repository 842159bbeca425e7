"""What is left to do for a run that resumes from a checkpoint: steps to take, and snapshots to score."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.endings import ENDINGS
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.schedule import Schedule, plan_work
from dkan_core.training.state.snapshots import StateSnapshot
from dkan_core.training.validation.early_stopping import EarlyStopping


def ending_of(checkpoint: Checkpoint, config: ResolvedTrainConfig, rows: int) -> str:
    """Return why nothing is left to do, one of ``ENDINGS``; empty if there is.

    After an interrupt there always is, after a time limit or early stopping only with a larger limit or more patience.
    """
    # The patience of the resumed run, which may be more than the earlier one had.
    early_stopping = EarlyStopping(config.patience)
    early_stopping.replay(checkpoint.history)
    plan = plan_work(config, rows)
    ledger = checkpoint.ledger
    if ledger.step == plan.epochs * plan.steps_per_epoch and checkpoint.history and not checkpoint.pending:
        return "epochs"
    if early_stopping.exhausted:
        return "patience"
    return "time" if ledger.ending == "time" and has_no_time_left(checkpoint, config) else ""


def with_ending(ledger: Ledger, config: ResolvedTrainConfig, history: Sequence[Mapping[str, Any]]) -> Ledger:
    """Return the last ledger of a run with the ending that ``ending_of`` gives when the run is resumed.

    Patience may be used up while the last steps are taken. The final state is then not scored, and raising only the
    epochs would not continue the run.
    """
    early_stopping = EarlyStopping(config.patience)
    early_stopping.replay(history)
    if ledger.ending == "epochs" and early_stopping.exhausted and history[-1]["step"] < ledger.step:
        return replace(ledger, ended=ENDINGS.index("patience"))
    return ledger


def has_no_time_left(checkpoint: Checkpoint, config: ResolvedTrainConfig) -> bool:
    """Return whether ``max_seconds`` is used up."""
    return config.max_seconds is not None and checkpoint.ledger.used >= config.max_seconds


def waiting_snapshots(checkpoint: Checkpoint, schedule: Schedule) -> list[StateSnapshot]:
    """Return the snapshots of a checkpoint that are to be scored, in order.

    A run that stops early ends with a snapshot of whatever step it has reached. It is left out unless an evaluation was
    due there, as a run that had more patience from the start would not have taken it.
    """
    pending = checkpoint.pending
    if not pending or checkpoint.ledger.ending != "patience":
        return pending
    before = [entry["step"] for entry in checkpoint.history] + [each.snapshot.step for each in pending[:-1]]
    due = schedule.evaluations_due
    return pending if due(pending[-1].snapshot.step) > due(max(before, default=0)) else pending[:-1]
