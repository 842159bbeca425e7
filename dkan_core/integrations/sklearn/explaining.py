"""Explanations of a fitted classifier: its most important columns, reasons for each row, and a page of both."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_consistent_length
from sklearn.utils.validation import check_is_fitted

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.errors import DataError
from dkan_core.explanation.drawings import draw_explanation
from dkan_core.explanation.explain import quick_explanation
from dkan_core.explanation.explanation import Explanation
from dkan_core.explanation.page import render_explanation
from dkan_core.integrations.sklearn.contributions import contributions_frame, mean_contributions
from dkan_core.integrations.sklearn.fitted import FittedClassifier
from dkan_core.integrations.sklearn.parameters import thread_count
from dkan_core.integrations.sklearn.rows import feature_names, read_features
from dkan_core.integrations.sklearn.targets import encode_labels
from dkan_core.model.saved_model import SavedModel
from dkan_core.report.inline import inline_page
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.messages import counted
from dkan_core.utils.storage.files import write_atomic
from dkan_core.utils.storage.scratch import scratch_folder
from dkan_core.utils.torch_resources import torch_threads


@dataclass(frozen=True)
class Page:
    """What a classifier learned, as a self-contained HTML page and as data."""

    html: str = field(repr=False)
    explanation: Explanation = field(repr=False)
    """The numbers on the page: importances, curves and interactions, by label."""

    def _repr_html_(self) -> str:
        """Return a frame that shows the page; its styles stay apart from those of the notebook."""
        return inline_page(self.html)

    def save(self, path: str | Path) -> None:
        """Write the page to a file.

        Raises:
            OutputError: It cannot be written.
        """
        write_atomic(Path(path), self.html)


class ExplainingMixin(FittedClassifier):
    """Methods that explain what a classifier has learned; a mixin for it."""

    @cached_property
    def feature_importances_(self) -> npt.NDArray[np.float64]:
        """How much each column of ``X`` counts: its mean absolute contribution to the log-odds, as shares of their sum.

        Contributions are those of ``explain`` (expected gradients, Erion et al. 2021), for rows that represent the
        training data: they are drawn from the distribution of each column, which the model keeps. With several labels,
        they are means over these. A column that was left out has 0, and a time counts with all of its parts. As with
        scikit-learn's importances, the importance of columns with the same information is split between them. A column
        of a sparse matrix counts with the contributions of its ones. Computed at the first access.

        Shape:
            - Output: ``(F,)``
        """
        check_is_fitted(self)
        with torch_threads(thread_count(self.n_jobs)):
            found = mean_contributions(self.module_, self.preprocessor_, self._device)
        importances_F = np.array([found.get(name, 0.0) for name in feature_names(self)], dtype=np.float64)
        total = importances_F.sum()
        return importances_F / total if total > 0 else importances_F

    def explain(self, X: Any) -> Any:
        """Return how far each column moved the log-odds of each row, as a pandas ``DataFrame`` with the index of ``X``.

        Columns are those of the encoding, numbers before categories: without what was left out, and with one for each
        part of a time, such as ``bought.weekday``, for each pair of an additive model, and for the ones of a sparse
        matrix together. The last one, ``baseline``, is the mean log-odds that the contributions start from: with it, a
        row adds up to its log-odds, within 0.001. The method is that of ``dkan predict --reasons``.

        Args:
            X: Rows.

        Shape:
            - Output: ``(N, C + 1)``; of several labels ``(N, L * (C + 1))``, with labels above the columns

        Raises:
            ConfigError: pandas is not installed.
            DataError: The model was saved by a version that did not keep the distribution of the training rows.
        """
        check_is_fitted(self)
        arrays = self._encode(read_features(self, X, fitting=False))
        index = X.index if hasattr(X, "iloc") else None
        with torch_threads(thread_count(self.n_jobs)):
            return contributions_frame(self.module_, self.preprocessor_, arrays, self._device, index)

    def plot(self, X: Any, y: Any = None) -> Page:
        """Return what the model learned as a page, which notebooks show: importances, and the strongest curves.

        It is the section of the report of ``dkan evaluate``; ``page.save("learned.html")`` writes it to a file, and
        ``page.explanation`` holds its numbers.

        Args:
            X: Rows to read the answers of the model off, two or more; a few thousand are enough.
            y: Their classes or labels: then the page has the average precision on them.

        Returns:
            The page.
        """
        check_is_fitted(self)
        arrays = self._encode(read_features(self, X, fitting=False))
        return _learned_page(self, arrays, y)


def _learned_page(classifier: Any, arrays: Arrays, y: Any) -> Page:
    """Return the page that ``dkan explain`` writes, for a classifier.

    Args:
        classifier: Fitted.
        arrays: Encoded rows.
        y: Their classes or labels; None where they are not known.

    Raises:
        DataError: There are fewer than two rows.
        ValueError: ``y`` has more or fewer rows or labels, or holds something else.
    """
    rows, names = len(next(iter(arrays.values()))), classifier.labels_
    if rows < 2:
        raise DataError(f"X: has {counted(rows, 'row')}; explaining takes two or more")
    if y is None:
        labels_NL = np.full((rows, len(names)), NOT_MEASURED, np.uint8)
    else:
        labels_NL = encode_labels(y, classifier.classes_, names)
        check_consistent_length(next(iter(arrays.values())), labels_NL)
    with scratch_folder() as scratch:
        classifier.save(scratch / "model")
        saved = SavedModel(scratch / "model")
    found = quick_explanation(saved, {**arrays, "labels": labels_NL}, names, "given")
    return Page(str(render_explanation(found, draw_explanation(found))), found)
