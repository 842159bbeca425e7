"""The page of a batch scoring: metrics where labels are there, and the drift of every column and score."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from dkan_core.evaluation.drift.measures import LARGE, MODERATE, Drift, shown, verdict
from dkan_core.report.templating import render_html

TILES = {
    "average_precision": "Average precision",
    "roc_auc": "ROC AUC",
    "log_loss": "Log loss",
    "prevalence": "Prevalence",
}


def render_drift(drift: Drift, metrics: Mapping[str, Any] | None, *, title: str, files: int) -> Markup:
    """Return the page as HTML.

    Args:
        drift: Of all rows.
        metrics: As of ``compute_metrics``; None without labels.
        title: Heading.
        files: How many were scored.
    """
    large = sum(verdict(column.psi) == "large" for column in drift.columns)
    facts = [(name, shown(metrics[key]), "") for key, name in TILES.items()] if metrics is not None else []
    facts += [
        # The columns are sorted by it.
        ("Largest PSI", shown(drift.max_psi), drift.columns[0].name if drift.max_psi else ""),
        ("Large drift", f"{large:,}", f"of {len(drift.columns):,} columns and scores"),
        ("Rows", f"{drift.rows:,}", f"{files:,} files"),
    ]
    return render_html(
        "drift",
        title=title,
        lead=f"{drift.rows:,} rows of {files:,} files",
        facts=facts,
        columns=drift.columns,
        shown=shown,
        verdict=verdict,
        moderate=MODERATE,
        large=LARGE,
    )
