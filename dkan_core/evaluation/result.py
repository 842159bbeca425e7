"""The result of an evaluation, and ``metrics.json``, from which later steps read it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.errors import DataError
from dkan_core.evaluation import curves
from dkan_core.evaluation.metrics import finite_numbers, rank_scores
from dkan_core.model.saved_model import Share
from dkan_core.report.inline import inline_page
from dkan_core.report.templating import render_html, render_markdown, score
from dkan_core.utils.file_names import METRICS
from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.files import read_if_there


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """A model's scores on labelled rows.

    Shape:
        - labels: ``(N, L)`` uint8, 255 for not measured; probabilities: ``(N, L)``
    """

    metrics: dict[str, Any]
    """Contents of ``metrics.json``."""

    labels: npt.NDArray[np.uint8]
    probabilities: npt.NDArray[np.float32]

    weights: npt.NDArray[np.float32] | None = None
    """Weights of the rows, ``(N,)``, used by the metrics; None where every row counts alike."""

    thresholds: dict[str, float]
    """Operating threshold of each label: the one with the best F1 on validation."""

    report: str = ""
    """The page that ``report.html`` holds."""

    def __repr__(self) -> str:
        values = {"average precision": self.metrics["average_precision"], "ROC AUC": self.metrics["roc_auc"]}
        shown = ", ".join(f"{name} {score(value)}" for name, value in values.items())
        return f"Evaluation({self.metrics['split']}: {shown}; {self.metrics['rows']:,} rows)"

    def _repr_html_(self) -> str:
        """Return the metrics as a table and the report below it, which notebooks show."""
        table = render_html("evaluation_table", split=self.metrics["split"], labels=self.metrics["labels"])
        return f"{table}{inline_page(self.report)}" if self.report else table

    @property
    def counted_labels(self) -> npt.NDArray[np.uint8]:
        """``labels``, with rows of weight 0 set to not measured."""
        if self.weights is None:
            return self.labels
        return np.where(self.weights[:, None] > 0, self.labels, np.uint8(NOT_MEASURED))

    def scalars(self) -> dict[str, float]:
        """Return the top-level metrics that are defined, as plain floats."""
        return {name: float(value) for name, value in finite_numbers(self.metrics).items()}

    def summary(self) -> str:
        """Return the metrics as Markdown, for where no HTML is shown."""
        return render_markdown(
            "evaluation_summary",
            split=self.metrics["split"],
            scalars=self.scalars(),
            thresholds=self.thresholds,
            labels=self.metrics["labels"],
            not_compared=self.metrics.get("not_compared", ""),
        )

    def roc_curve(self) -> tuple[list[float], list[float], list[float]]:
        """Return false positive rate, true positive rate and thresholds, at most 200 points; labels are pooled."""
        return curves.roc_points(rank_scores(self.counted_labels, self.probabilities))

    def confusion_matrix(self) -> list[list[int]]:
        """Return [[TN, FP], [FN, TP]] at the operating thresholds, summed over labels."""
        labels_NL = self.counted_labels
        matrices = [
            curves.confusion_matrix(labels_NL[:, index], self.probabilities[:, index], threshold)
            for index, threshold in enumerate(self.thresholds.values())
        ]
        summed: list[list[int]] = np.sum(matrices, axis=0).tolist()
        return summed


class _EvaluationMetrics(Schema):
    """The fields of ``metrics.json`` that are read here."""

    model_config = ConfigDict(extra="allow")

    average_precision: Share | None
    split: str | None = None
    model_fingerprint: str | None = None


def read_metrics(where: str | Path) -> dict[str, Any]:
    """Return the metrics that an evaluation has written.

    Args:
        where: The file, local or remote.

    Raises:
        DataError: It cannot be read, or is not a file of metrics.
    """
    text = read_if_there(str(where))
    if text is None:
        raise DataError(f"{where}: no such file; expected {METRICS} that `dkan evaluate` wrote")
    return read_json(_EvaluationMetrics, text, str(where)).model_dump()
