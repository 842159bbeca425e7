"""A model that scores the rows of requests, as ``predict`` scores those of files."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dkan_core.config import ServeConfig
from dkan_core.explanation.reasons import ReasonFinder, reasons_column
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.output_columns import probability_column
from dkan_core.scoring.probabilities import check_probabilities, score
from dkan_core.serving.rows import REQUEST
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.torch_resources import best_device


class RequestScorer:
    """A model in memory, on a GPU where there is one."""

    def __init__(self, saved: SavedModel) -> None:
        self.saved = saved
        self.preprocessor = saved.preprocessor
        self.device = best_device()
        self.on_scored: Callable[[Arrays], object] = lambda arrays: None
        """Called with the encoded rows of each batch that was scored, in the thread that scores."""
        self._model = self.saved.module.to(self.device).for_scoring()

    @property
    def outputs(self) -> list[str]:
        """Names of the probabilities, one per label, as in the output of ``predict``."""
        return [probability_column(label) for label in self.saved.config.labels]

    @property
    def reason_outputs(self) -> list[str]:
        """Names of the reasons, one per label, as in the output of ``predict``."""
        return [reasons_column(label) for label in self.saved.config.labels]

    @cached_property
    def reason_finder(self) -> ReasonFinder:
        """The finder of reasons; created by the first request that asks for them."""
        return ReasonFinder(self.saved, self.device)

    def score(self, batches: Sequence[pa.RecordBatch]) -> npt.NDArray[np.float32]:
        """Return the probability of each label, for the rows of all batches in order.

        Shape:
            - Output: ``(N, L)``

        Raises:
            DataError: The model gives no probability of a row.
        """
        rows = pa.Table.from_batches(batches)
        arrays = self.preprocessor.transform(rows, REQUEST)
        found_NL = score(self._model, arrays, self.device)
        check_probabilities(found_NL, self.saved.config.labels, REQUEST)
        self.on_scored(arrays)
        return found_NL

    def find_reasons(self, rows: pa.RecordBatch, count: int) -> list[list[Any]]:
        """Return ``count`` reasons of each label and row, the strongest first, as ``REASON`` has them.

        Raises:
            DataError: The model does not hold the distribution of its training data.
        """
        return [found.to_pylist() for found in self.reason_finder.find(rows, count, REQUEST)]

    def warm_up(self) -> None:
        """Score a row of missing values, so that slow initialization is over before the first request."""
        columns = {name: pa.nulls(1, kind) for name, kind in self.preprocessor.source_types.items()}
        self.score([pa.record_batch(list(columns.values()), names=list(columns))])


def load_scorer(folder: Path, config: ServeConfig) -> RequestScorer:
    """Return a model that has scored a row.

    Args:
        folder: Of the model, or of the run that it lies in.
        config: Settings of the server.

    Raises:
        DataError: It is no model, or damaged.
    """
    torch.set_num_threads(config.threads)
    scorer = RequestScorer(SavedModel(folder))
    scorer.warm_up()
    return scorer
