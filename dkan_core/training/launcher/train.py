"""``train``: resolves settings, makes the run's folder ready, runs it, and says how it ended.

No process of a run imports the caller's script, so a script needs no ``__main__`` guard and a notebook works.
"""

import json
import logging
import math
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dkan_core.config import ResolvedTrainConfig, TrainConfig, check_config
from dkan_core.config.saving import settings_text
from dkan_core.data.loading.loader import open_split
from dkan_core.data.loading.tiers import open_data, settle_tier
from dkan_core.errors import DkanError, TrainingError
from dkan_core.model.saved_model import SavedModel
from dkan_core.tracking.choice import follow_run
from dkan_core.tracking.tracker import RunEnd, TrackedRun
from dkan_core.training.communication.rendezvous import TorchRun
from dkan_core.training.history import HISTORY
from dkan_core.training.launcher.fork_server_client import ForkServer, one_fork_server
from dkan_core.training.launcher.refit import check_initial, refit
from dkan_core.training.launcher.remaining_work import ending_of
from dkan_core.training.launcher.resuming import find_starting_point, resume_options
from dkan_core.training.launcher.run import Outcome, RunStart, architecture_of_run, open_run
from dkan_core.training.launcher.run_folder import (
    LOGS,
    SETTINGS,
    check_initial_stays,
    check_run_folder,
    local_run_folder,
    make_logs_ready,
    make_ready,
    replaced_processes,
)
from dkan_core.training.launcher.run_log import FITTED, LOG, EndLogger, capture_log
from dkan_core.training.launcher.torchrun import Ranks, run_following_rank
from dkan_core.training.setup.additive_fit_limits import needs_no_gradients
from dkan_core.training.setup.architecture import settled
from dkan_core.training.setup.defaults import log_choices, resolve_for
from dkan_core.training.setup.initial_model import take_initial
from dkan_core.training.state.checkpoint_file import Checkpoint
from dkan_core.training.state.checkpoint_store import (
    BEST_FILE,
    CHECKPOINTS,
    OWN_CHECKPOINTS,
    clear_checkpoints,
    copy_best,
    save_checkpoint,
)
from dkan_core.training.state.endings import ENDINGS, STOP_CRITERIA
from dkan_core.training.state.refit_choices import may_refit
from dkan_core.training.state.schedule import Schedule
from dkan_core.utils.file_names import METRICS, MODEL_FOLDER
from dkan_core.utils.storage.files import write_atomic, write_json
from dkan_core.utils.storage.paths import is_remote, lies_in, local_path
from dkan_core.utils.storage.remote import check_file_writable, check_writable
from dkan_core.utils.storage.staging import output_lock

LEDGER_FIELDS = ("units_done", "rows", "refused", "backoffs", "late", "reassigned")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """Result of a run."""

    average_precision: float
    """Validation AP of the best model; the mean over labels."""

    model: str
    """Folder of the best model: path or URI."""

    metrics: dict[str, Any]
    """Contents of ``metrics.json``."""

    history: list[dict[str, Any]]
    """One entry per evaluation."""

    checkpoint: str | None = None
    """Path or URI of the newest checkpoint; None if there is none to resume from."""

    next_step: str = ""
    """How to go on with the run, or to start it again: options of ``dkan train``."""

    def __repr__(self) -> str:
        epoch = self.history[-1]["epoch"] if self.history else 0
        return f"TrainResult(average_precision={self.average_precision:.4f}, model={self.model!r}; epoch {epoch:g})"


def train(
    prepared: str | Path, run: str | Path, config: TrainConfig | None = None, *, overwrite: bool = False
) -> TrainResult:
    """Train on a prepared data set, evaluate it in parallel, keep the best model by validation AP.

    Under torchrun every rank calls this function, and rank 0 writes the run.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote.
        run: Folder or URI for ``model/``, ``metrics.json``, ``history.jsonl``, ``logs/`` and ``checkpoints/``.
        config: Settings; those that are None are chosen from the data.
        overwrite: Whether an earlier run in ``run`` may be replaced.

    Returns:
        The path of the best model, its validation AP, and the history of evaluations; on every rank, those of rank 0.

    Raises:
        UserError: The data, a setting or the output folder is wrong.
        TrainingError: A process died repeatedly, or the loss is not finite; the message says where.
        KeyboardInterrupt: Ctrl-C was pressed twice; pressed once, the run ends in order.
    """
    config = config or TrainConfig()
    check_config(TrainConfig, config)
    if is_remote(run):
        run = str(run).rstrip("/")  # in a bucket, a//b is another place than a/b
    torchrun = TorchRun.read()
    if torchrun is None:
        return _lead(prepared, run, config, None, overwrite=overwrite)
    ranks = Ranks(torchrun, config.exchange_timeout)
    if torchrun.rank:
        return _follow_rank_0(prepared, run, config, ranks)
    with ranks.told_of_failure():
        return _lead(prepared, run, config, ranks, overwrite=overwrite)


def _lead(
    prepared: str | Path, run: str | Path, config: TrainConfig, ranks: Ranks | None, *, overwrite: bool
) -> TrainResult:
    """Train as the only launcher or that of rank 0, which writes the run."""
    check_run_folder(run, config.checkpoint_uri, overwrite=overwrite or config.resume in OWN_CHECKPOINTS)
    check_initial_stays(run, config.init_from)
    if is_remote(run):
        check_writable(str(run))
    with (
        output_lock(run),
        capture_log() as write_log,
        open_data(prepared, config) as (data, manifest),
        one_fork_server() as fork_server,
    ):
        for split in ("train", "valid"):
            open_split(data, manifest, split).close()
        asked, initial = take_initial(config, manifest, prepared, f"{run}/{CHECKPOINTS}")
        resolved = resolve_for(asked, manifest, ranks.torchrun if ranks else None)
        where, checkpoint, clears = find_starting_point(run, resolved, manifest, overwrite=overwrite)
        if not lies_in(where, str(run)):
            check_file_writable(f"{where}/{BEST_FILE}")
        log_choices(asked, resolved, manifest.splits["train"].rows)
        resolved = settle_tier(resolved, manifest.splits["train"].bytes)
        if ranks is not None:
            # Before anything is written: a rank whose data is damaged ends the run of all.
            ranks.wait_until_ready(resolved.devices[0], manifest.fingerprint)
        # Another run may have been given the same folder for its checkpoints.
        with nullcontext() if _is_locked(where, run) else output_lock(where), local_run_folder(run) as folder:
            make_logs_ready(folder, is_resumed=checkpoint is not None)
            write_log(folder / LOGS / LOG)
            start = RunStart(
                run=str(run),
                data=data,
                manifest=manifest,
                folder=folder,
                config=resolved,
                checkpoints=where,
                clears_checkpoints=clears,
                checkpoint=checkpoint,
                initial=initial,
                ranks=ranks,
            )
            result = _train_in_folder(start, config, fork_server)
    logger.info("best validation average precision %.4f; model in %s", result.average_precision, result.model)
    _log_parts(resolved, result)
    if ranks is not None:
        ranks.publish_value("result", asdict(result))
        ranks.leave()
    return result


def _train_in_folder(start: RunStart, given: TrainConfig, fork_server: Callable[[], ForkServer]) -> TrainResult:
    """Train in a local folder.

    Args:
        start: What the run starts from.
        given: Settings as they were given.
        fork_server: Returns the run's fork server.
    """
    folder, config, checkpoint = start.folder, start.config, start.checkpoint
    ending = "" if checkpoint is None else ending_of(checkpoint, config, start.train_rows)
    if config.refit and not ending:
        check_initial(config, start.initial)
    fitted = needs_no_gradients(config, start.manifest)
    source, options = checkpoint.source if checkpoint else "", resume_options(config, start.checkpoints)
    with ExitStack() as stack:
        with EndLogger(start.run, folder / MODEL_FOLDER, source, options, is_fitted=fitted) as end:
            if not ending:
                fork_server()  # it imports torch meanwhile
            architecture = architecture_of_run(start)
            # Checkpoints keep the setting of the search: a resumed run compares its settings before any search.
            found = replace(settled(config, architecture), architecture_search=config.architecture_search)
            # An earlier run stays until this one is open: errors in data or settings are raised before.
            with nullcontext() if ending else open_run(start, architecture) as execution:
                replaced = replaced_processes(start.run)
                _remove_earlier(start)
                write_atomic(folder / SETTINGS, settings_text(given, found))
                tracker = stack.enter_context(follow_run(_tracked_run(start, found)))
                if execution is not None:
                    outcome = execution.execute(fork_server(), end, tracker)
                else:
                    assert checkpoint is not None, "nothing else has an ending"
                    how = FITTED if fitted else STOP_CRITERIA[ending].advice
                    logger.info("%s is from a finished run: nothing to train; %s", checkpoint.source, how)
                    outcome = _take_over(start, checkpoint, ending, replaced)
            metrics = _write_metrics(start, found, outcome)
            if config.refit and may_refit(outcome.ledger.ending):
                outcome = refit(start, outcome, fork_server)
                metrics = _write_metrics(start, found, outcome)
            end.reason = outcome.ledger.ending
            end.history = outcome.history
        status: Literal["interrupted", "finished"] = "interrupted" if end.reason == "interrupt" else "finished"
        tracker.finished(RunEnd(status=status, metrics=metrics))
    return TrainResult(
        average_precision=float(metrics["average_precision"]),
        model=f"{start.run}/{MODEL_FOLDER}",
        metrics=metrics,
        history=outcome.history,
        checkpoint=end.checkpoint or None,
        next_step=end.next_step(),
    )


def _log_parts(config: ResolvedTrainConfig, result: TrainResult) -> None:
    """Log the AP of gradient training alone, if the model contains more than that."""
    trained = max((entry["average_precision"] for entry in result.history), default=math.nan)
    if config.model == "additive":
        logger.info("gradient training alone reached %.4f, before smoothing or the penalized fit", trained)
    elif "blend" in result.metrics:
        logger.info(
            "the network alone reached %.4f; it is blended with an additive model, which has weight %g in the log-odds",
            trained,
            result.metrics["blend"],
        )


def _is_locked(where: str, run: str | Path) -> bool:
    """Return whether the folder for checkpoints is the run's own folder, which is locked already."""
    return not is_remote(where) and not is_remote(run) and local_path(where).resolve() == local_path(run).resolve()


def _remove_earlier(start: RunStart) -> None:
    """Remove what an earlier run has left and this one replaces."""
    checkpoint, where = start.checkpoint, start.checkpoints
    if start.clears_checkpoints:
        clear_checkpoints(where)
    if checkpoint is not None and start.config.resume == "best":
        # Discard all later checkpoints now, in case this run stops before it writes another one.
        save_checkpoint(where, checkpoint)
    elif checkpoint is not None and not lies_in(checkpoint.source, where):
        # If the checkpoint's run has ended, this one trains nothing and writes no other checkpoint.
        save_checkpoint(where, checkpoint)
        copy_best(checkpoint, where)
    make_ready(start.folder, checkpoint, keep_refit=start.config.refit)


def _tracked_run(start: RunStart, found: ResolvedTrainConfig) -> TrackedRun:
    """Return what trackers are sent about a run; ``found`` are its settings with the results of the search."""
    checkpoint = start.checkpoint
    return TrackedRun(
        name=start.run,
        folder=start.folder,
        checkpoints=start.checkpoints,
        config=found,
        data=start.manifest.fingerprint,
        steps=Schedule.from_config(found, start.train_rows).steps,
        step=checkpoint.ledger.step if checkpoint is not None else 0,
        is_resumed=checkpoint is not None,
    )


def _take_over(start: RunStart, checkpoint: Checkpoint, ending: str, replaced: dict[str, int]) -> Outcome:
    """Write the results of a finished run from its checkpoint; nothing is trained."""
    if start.ranks is not None:
        start.ranks.publish_value("facts", None)
    lines = "".join(json.dumps(entry) + "\n" for entry in checkpoint.history)
    write_atomic(start.folder / HISTORY, lines)
    return Outcome(checkpoint.history, replace(checkpoint.ledger, ended=ENDINGS.index(ending)), replaced)


def _write_metrics(start: RunStart, config: ResolvedTrainConfig, outcome: Outcome) -> dict[str, Any]:
    """Write what is known of the best model and of the run, and return it."""
    folder = start.folder
    if not (folder / MODEL_FOLDER).exists():
        raise TrainingError("no evaluation gave finite scores; lower learning_rate or check the row weights")
    metrics = SavedModel(folder / MODEL_FOLDER).metrics
    metrics["training"] = _training_facts(config, outcome, start.placement.threads)
    write_json(folder / METRICS, metrics)
    return metrics


def _follow_rank_0(prepared: str | Path, run: str | Path, config: TrainConfig, ranks: Ranks) -> TrainResult:
    """Run the collective worker of a rank above 0; return what rank 0 returns."""
    with ExitStack() as stack:
        try:
            data, manifest = stack.enter_context(open_data(prepared, config))
            resolved = resolve_for(config, manifest, ranks.torchrun)
            resolved = settle_tier(resolved, manifest.splits["train"].bytes)
        except DkanError as error:
            ranks.report_failure(error)
            raise
        logs = "" if is_remote(run) else str(local_path(run) / LOGS)
        return TrainResult(**run_following_rank(ranks, data, manifest, resolved, logs))


def _training_facts(config: ResolvedTrainConfig, outcome: Outcome, threads: int) -> dict[str, Any]:
    last = outcome.history[-1]
    ledger = outcome.ledger
    return {
        "strategy": config.strategy,
        "mode": config.mode,
        "device": config.device,
        "workers": config.workers,
        "threads": threads,
        "members": config.members,
        "hidden": list(config.hidden),
        "num_centers": config.num_centers,
        "dropout": config.dropout,
        "batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "epochs": config.epochs,
        "epochs_done": last["epoch"],
        "steps": last["step"],
        "seconds": last["seconds"],
        "seed": config.seed,
        "init_from": config.init_from,
        "ended": ledger.ending,
        "ledger": {name: getattr(ledger, name) for name in LEDGER_FIELDS},
        "replaced": outcome.replaced,
    }
