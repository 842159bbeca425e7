"""The contributions of columns to a classifier's log-odds, as a pandas frame."""

from importlib import import_module
from typing import Any

import numpy as np
import torch

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.shard_writer import Arrays
from dkan_core.errors import ConfigError
from dkan_core.explanation.contributions import ContributionExplainer
from dkan_core.model.tabular import TabularFastKAN

BASELINE = "baseline"
"""The last column: what the contributions start from."""


def contributions_frame(
    module: TabularFastKAN, preprocessor: Preprocessor, arrays: Arrays, device: torch.device
) -> Any:
    """Return a ``DataFrame`` with a column for each source column, and the baseline.

    Args:
        module: The model.
        preprocessor: Its encoding.
        arrays: Prepared rows.
        device: Where to compute.

    Shape:
        - Output: ``(N, F + 1)``; of several labels ``(N, L * (F + 1))``, with labels above the columns

    Raises:
        ConfigError: pandas is not installed.
        DataError: The model does not hold the distribution of its training data.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise ConfigError("pandas is not installed; run: pip install pandas") from None
    explainer = ContributionExplainer(module, preprocessor, device)
    found_NFL = explainer.explain(arrays)
    baseline_N1L = np.broadcast_to(explainer.baseline, (len(found_NFL), 1, len(explainer.baseline)))
    names = [*(column.name for column in explainer.columns), BASELINE]
    frames = [
        pandas.DataFrame(found, columns=names) for found in np.moveaxis(np.hstack([found_NFL, baseline_N1L]), 2, 0)
    ]
    labels = module.config.labels
    return frames[0] if len(labels) == 1 else pandas.concat(dict(zip(labels, frames, strict=True)), axis=1)
