"""``explain_rows``: one page that shows, row by row, which columns moved the log-odds and how far."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import torch
from markupsafe import Markup

from dkan_core.data.source.files import find_parquet, source_paths
from dkan_core.errors import ConfigError, DataError
from dkan_core.explanation.figures.drawing import percent, short
from dkan_core.explanation.figures.waterfall import draw_waterfall
from dkan_core.explanation.reasons import Reason, ReasonFinder
from dkan_core.model.saved_model import SavedModel, load_model
from dkan_core.report.figures.canvas import HINT_LENGTH
from dkan_core.report.figures.svg import page_element
from dkan_core.report.templating import Card, render_html
from dkan_core.scoring.output_columns import check_sources
from dkan_core.scoring.raw import scored_batches
from dkan_core.utils.messages import counted
from dkan_core.utils.storage.files import write_atomic
from dkan_core.utils.storage.staging import staged_folder
from dkan_core.utils.torch_resources import best_device, torch_threads

PAGE = "rows.html"
# Each row takes some 10 KB of the page. For more rows, ``dkan predict --reasons`` writes the reasons as columns.
MAX_ROWS = 200
# Reasons in a row's line of the table of contents.
REASONS_IN_CONTENTS = 2
# Rows of the table below a waterfall; nobody reads a thousand columns.
TABLE_ROWS = 60

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExplainedRow:
    """A row's score and the reasons for it."""

    number: int
    """Which row of the source it is, counted from 0."""

    probability: float
    baseline: float
    """The log-odds that contributions start from: the mean over a background."""

    reasons: list[Reason] = field(repr=False)
    """All columns, the strongest first; with the baseline they add up to the row's log-odds."""

    @property
    def log_odds(self) -> float:
        """The row's log-odds."""
        return self.baseline + sum(reason.log_odds for reason in self.reasons)


def explain_rows(
    model: str | Path,
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    label: str | None = None,
    top: int = 12,
    overwrite: bool = False,
) -> list[ExplainedRow]:
    """Find out which columns moved the log-odds of the first rows of raw Parquet; write ``rows.html``.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        sources: Files, folders, globs or fsspec URIs; a folder's files by path. The first 200 rows are explained.
        out: Folder or URI for the page.
        label: Label to explain. Default: the one that was most frequent on validation.
        top: How many columns get a step of their own in a row's figure.
        overwrite: Whether an earlier result in ``out`` may be replaced.

    Returns:
        The rows that were explained, in order.

    Raises:
        ConfigError: A setting is out of range, or there is no such label.
        DataError: The model or the rows cannot be read or do not belong together, or there are no rows.
        OutputError: ``out`` cannot take the result.
    """
    if top < 1:
        raise ConfigError(f"top must be 1 or more, got {top}")
    paths = find_parquet(source_paths(sources))
    with staged_folder(out, names=(PAGE,), overwrite=overwrite) as folder:
        saved = load_model(model)
        shown = _chosen_label(saved, label)
        total = sum(check_sources(saved, paths, [])[1])
        # One thread, as in ``explain``: chunks are so small that threads would wait for each other.
        with torch_threads(1):
            device = best_device()
            saved.module.to(device)
            finder = ReasonFinder(saved, device, shown)
            rows = list(_explained(saved, finder, paths, device))
        if not rows:
            raise DataError(f"{paths[0]}: has no rows to explain")
        write_atomic(folder / PAGE, _render(rows, shown, top, total, finder.part))
    which = "all" if len(rows) == total else f"the first {len(rows)} of"
    logger.info("explained %s %s; page in %s/%s", which, counted(total, "row"), out, PAGE)
    if len(rows) < total:
        logger.info("reasons for every row: dkan predict --reasons N")
    return rows


def _chosen_label(saved: SavedModel, label: str | None) -> str:
    names = list(saved.config.labels)
    if label is not None and label not in names:
        raise ConfigError(f"label must be one of {', '.join(names)}, got {label!r}")
    of_label = saved.metrics["labels"]
    return label or max(names, key=lambda name: of_label.get(name, {}).get("prevalence") or 0.0)


def _explained(
    saved: SavedModel, finder: ReasonFinder, paths: Sequence[str], device: torch.device
) -> Iterator[ExplainedRow]:
    """Yield the first rows with the reasons of a finder of one label."""
    (label,) = finder.labels
    index, baseline = saved.config.labels.index(label), finder.baseline[label]
    number = 0
    for path in paths:
        for batch, found_NL in scored_batches(saved, path, [], device):
            wanted = batch.slice(0, MAX_ROWS - number)
            for reasons, probability in zip(_reasons(finder, wanted, path), found_NL[:, index], strict=False):
                yield ExplainedRow(number=number, probability=float(probability), baseline=baseline, reasons=reasons)
                number += 1
            if number == MAX_ROWS:
                return


def _reasons(finder: ReasonFinder, rows: pa.RecordBatch, path: str) -> list[list[Reason]]:
    """Return each row's reasons, for all columns or terms."""
    (found,) = finder.find(rows, len(finder.columns), path)
    return [[Reason(**reason) for reason in row] for row in found.to_pylist()]


def _render(rows: Sequence[ExplainedRow], label: str, top: int, total: int, part: str) -> Markup:
    kept = f"the first {len(rows):,} of {total:,} rows" if len(rows) < total else counted(total, "row")
    return render_html(
        "rows",
        title=f"Score explanations: {label}",
        lead=f"{kept[:1].upper()}{kept[1:]}, {counted(len(rows[0].reasons), part)}",
        label=label,
        baseline=rows[0].baseline,
        rows=[(row, _card(row, top, part)) for row in rows],
        part=part,
        in_contents=REASONS_IN_CONTENTS,
        table_rows=TABLE_ROWS,
        percent=percent,
    )


def _card(row: ExplainedRow, top: int, part: str) -> Card:
    steps = "; ".join(f"{short(reason.text, HINT_LENGTH)}: {reason.log_odds:+.3f}" for reason in row.reasons[:top])
    spoken = f"Row {row.number}: from a baseline of {row.baseline:.3f} to log-odds of {row.log_odds:.3f}. {steps}"
    drawing = draw_waterfall(row.reasons, row.baseline, top, part)
    about = "From the baseline to the row's log-odds. Orange raises them, blue lowers them."
    return ("How the log-odds add up", about, page_element(drawing.svg, spoken))
