"""The page of a batch scoring: metrics where labels are there, and the drift of every column and score."""

import html
from collections.abc import Mapping
from typing import Any

from dkan_core.evaluation.drift.measures import LARGE, MODERATE, ColumnDrift, Drift, shown, verdict
from dkan_core.report import page

TILES = {
    "average_precision": "Average precision",
    "roc_auc": "ROC AUC",
    "log_loss": "Log loss",
    "prevalence": "Prevalence",
}
HEADS = (
    "Column",
    "Kind",
    "PSI",
    "Drift",
    "KS distance",
    "Missing",
    "in training",
    "New categories",
    "in training",
    "Rows with one",
    "such as",
)
MEANING = (
    f"PSI: population stability index over tenths of the training rows, or the most frequent categories, and missing "
    f"ones; below {MODERATE:g} a column counts as stable, from {LARGE:g} the drift is large. KS: largest difference of "
    "the distribution functions. New categories are values that the model does not know; some of training's own were "
    "too rare to be kept. With few rows both are noisy."
)


def render_drift(drift: Drift, metrics: Mapping[str, Any] | None, *, title: str, files: int) -> str:
    """Return the page.

    Args:
        drift: Of all rows.
        metrics: As of ``compute_metrics``; None without labels.
        title: Heading.
        files: How many were scored.
    """
    large = sum(verdict(column.psi) == "large" for column in drift.columns)
    tiles = [(name, shown(metrics[key]), "") for key, name in TILES.items()] if metrics is not None else []
    tiles += [
        ("Largest PSI", shown(drift.max_psi), html.escape(drift.columns[0].name) if drift.max_psi else ""),
        ("Large drift", f"{large:,}", f"of {len(drift.columns):,} columns and scores"),
        ("Rows", f"{drift.rows:,}", f"{files:,} files"),
    ]
    unknown = any(column.psi is None for column in drift.columns)
    body = [
        page.tiles(tiles),
        "<h2>Drift since training</h2>",
        page.note(MEANING),
        page.note("unknown: the model comes from a version of dkan that kept no distribution.", unknown),
        page.table(HEADS, [_row(column) for column in drift.columns]),
    ]
    return page.render_page(title=title, lead=f"{drift.rows:,} rows of {files:,} files", body="\n".join(body))


def _row(column: ColumnDrift) -> str:
    cells = [
        f'<td class="name">{html.escape(column.name)}</td><td>{column.kind}</td>',
        f"<td>{shown(column.psi)}</td><td>{verdict(column.psi)}</td><td>{shown(column.ks)}</td>",
        f"<td>{column.missing:.2%}</td><td>{_share(column.missing_in_training)}</td>",
    ]
    if column.unseen is None:
        cells.append("<td></td>" * 4)
    else:
        examples = html.escape(", ".join(column.examples))
        cells.append(f"<td>{column.unseen:.2%}</td><td>{_share(column.unseen_in_training)}</td>")
        cells.append(f"<td>{column.unseen_rows:,}</td><td>{examples}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2%}"
