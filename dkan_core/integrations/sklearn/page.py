"""What a classifier learned, as the page that ``dkan explain`` writes."""

from typing import Any

import numpy as np
from sklearn.utils import check_consistent_length

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.errors import DataError
from dkan_core.explanation.explain import explanation_page, quick_explanation
from dkan_core.integrations.sklearn.targets import encode_labels
from dkan_core.model.saved_model import SavedModel
from dkan_core.report.inline import Page
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.hints import counted
from dkan_core.utils.storage.scratch import scratch_folder


def learned_page(classifier: Any, arrays: Arrays, y: Any) -> Page:
    """Return the page.

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
    return Page(str(explanation_page(quick_explanation(saved, {**arrays, "labels": labels_NL}, names, "given"))))
