"""The end of a batch scoring: exact metrics and drift over all parts, and the gate."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

from dkan_core.batch_scoring.parts import PartRecord, read_record
from dkan_core.batch_scoring.plan import DONE, PLAN, Scoring, ScoringPlan, missing_files, open_plan, read_accepted
from dkan_core.errors import ConfigError, DataError, GateError
from dkan_core.evaluation.drift.counting import DriftCounts
from dkan_core.evaluation.drift.measures import Drift, check_max_psi
from dkan_core.evaluation.drift.scored_files import measure_since_training
from dkan_core.evaluation.drift.summary import ScoringSummary, render_drift
from dkan_core.evaluation.metrics import compute_metrics
from dkan_core.model.saved_model import load_model
from dkan_core.utils.messages import counted, some_of
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder

logger = logging.getLogger(__name__)


def summarize_scoring(output_uri: str | Path) -> ScoringSummary:
    """Compute metrics and drift over the rows of all parts.

    Args:
        output_uri: Where the plan lies, with all parts scored, or a scoring that was accepted.

    Returns:
        Metrics where labels were scored, the drift, and its page.

    Raises:
        DataError: A part is not scored yet.
    """
    accepted = read_accepted(SharedFolder(output_uri))
    if accepted is not None:
        return _with_page(accepted.metrics, Drift.from_dict(accepted.drift), files=len(accepted.files))
    output, plan = open_plan(output_uri)
    return _summarize(output, plan, _read_records(output, plan))


def complete_scoring(output_uri: str | Path, *, max_psi: float = 0.0, min_average_precision: float = 0.0) -> int:
    """Write ``_scoring.json``, which says that the scores are complete and accepted, and remove intermediate files.

    Args:
        output_uri: Where the plan lies, with all parts scored.
        max_psi: Largest population stability index of a column, or of a label's score; 0 sets no limit.
        min_average_precision: Smallest average precision; needs labels. 0 sets no limit.

    Returns:
        The rows that were scored.

    Raises:
        GateError: A limit is not met. The scores stay as they are, without ``_scoring.json`` unless an earlier call
            accepted them; a second call with other limits can.
        DataError: A part is not scored yet, or a file has changed since it was written.
    """
    check_max_psi(max_psi)
    if not 0 <= min_average_precision <= 1:
        raise ConfigError(f"min_average_precision must be from 0 to 1, got {min_average_precision:g}")
    output = SharedFolder(output_uri)
    accepted = read_accepted(output)
    if accepted is not None:
        output.remove(WORK)  # left if an earlier call was killed at its end
        _check_gate(accepted.metrics, Drift.from_dict(accepted.drift), max_psi, min_average_precision)
        return accepted.rows
    output, plan = open_plan(output_uri)
    records = _read_records(output, plan)
    summary = _summarize(output, plan, records)
    # Checked before ``_scoring.json`` declares the scores fit for use.
    _check_gate(summary.metrics, summary.drift, max_psi, min_average_precision)
    files = sorted((file for record in records for file in record.files), key=lambda file: file.output)
    missing = missing_files(output, files)
    if missing:
        raise DataError(f"{output_uri}/{missing[0]}: has changed since it was written; run its part again")
    done = Scoring(
        plan=plan.id,
        model=plan.model,
        fingerprint=plan.fingerprint,
        rows=summary.drift.rows,
        columns=plan.columns,
        labels=plan.labels,
        files=files,
        **summary.to_dict(),
    )
    output.write_json(DONE, json.loads(done.model_dump_json()))
    for name in (PLAN, WORK):
        output.remove(name)
    logger.info("scored %s to %s in %s", counted(done.rows, "row"), counted(len(files), "file"), output_uri)
    return done.rows


def _check_gate(metrics: dict[str, Any] | None, drift: Drift, max_psi: float, min_average_precision: float) -> None:
    _check_average_precision(metrics, min_average_precision)
    drift.check(max_psi)


def _check_average_precision(metrics: dict[str, Any] | None, limit: float) -> None:
    """Raise GateError where the average precision is below a limit, or there is none; 0 sets no limit."""
    if not limit:
        return
    if metrics is None:
        raise ConfigError(f"min_average_precision {limit:g} needs label columns; name them with label, or set it to 0")
    found = metrics["average_precision"]
    if found is None:
        raise GateError(f"min_average_precision {limit:g}: no label column has both classes, so it is undefined")
    if found < limit:
        raise GateError(f"average precision {found:.4f} is below min_average_precision {limit:g}")


def _read_records(output: SharedFolder, plan: ScoringPlan) -> list[PartRecord]:
    found = {part: read_record(output, plan, part) for part in range(len(plan.parts))}
    missing = [str(part) for part, record in found.items() if record is None]
    if missing:
        raise DataError(f"{output.uri}: part {some_of(missing, 8)} of {len(found)} not scored yet; score_part is next")
    return [record for record in found.values() if record is not None]


def _summarize(output: SharedFolder, plan: ScoringPlan, records: list[PartRecord]) -> ScoringSummary:
    counts = DriftCounts()
    for record in records:
        counts.merge(DriftCounts.from_schema(record.counts))
    saved = load_model(f"{output.uri}/{plan.model_folder}")
    drift = measure_since_training(counts, saved)
    metrics = _read_metrics(output, plan, list(saved.config.labels)) if plan.labels else None
    return _with_page(metrics, drift, files=len(plan.files))


def _with_page(metrics: dict[str, Any] | None, drift: Drift, *, files: int) -> ScoringSummary:
    labels = [column.name for column in drift.columns if column.kind == "score"]
    page = render_drift(drift, metrics, title=f"{some_of(labels)}: batch scoring", files=files)
    return ScoringSummary(metrics=metrics, drift=drift, page=page)


def _read_metrics(output: SharedFolder, plan: ScoringPlan, names: list[str]) -> dict[str, Any]:
    """Compute the metrics of all rows: exact, of the parts' scores and labels one after the other."""
    arrays = []
    for part in range(len(plan.parts)):
        with output.open(f"{plan.record(part)}.safetensors") as file:
            # Labels and probabilities of all rows are in memory, 5 bytes per label, as exact metrics need one sort over
            # them.
            arrays.append(load(file.read()))
    labels_NL, probabilities_NL = (
        np.concatenate([found[name] for found in arrays]) for name in ("labels", "probabilities")
    )
    return compute_metrics(labels_NL, probabilities_NL, names)
