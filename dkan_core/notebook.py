"""``main``: train from two loaders that are in memory, as from a notebook."""

import logging
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core.config import PrepareConfig, TrainConfig
from dkan_core.data.prepare import prepare
from dkan_core.errors import DataError
from dkan_core.model.saved_model import SavedModel
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.storage import local_path
from dkan_core.training.launch import train

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class MainResult:
    """What ``main`` returns."""

    average_precision: float
    """Best average precision on the test loader; the mean over labels."""

    model: TabularFastKAN
    """The best model, ready to score prepared arrays; raw rows are scored by ``predict(path, ...)``."""

    path: str
    """The model's folder."""


def main(
    train_loader: object,
    test_loader: object,
    config: TrainConfig | None = None,
    *,
    run: str | Path | None = None,
    overwrite: bool = False,
) -> MainResult:
    """Train on one loader and choose the best model by average precision on the other.

    Args:
        train_loader: A torch DataLoader over pairs (features, labels), or a pair of numpy arrays or tensors.
        test_loader: The same for validation.
        config: Settings.
        run: Local folder of the run; by default a new temporary one, which stays.
        overwrite: Whether an earlier run in ``run`` may be replaced.

    Shape:
        - features ``(N, F)``; labels ``(N,)`` or ``(N, L)`` with 0, 1, or NaN for not measured

    Raises:
        DataError: Shapes do not fit, or labels hold anything else.
    """
    _speak()
    train_x, train_y = _collect(train_loader, "train_loader")
    test_x, test_y = _collect(test_loader, "test_loader")
    if train_x.shape[1] != test_x.shape[1] or train_y.shape[1] != test_y.shape[1]:
        raise DataError(
            f"train_loader has {train_x.shape[1]} features and {train_y.shape[1]} labels; "
            f"test_loader has {test_x.shape[1]} and {test_y.shape[1]}"
        )
    labels = ["label"] if train_y.shape[1] == 1 else [f"label_{index}" for index in range(train_y.shape[1])]
    folder = local_path(run) if run is not None else Path(tempfile.mkdtemp(prefix="dkan-run-"))
    with tempfile.TemporaryDirectory(prefix="dkan-") as scratch:
        source, prepared = Path(scratch) / "rows.parquet", Path(scratch) / "prepared"
        pq.write_table(
            pa.concat_tables([_table(train_x, train_y, labels, "train"), _table(test_x, test_y, labels, "valid")]),
            source,
        )
        prepare(source, prepared, PrepareConfig(label=tuple(labels), split_column="split"))
        result = train(prepared, folder, config, overwrite=overwrite)
    model = SavedModel(Path(result.model)).module
    return MainResult(average_precision=result.average_precision, model=model, path=result.model)


def _collect(loader: object, name: str) -> tuple[Array, Array]:
    """Return all features (N, F) and labels (N, L) of a loader or a pair of arrays."""
    if isinstance(loader, tuple | list) and len(loader) == 2:
        features, labels = (_array(part) for part in loader)
    elif isinstance(loader, Iterable):
        batches = [(_array(features), _array(labels)) for features, labels in loader]
        if not batches:
            raise DataError(f"{name}: holds no batch")
        features, labels = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    else:
        raise DataError(f"{name}: expected a DataLoader or a pair (features, labels), got {type(loader).__name__}")
    labels = labels[:, None] if labels.ndim == 1 else labels
    if features.ndim != 2 or labels.ndim != 2 or len(features) != len(labels):
        raise DataError(
            f"{name}: expected features (N, F) and labels (N,) or (N, L), got {features.shape} and {labels.shape}"
        )
    measured = labels[~np.isnan(labels.astype(np.float64))]
    wrong, counts = np.unique(measured[(measured != 0) & (measured != 1)], return_counts=True)
    if len(wrong):
        raise DataError(f"{name}: labels must be 0, 1 or NaN (not measured); found {wrong[0]} {counts[0]:,} times")
    return features, labels


def _array(part: Any) -> Array:
    return np.asarray(part.detach().cpu() if hasattr(part, "detach") else part)


def _speak() -> None:
    """Show a line an epoch where nobody has set up logging, as in a notebook: training may take an hour."""
    ours = logging.getLogger("dkan_core")
    if not ours.hasHandlers():
        ours.addHandler(logging.StreamHandler())
        ours.setLevel(logging.INFO)


def _table(features: Array, labels: Array, names: list[str], split: str) -> pa.Table:
    columns = {f"feature_{index}": pa.array(features[:, index]) for index in range(features.shape[1])}
    columns |= {
        name: pa.array(labels[:, index].astype(np.float64), from_pandas=True) for index, name in enumerate(names)
    }
    return pa.table({**columns, "split": [split] * len(features)})
