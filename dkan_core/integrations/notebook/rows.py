"""Rows as notebooks hold them: arrays, tensors, frames, pairs of features and labels, DataLoaders, lists of these.

Shape suffixes: N rows, F features, L labels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.source.frames import column_names, is_frame, nulls_as_numbers, to_table, without_empty_types
from dkan_core.errors import DataError
from dkan_core.utils.arrays import Array
from dkan_core.utils.messages import counted, some_of


@dataclass(frozen=True)
class LabelledRows:
    """All rows of a loader."""

    features: pa.Table
    """One column per feature."""

    labels_NL: npt.NDArray[np.uint8]
    """0, 1, or 255 for not measured."""

    is_named: bool
    """Whether the names of the features are the caller's own, those of a frame's columns."""


def iterate_batches(source: object, where: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the origin of rows for messages, their features, and their labels or None.

    A single array or frame holds features. Two of them in a tuple or a list are features and labels. Any other tuple,
    list or iterable holds such objects, whose rows follow each other.

    Raises:
        DataError: It is none of these.
    """
    if _is_array(source):
        yield where, source, None
    elif isinstance(source, tuple | list) and source and all(map(_is_array, source)):
        if len(source) > 2:
            raise DataError(f"{where}: holds {len(source)} arrays; expected a pair (features, labels)")
        yield where, source[0], source[1] if len(source) == 2 else None
    elif isinstance(source, Iterable) and not isinstance(source, str | bytes | Mapping):
        item = "{}[{}]" if isinstance(source, tuple | list) else "{}: batch {}"
        for index, part in enumerate(source):
            yield from iterate_batches(part, item.format(where, index))
    else:
        raise DataError(
            f"{where}: expected a DataLoader, a pair of arrays (features, labels) or a list of these, "
            f"got {type(source).__name__}"
        )


def read_features(source: object, where: str, names: Sequence[str], *, named: bool, rows: int) -> Iterator[pa.Table]:
    """Yield the features, some rows at a time.

    Args:
        source: What the caller passed.
        where: What messages should call it.
        names: Name of each feature, in their order in the data the model was trained with.
        named: Whether the names are those of a frame's columns, so that another frame must have the same.
        rows: The most that are yielded at once.

    Raises:
        DataError: Features are missing, too many or in another order, or of another kind.
    """
    for place, features, _ in iterate_batches(source, where):
        checked = _features(features, place)
        if checked.shape[1] != len(names):
            raise DataError(
                f"{place}: has {checked.shape[1]} features; the model was trained with {len(names)} "
                f"({some_of(names, 6)})"
            )
        own = frame_names(checked)
        if named and own is not None and own != list(names):
            index = next(index for index, name in enumerate(names) if own[index] != name)
            raise DataError(
                f"{place}: feature {index} is {own[index]!r}; the model was trained with {names[index]!r} there"
            )
        for start in range(0, len(checked), rows):
            yield without_empty_types(_table(_slice(checked, start, start + rows), names, place))


def read_labelled_rows(source: object, where: str) -> LabelledRows:
    """Return all rows of a loader, or of whatever else ``iterate_batches`` takes.

    Raises:
        DataError: There are none, shapes do not fit each other, or labels hold something other than 0, 1 and NaN.
    """
    batches = [_labelled_batch(*batch) for batch in iterate_batches(source, where)]
    if not batches:
        raise DataError(f"{where}: holds no batch")
    features, labels = zip(*batches, strict=True)
    for kind, parts in (("features", features), ("labels", labels)):
        widths = [part.shape[1] for part in parts]
        if len({*widths}) > 1:
            index = next(index for index, width in enumerate(widths) if width != widths[0])
            raise DataError(f"{where}: the first batch has {widths[0]} {kind}, batch {index} has {widths[index]}")
    labels_NL = np.concatenate(labels)
    names = frame_names(features[0])
    own = [f"feature_{index}" for index in range(features[0].shape[1])]
    return LabelledRows(_joined(features, names or own, where), _encoded(labels_NL, where), names is not None)


def frame_names(features: Any) -> list[str] | None:
    """Return a frame's column names; None for an array, or for a frame with numbered columns."""
    if not is_frame(features):
        return None
    names = column_names(features)
    return names if all(isinstance(name, str) for name in names) else None


def _is_array(part: object) -> bool:
    return hasattr(part, "__array__") or is_frame(part)


def _labelled_batch(where: str, features: Any, labels: Any) -> tuple[Any, Array]:
    if labels is None:
        raise DataError(f"{where}: expected a pair (features, labels), got features alone ({type(features).__name__})")
    features, labels = _features(features, where), _label_array(labels)
    labels = labels[:, None] if labels.ndim == 1 else labels
    if labels.ndim != 2 or len(features) != len(labels):
        raise DataError(
            f"{where}: expected features (N, F) and labels (N,) or (N, L), got {features.shape} and {labels.shape}"
        )
    return features, labels


def _features(features: Any, where: str) -> Any:
    """Return features (N, F): a frame as it is, anything else as a numpy array."""
    checked = features if is_frame(features) else _array(features)
    if len(checked.shape) != 2:
        raise DataError(f"{where}: expected features (N, F), got {checked.shape}")
    return checked


def _array(part: Any) -> Array:
    if not hasattr(part, "detach"):
        return np.asarray(part)
    tensor = part.detach().cpu()
    # NumPy has no bfloat16.
    return np.asarray(tensor.float() if tensor.dtype is torch.bfloat16 else tensor)


def _label_array(labels: Any) -> Array:
    """Return labels as a numpy array, with NaN where pandas has no value."""
    if hasattr(labels, "iloc"):
        # NumPy would make objects of pandas' own types, with NA that is no number.
        columns = [labels] if labels.ndim == 1 else [labels.iloc[:, index] for index in range(labels.shape[1])]
        with suppress(TypeError, ValueError):
            return np.stack([column.to_numpy(dtype=np.float64, na_value=np.nan) for column in columns], axis=1)
    return _array(labels)


def _joined(features: Sequence[Any], names: Sequence[str], where: str) -> pa.Table:
    if not any(map(is_frame, features)):
        return _table(np.concatenate(features), names, where)
    tables = [_table(part, names, where) for part in features]
    try:
        return nulls_as_numbers(pa.concat_tables(tables, promote_options="permissive"))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"{where}: a feature is of several types ({error})") from error


def _table(features: Any, names: Sequence[str], where: str) -> pa.Table:
    try:
        return to_table(features, names, where)
    except TypeError as error:
        raise DataError(str(error)) from error


def _slice(features: Any, start: int, stop: int) -> Any:
    if hasattr(features, "iloc"):
        return features.iloc[start:stop]
    return features.slice(start, stop - start) if is_frame(features) else features[start:stop]


def _encoded(labels_NL: Array, where: str) -> npt.NDArray[np.uint8]:
    try:
        values_NL = labels_NL.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: labels must be 0, 1 or NaN (not measured); {error}") from error
    measured_NL = ~np.isnan(values_NL)
    wrong, counts = np.unique(values_NL[measured_NL & (values_NL != 0) & (values_NL != 1)], return_counts=True)
    if len(wrong):
        seen = f"{wrong[0]:g} ({counted(int(counts[0]), 'row')})"
        raise DataError(f"{where}: labels must be 0, 1 or NaN (not measured); found {seen}")
    return np.where(measured_NL, values_NL, NOT_MEASURED).astype(np.uint8)
