"""The report of an evaluation, filled with what is known of model, rows and run."""

import os
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dkan_core
from dkan_core.errors import redact
from dkan_core.evaluation.comparison import Comparison, comparison_section
from dkan_core.evaluation.labelled_rows import EvaluationData
from dkan_core.evaluation.result import Evaluation
from dkan_core.evaluation.worst_errors import WorstErrors
from dkan_core.explanation.additive import term_groups
from dkan_core.explanation.explanation import Explanation
from dkan_core.explanation.page import render_section
from dkan_core.model.architecture import additive_layout, ignored_names
from dkan_core.model.saved_model import SavedModel, are_current
from dkan_core.report.evaluation import render_report
from dkan_core.report.templating import score
from dkan_core.training.history import HISTORY, read_history
from dkan_core.utils.messages import counted, some_of
from dkan_core.utils.storage.files import read_if_there


def render_page(
    saved: SavedModel,
    data: EvaluationData,
    evaluation: Evaluation,
    *,
    learned: Explanation | None,
    errors: Mapping[str, WorstErrors],
    columns: Mapping[str, Any] | None,
    comparison: Comparison | None,
    provenance: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
) -> str:
    """Return the page."""
    return render_report(
        title=f"{some_of(data.labels)}: {data.title}",
        labels=evaluation.counted_labels,
        probabilities=evaluation.probabilities,
        names=data.labels,
        metrics=evaluation.metrics,
        thresholds=saved.thresholds,
        history=history,
        split=data.split,
        provenance=provenance,
        data_summary=data.summary(),
        model_summary=_model_summary(saved),
        compared=comparison_section(evaluation.metrics, comparison) if comparison is not None else None,
        learned={name: render_section(found, learned.rows) for name, found in learned.labels.items()}
        if learned
        else {},
        errors=errors,
        columns=columns,
    )


def provenance_of(
    saved: SavedModel, data: EvaluationData, model: str | Path, sources: Sequence[str], options: Sequence[str]
) -> dict[str, Any]:
    """Return how a report was made; it is reproducible to the byte where SOURCE_DATE_EPOCH sets the time.

    Args:
        saved: The model.
        data: The rows.
        model: Where the model lies.
        sources: Where the rows lie.
        options: The other arguments that the command line would have.
    """
    origin = saved.metrics.get("origin") or {}
    shown_sources = [redact(source) for source in sources]
    words = [redact(str(model)), *shown_sources, *map(redact, options)]
    stamp = os.environ.get("SOURCE_DATE_EPOCH")
    when = datetime.fromtimestamp(int(stamp), UTC) if stamp else datetime.now(UTC)
    found = {
        "date": f"{when:%Y-%m-%d %H:%M} UTC",
        "dkan": dkan_core.__version__,
        "model": words[0],
        "trained with": saved.metrics.get("software"),
        "model of epoch, step": f"{saved.metrics['epoch']:.2f}, {saved.metrics['step']:,}",
        "data": shown_sources,
        "rows": data.name,
        "seed of the model's data": origin.get("seed"),
        "encoding": saved.preprocessor.digest[:12],
        "command": shlex.join(["dkan", "evaluate", *words]),
    }
    return {name: value for name, value in found.items() if value is not None}


def read_run_history(model: str | Path) -> list[dict[str, Any]]:
    """Return the history of the run that a model lies in, or of the run folder itself; empty where there is none."""
    run = str(model).rstrip("/")
    # The run's folder, one above its model, has the history; a published model has none.
    for folder in (run, run.rpartition("/")[0] or "."):
        text = read_if_there(f"{folder}/{HISTORY}")
        if text:
            return read_history(text, f"{folder}/{HISTORY}")
    return []


def _pairs(saved: SavedModel) -> list[str] | str | None:
    """Return the pairs of an additive model by name."""
    if saved.config.additive is None:
        return None
    groups = term_groups(additive_layout(saved.config), saved.preprocessor)
    return [group.name for group in groups if len(group.columns) > 1] or "none"


def _blend(saved: SavedModel) -> str | None:
    """Return what the network's output is blended with."""
    blend = saved.config.blended
    if blend is None:
        return None
    terms = f"{counted(len(blend.additive.pairs), 'pair')}{' and IDs' if blend.ids else ''}"
    return f"an additive model of {terms}, which has weight {blend.weight:g} in the log-odds"


def _model_summary(saved: SavedModel) -> dict[str, Any]:
    coded = saved.preprocessor.coded
    crosses = [group for group in saved.config.one_hot_groups if len(group) > 1]
    # Edits by hand may not have been measured on the validation split.
    before = "" if are_current(saved.metrics) else ", before the last edits"
    found = {
        "model": saved.config.model,
        "members": saved.config.members,
        "layers of each": saved.module.widths,
        "binary inputs": len(saved.config.inputs.binary),
        "columns that the network ignores": ignored_names(saved.config, saved.preprocessor) or None,
        "pairs": _pairs(saved),
        "crosses": [" x ".join(coded[index].name for index in group) for group in crosses] or "none",
        "blended with": _blend(saved),
        "parameters": saved.parameters(),
        "centers": f"{saved.config.num_centers} on [{saved.config.grid_min:g}, {saved.config.grid_max:g}]",
        "rank of the first layer's sketches": saved.config.sketch_rank or "none",
        "input norm": saved.config.input_norm,
        "dropout": saved.config.dropout,
        "best at epoch": saved.metrics["epoch"],
        "edits by hand": len(saved.metrics.get("edits", [])) or None,
        f"validation average precision{before}": score(saved.metrics["average_precision"]),
        f"operating thresholds (best F1 on validation{before})": {
            name: score(each) for name, each in saved.thresholds.items()
        },
    }
    return {name: value for name, value in found.items() if value is not None}
