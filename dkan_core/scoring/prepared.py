"""Scoring of prepared splits: labels, log-odds and weights of all rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader, all_batches
from dkan_core.data.loading.prefetching import prefetched
from dkan_core.data.source.positive import check_positive
from dkan_core.errors import DataError
from dkan_core.model.base import TabularModel
from dkan_core.model.model_folder import REFIT_ROWS
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import SCORING_ROWS, log_odds
from dkan_core.utils.arrays import Arrays


@dataclass(frozen=True)
class ScoredSplit:
    """Labels ``(N, L)``, log-odds ``(N, L)`` and, where there are any, weights ``(N,)`` of a split's rows."""

    labels_NL: npt.NDArray[np.uint8]
    log_odds_NL: npt.NDArray[np.float32]
    weight_N: npt.NDArray[np.float32] | None


def score_split(model: TabularModel, reader: RowReader, device: torch.device) -> ScoredSplit:
    """Score every row of a prepared split in stored order, by a model in eval mode on ``device``."""
    return score_batches(model, all_batches(reader, SCORING_ROWS), device)


def score_batches(model: TabularModel, rows: Iterator[Arrays], device: torch.device) -> ScoredSplit:
    """Score encoded rows with their labels, which are read ahead in a thread.

    Args:
        model: The model in eval mode, on ``device``.
        rows: Batches of them, with ``labels`` and maybe ``weight``.
        device: Where to compute.
    """
    model = model.for_scoring()
    batches = [
        (arrays["labels"], log_odds(model, arrays, device).cpu().numpy(), arrays.get("weight"))
        for arrays in prefetched(rows)
    ]
    labels, scored, weights = zip(*batches, strict=True)
    weighted = weights[0] is not None
    return ScoredSplit(np.concatenate(labels), np.concatenate(scored), np.concatenate(weights) if weighted else None)


def check_match(saved: SavedModel, manifest: PreparedData, prepared: str | Path) -> None:
    """Raise DataError unless the data at ``prepared`` has the model's labels, of the same meaning, and its encoding."""
    if list(saved.config.labels) != manifest.labels:
        raise DataError(
            f"{prepared}: has labels {', '.join(manifest.labels)}; the model was trained for "
            f"{', '.join(saved.config.labels)}: use data with those, or a model of these"
        )
    check_positive(manifest.positive, str(prepared), saved.config.positive, "the model")
    if saved.preprocessor != manifest.preprocessor:
        raise DataError(
            f"{prepared}: is encoded differently from the model's training data; prepare its source with "
            "`dkan prepare ... --like MODEL`, or evaluate on the raw Parquet with `dkan evaluate MODEL RAW.parquet`"
        )


def known_split(saved: SavedModel, split: str) -> str:
    """Return a warning that a model was trained on a split that others are only validated on; empty if it was not.

    Args:
        saved: The model.
        split: Of the data that it was trained on.
    """
    known = split == "valid" and REFIT_ROWS in saved.metrics
    return "the model knows these rows: it was trained on train and valid together (refit)" if known else ""
