"""Scores and counts of files, and how far they are from the training rows.

Shape suffixes: N rows, L labels.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.data.preparation.label_columns import positive_of_columns, stored_labels, with_binary_labels
from dkan_core.data.source.files import find_parquet, split_sources
from dkan_core.errors import DataError
from dkan_core.evaluation.drift.counting import DriftCounts, TrainingDistribution, count_rows
from dkan_core.evaluation.drift.measures import Drift, measure
from dkan_core.model.model_folder import naming_swapped
from dkan_core.model.saved_model import SavedModel, load_model
from dkan_core.scoring.output_columns import check_sources
from dkan_core.scoring.raw import scored_batches
from dkan_core.utils.progress import progress
from dkan_core.utils.torch_resources import best_device

logger = logging.getLogger(__name__)


@dataclass
class ScoredRows:
    """Result of scoring rows: counts, and labels (N, L) with probabilities (N, L) where labels are there."""

    counts: DriftCounts = field(default_factory=DriftCounts)
    labels: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    probabilities: list[npt.NDArray[np.float32]] = field(default_factory=list)


def counted_batches(
    saved: SavedModel,
    path: str,
    columns: Sequence[str],
    labels: Sequence[str],
    found: ScoredRows,
    folder_types: Mapping[str, str] | None = None,
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.float32]]]:
    """Yield a file's rows and probabilities, and add their counts, labels and probabilities to ``found``.

    Args:
        saved: The model.
        path: The file.
        columns: Columns to pass through.
        labels: Columns of labels, whose values are collected; may be none.
        found: Gets the results.
        folder_types: As for ``scored_batches``.
    """
    device = best_device()
    saved.module.to(device)
    reference = TrainingDistribution.from_model(saved.preprocessor, saved.metrics)
    empty = np.empty((0, len(saved.config.labels)))
    # An empty array first, so that a part without rows has arrays to concatenate, too.
    found.labels.append(empty.astype(np.uint8))
    found.probabilities.append(empty.astype(np.float32))
    wanted = [*columns, *labels]
    for batch, found_NL in scored_batches(saved, path, wanted, device, folder_types=folder_types):
        found.counts.merge(count_rows(batch, found_NL, saved.config.labels, reference, path))
        if labels:
            positive = positive_of_columns(saved.config.positive, saved.config.labels, labels)
            found.labels.append(stored_labels(with_binary_labels(batch, labels, positive, path), labels))
            found.probabilities.append(found_NL)
        yield batch, found_NL


def measure_drift(model: str | Path, sources: str | Path | Sequence[str | Path]) -> Drift:
    """Measure how far raw Parquet, and its scores, are from what a model was trained with.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder, or a published model; a path or an fsspec URI.
        sources: Files, folders, globs or fsspec URIs.

    Returns:
        The shift of every column and score.

    Raises:
        DataError: The model cannot be read, or a column is missing or of another kind than in training.
    """
    return measure_files(model, find_files(sources))


def find_files(sources: str | Path | Sequence[str | Path]) -> list[str]:
    """Return the files that sources name; the error for a model among them says that the two may be swapped."""
    named = split_sources(sources)
    with naming_swapped(named):
        return find_parquet(named)


def measure_since_training(counts: DriftCounts, saved: SavedModel) -> Drift:
    """Return how far counted rows are from a model's training; columns that have no drift are logged."""
    if ids := [feature.name for feature in saved.preprocessor.sparse]:
        logger.warning("drift is not measured of columns of IDs: %s", ", ".join(ids))
    return measure(counts, TrainingDistribution.from_model(saved.preprocessor, saved.metrics))


def measure_files(model: str | Path, paths: Sequence[str]) -> Drift:
    """Measure the drift of files, which have been found; see ``measure_drift``."""
    saved = load_model(model)
    rows = sum(check_sources(saved, paths, ())[1])
    if not rows:
        raise DataError(f"{paths[0]}: no rows in any source file")
    found = ScoredRows()
    with progress("scoring", rows, "rows") as advance:
        for path in paths:
            for batch, _ in counted_batches(saved, path, (), (), found):
                advance(len(batch))
    return measure_since_training(found.counts, saved)
