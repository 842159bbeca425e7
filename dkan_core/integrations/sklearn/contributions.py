"""The contributions of columns to a classifier's log-odds, as a pandas frame."""

from importlib import import_module
from typing import Any

import numpy as np
import torch

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.errors import ConfigError
from dkan_core.explanation.additive import CROSS
from dkan_core.explanation.columns import source_columns, sparse_columns
from dkan_core.explanation.contributions import background_rows, explainer_of
from dkan_core.integrations.sklearn.rows import SPARSE_COLUMN
from dkan_core.model.base import TabularModel
from dkan_core.utils.arrays import Arrays

BASELINE = "baseline"
"""The last column: the starting point of contributions."""

# A mean over so many rows differs by some percent from that over all, and takes a fraction of a second.
IMPORTANCE_ROWS = 256


def mean_contributions(module: TabularModel, preprocessor: Preprocessor, device: torch.device) -> dict[str, float]:
    """Return the mean absolute contribution of each source column, over rows drawn from the columns' distributions.

    The contribution of an additive model's pair is shared by its columns; those of a time's parts are added up. Columns
    of a sparse matrix are credited with the contributions of their ones.

    Raises:
        DataError: The model does not hold the distribution of its training data.
    """
    explainer = explainer_of(module.to(device), preprocessor, device)
    sparse = sparse_columns(preprocessor)
    rows = background_rows(preprocessor, [*source_columns(preprocessor), *sparse], IMPORTANCE_ROWS)
    found_NFL, added_NSL = explainer.explain_ids(rows)
    times = {feature.name: feature.time.column for feature in preprocessor.numeric if feature.time is not None}
    means: dict[str, float] = {}
    for names, mean in zip(explainer.sources, np.abs(found_NFL).mean(axis=(0, 2), dtype=np.float64), strict=True):
        for name in names:
            column = times.get(name, name)
            means[column] = means.get(column, 0.0) + float(mean) / len(names)
    for source in sparse:
        if source.sparse is not None and source.name == SPARSE_COLUMN:
            sums_V = np.bincount(rows["sparse"].ravel(), np.abs(added_NSL).mean(axis=2).ravel(), source.last_code + 1)
            of_ids = zip(source.sparse.ids, sums_V[source.first_code :].tolist(), strict=False)
            means |= {f"x{number}": added / IMPORTANCE_ROWS for number, added in of_ids}
    return means


def contributions_frame(
    module: TabularModel, preprocessor: Preprocessor, arrays: Arrays, device: torch.device, index: Any
) -> Any:
    """Return a ``DataFrame`` with a column for each source column, or pair of an additive model, and the baseline.

    Args:
        module: The model.
        preprocessor: Its encoding.
        arrays: Prepared rows.
        device: Where to compute.
        index: That of the rows' own ``DataFrame``. None: their numbers.

    Shape:
        - Output: ``(N, C + 1)``; of several labels ``(N, L * (C + 1))``, with labels above the columns

    Raises:
        ConfigError: pandas is not installed.
        DataError: The model does not hold the distribution of its training data.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ConfigError("pandas is not installed; run: pip install pandas") from None
    explainer = explainer_of(module, preprocessor, device)
    found_NFL = explainer.explain(arrays)
    baseline_N1L = np.broadcast_to(explainer.baseline, (len(found_NFL), 1, len(explainer.baseline)))
    names = [CROSS.join(columns) for columns in explainer.sources]
    # Avoids a clash with a column of that name.
    names.append(f"({BASELINE})" if BASELINE in names else BASELINE)
    frames = [
        pandas.DataFrame(found, index, names) for found in np.moveaxis(np.hstack([found_NFL, baseline_N1L]), 2, 0)
    ]
    labels = module.config.labels
    return frames[0] if len(labels) == 1 else pandas.concat(dict(zip(labels, frames, strict=True)), axis=1)
