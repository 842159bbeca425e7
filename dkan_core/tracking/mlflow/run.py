"""A run in MLflow: settings as parameters, what evaluations find as metrics, and at the end the model."""

import logging
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dkan_core
from dkan_core.errors import redact
from dkan_core.evaluation.metrics import finite_numbers
from dkan_core.tracking.mlflow import sweep
from dkan_core.tracking.mlflow.model import log_model
from dkan_core.tracking.mlflow.record import RUN_ID, RunRecord, known_run, write_record
from dkan_core.tracking.tracker import Progress, RunEnd, TrackedRun, Tracker
from dkan_core.training.history import HISTORY
from dkan_core.utils.file_names import MODEL_FOLDER
from dkan_core.utils.storage.paths import lies_in

# MLflow's word for each end; a run that was stopped, and is resumed, goes on as RUNNING.
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "stopped": "KILLED", "failed": "FAILED"}

# By name in MLflow, the entry of an evaluation.
EVALUATED = {
    "valid/average_precision": "average_precision",
    "valid/best_average_precision": "best_average_precision",
    "valid/loss": "validation_loss",
    "train/loss": "loss",
    "train/rows_per_second": "rows_per_second",
    "epoch": "epoch",
}

logger = logging.getLogger(__name__)


class MlflowTracker(Tracker):
    """Logs to one run in MLflow; a resumed run continues the same one.

    Must be created in the caller's thread: a run that is active there, as in a notebook, becomes the parent.
    """

    progress_seconds = 10.0
    # An upload of a large model takes minutes; a server that does not answer is given up after half of one.
    flush_seconds = 300.0

    def __init__(self) -> None:
        self._active = active_run_id()
        self._run_id = ""

    def started(self, run: TrackedRun) -> None:
        import mlflow

        self._run = run
        self._client = mlflow.MlflowClient()
        if not self._run_id:  # a repeated call, if a later step has failed
            self._open()
        self._join_sweep()
        self._log_settings()
        record = RunRecord(run_id=self._run_id, experiment_id=self._experiment_id)
        write_record(run.folder, record)
        if not lies_in(run.checkpoints, str(run.folder)):
            # A pod that replaces this one has no other way to find the run.
            write_record(run.checkpoints, record)

    def progress(self, progress: Progress) -> None:
        values = {"train/loss": progress.loss, "train/rows_per_second": progress.rows_per_second}
        log_metrics(self._client, self._run_id, values, progress.step)

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        values = {name: entry[key] for name, key in EVALUATED.items() if key in entry}
        log_metrics(self._client, self._run_id, values, entry["step"])

    def finished(self, end: RunEnd) -> None:
        import mlflow

        try:
            self._join_sweep()
            if end.metrics is not None:
                self._log_result(end.metrics)
        finally:
            mlflow.end_run(STATUS[end.status])

    def _open(self) -> None:
        """Continue the known run, or begin one."""
        run = self._run
        known = known_run(run.folder, run.checkpoints) if run.is_resumed else known_run()
        known = known if known and is_there(self._client, known) else None
        name = Path(redact(run.name)).name
        opened = start_run(known, run_name=None if known else name, parent_run_id=self._active)
        self._run_id = opened.info.run_id
        self._experiment_id = opened.info.experiment_id
        logger.info("MLflow: run %s in experiment %s", self._run_id, self._experiment_id)

    def _join_sweep(self) -> None:
        if name := sweep.sweep_name():
            parent = sweep.join_sweep(self._client, self._run_id, self._experiment_id, name)
            self._client.set_terminated(parent)

    def _log_settings(self) -> None:
        from mlflow.entities import Param, RunTag

        settings = {name: redact(_text(value)) for name, value in asdict(self._run.config).items()}
        # Parameters cannot be changed, so settings that differ in a resumed run become tags.
        there = self._client.get_run(self._run_id).data.params
        changed = {name: value for name, value in settings.items() if there.get(name, value) != value}
        tags = {
            "dkan.version": dkan_core.__version__,
            "dkan.data_fingerprint": self._run.data,
            "dkan.run": redact(self._run.name),
            **{f"dkan.resumed.{name}": value for name, value in changed.items()},
        }
        self._client.log_batch(
            self._run_id,
            params=[Param(name, value) for name, value in settings.items() if name not in there],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )

    def _log_result(self, metrics: Mapping[str, Any]) -> None:
        """Log the best model with its metrics, the history, and the model's card as the run's description."""
        model = self._run.folder / MODEL_FOLDER
        best = {f"best/{name}": value for name, value in metrics.items()}
        log_metrics(self._client, self._run_id, best, metrics["step"])
        self._client.set_tag(self._run_id, "mlflow.note.content", (model / "README.md").read_text(encoding="utf-8"))
        self._client.log_dict(self._run_id, dict(metrics), "metrics.json")
        self._client.log_artifact(self._run_id, str(self._run.folder / HISTORY))
        log_model(model, metrics["step"])


def start_run(known: str | None, **options: Any) -> Any:
    """Continue a run of MLflow, or begin one if none is known."""
    import mlflow

    if known is None:
        # If this variable names a run, the run does not exist, and MLflow would look for it again.
        os.environ.pop(RUN_ID, None)
    return mlflow.start_run(run_id=known, **options)


def active_run_id() -> str | None:
    """Return the id of the run that is active in the caller's thread, if MLflow is in use there."""
    if "mlflow" not in sys.modules:
        return None
    active = sys.modules["mlflow"].active_run()
    return active.info.run_id if active is not None else None


def log_metrics(client: Any, run_id: str, values: Mapping[str, Any], step: int) -> None:
    """Log those of some values that are finite numbers, in one request."""
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(name, float(value), now, step) for name, value in finite_numbers(values).items()]
    client.log_batch(run_id, metrics=metrics)


def is_there(client: Any, run_id: str) -> bool:
    """Return whether the server has a run, and it was not deleted."""
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        logger.warning("MLflow: run %s does not exist; starting a new one", run_id)
        return False


def _text(value: Any) -> str:
    """Return a setting as ``--help`` shows it: several values with commas between.

    >>> _text((32, 16)), _text(None)
    ('32,16', 'None')
    """
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
