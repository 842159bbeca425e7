"""Summary of scored rows, and its page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dkan_core.evaluation.drift.measures import LARGE, MODERATE, Drift, shown, verdict
from dkan_core.evaluation.drift.scored_files import find_files, measure_files
from dkan_core.evaluation.metrics import METRIC_NAMES, finite_numbers
from dkan_core.report.inline import inline_page
from dkan_core.report.templating import render_html
from dkan_core.utils.messages import counted
from dkan_core.utils.storage.files import write_atomic, write_json

# The metrics at the top of the page.
TILES = ("average_precision", "roc_auc", "log_loss", "prevalence")


@dataclass(frozen=True, kw_only=True)
class ScoringSummary:
    """Summary of all scored rows."""

    metrics: dict[str, Any] | None
    """From ``compute_metrics``; None without labels."""

    drift: Drift

    page: str = field(repr=False)
    """Both as one HTML page."""

    def _repr_html_(self) -> str:
        """Return the page in a frame, which notebooks show."""
        return inline_page(self.page, "Summary of a scoring")

    def scalars(self) -> dict[str, float]:
        """Return the metrics that are defined and the largest PSI, as plain floats."""
        known = {**(self.metrics or {}), "rows": self.drift.rows, "max_psi": self.drift.max_psi}
        return {name: float(value) for name, value in finite_numbers(known).items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        return {"metrics": self.metrics, "drift": self.drift.to_dict()}

    def save(self, page: str | Path, drift: str | Path) -> None:
        """Write the page, and metrics and drift as JSON, to local files."""
        for path in map(Path, (page, drift)):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(Path(page), self.page)
        write_json(Path(drift), self.to_dict())


def summarize_drift(model: str | Path, sources: str | Path | Sequence[str | Path]) -> ScoringSummary:
    """Measure drift as ``measure_drift`` does, and render its page.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder, or a published model; a path or an fsspec URI.
        sources: Files, folders, globs or fsspec URIs.

    Returns:
        The drift and its page; no metrics.

    Raises:
        DataError: The model cannot be read, or a column is missing or of another kind than in training.
    """
    files = find_files(sources)
    drift = measure_files(model, files)
    return ScoringSummary(
        metrics=None, drift=drift, page=render_drift(drift, None, title="Drift since training", files=len(files))
    )


def render_drift(drift: Drift, metrics: Mapping[str, Any] | None, *, title: str, files: int) -> Markup:
    """Return the page as HTML.

    Args:
        drift: Of all rows.
        metrics: From ``compute_metrics``; None without labels.
        title: Heading.
        files: How many were scored.
    """
    large = sum(verdict(column.psi) == "large" for column in drift.columns)
    scored = counted(files, "file")
    facts = [(METRIC_NAMES[key], shown(metrics[key]), "") for key in TILES] if metrics is not None else []
    facts += [
        # The first column has the largest PSI.
        ("Largest PSI", shown(drift.max_psi), drift.columns[0].name if drift.max_psi else ""),
        ("Large drift", f"{large:,}", f"of {len(drift.columns):,} columns and scores"),
        ("Rows", f"{drift.rows:,}", scored),
    ]
    return render_html(
        "drift",
        title=title,
        lead=f"{counted(drift.rows, 'row')} of {scored}",
        facts=facts,
        columns=drift.columns,
        shown=shown,
        verdict=verdict,
        moderate=MODERATE,
        large=LARGE,
    )
