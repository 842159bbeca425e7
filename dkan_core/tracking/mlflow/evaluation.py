"""An evaluation in MLflow: its metrics and its report, with the run that has trained the model."""

import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dkan_core.errors import redact
from dkan_core.tracking.background import try_within
from dkan_core.tracking.mlflow.client import impatient_client, is_mlflow_wanted
from dkan_core.tracking.mlflow.record import known_run

# Enough for a report of a few hundred kilobytes; the client waits half a minute per request for a silent server.
LOG_SECONDS = 120.0


def log_evaluation(
    model: str | Path,
    metrics: Mapping[str, Any],
    step: int,
    report: str,
    learned: Mapping[str, Any] | None = None,
) -> None:
    """Log an evaluation to the run that has trained the model, or to a new run if that is not known.

    Does nothing unless MLFLOW_TRACKING_URI is set. A server that fails or hangs is a warning.

    Args:
        model: Folder or URI of the model, or of its run.
        metrics: What was found; "split" says on which rows.
        step: The model's optimizer steps.
        report: The page.
        learned: What the model learned: importances, curves.
    """
    if not is_mlflow_wanted():
        return
    from dkan_core.tracking.mlflow.run import active_run_id

    active = active_run_id()

    def log() -> None:
        folder = str(model).rstrip("/")
        known = active or known_run(folder, folder.rpartition("/")[0] or ".")
        _log(folder, known, metrics, step, {"metrics.json": metrics, "learned.json": learned}, report)

    with impatient_client():
        try_within(LOG_SECONDS, log, "MLflow", "the evaluation")


def _log(
    model: str,
    known: str | None,
    metrics: Mapping[str, Any],
    step: int,
    files: Mapping[str, Mapping[str, Any] | None],
    report: str,
) -> None:
    import mlflow

    from dkan_core.tracking.mlflow.run import is_there, log_metrics, start_run

    client = mlflow.MlflowClient()
    with ExitStack() as stack:
        if known and is_there(client, known):
            run_id = known
        else:
            run = stack.enter_context(start_run(None, run_name="evaluation", tags={"dkan.model": redact(model)}))
            run_id = run.info.run_id
        # MLflow's names allow letters, digits and a few signs; the name of raw data may have others.
        split = re.sub(r"[^\w. -]", "_", str(metrics["split"]))
        # valid/... and train/... are the curves of training, which are of the network alone.
        prefix = f"evaluation/{split}" if split in ("train", "valid") else split
        log_metrics(client, run_id, {f"{prefix}/{name}": value for name, value in metrics.items()}, step)
        client.log_text(run_id, report, f"{split}/report.html")
        for name, content in files.items():
            if content is not None:
                client.log_dict(run_id, dict(content), f"{split}/{name}")
