"""The ``y`` of scikit-learn, one binary label of any two values or several of 0, 1 and NaN, and row weights.

Shape suffixes: N rows, L labels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight

from dkan_core.config.prepare import MAX_WEIGHT
from dkan_core.data.format.split_info import SplitInfo
from dkan_core.data.hashing import value_keys
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.source.column_types import is_text
from dkan_core.data.source.frames import column_names, is_frame
from dkan_core.data.source.groups import group_bytes
from dkan_core.utils.arrays import Array, Arrays, UInt64
from dkan_core.utils.caller import warn_caller
from dkan_core.utils.messages import counted


def find_classes(y: Any) -> tuple[Array, list[str]]:
    """Return the classes (with several labels, their indices) and the names of the labels."""
    count = count_labels(y)
    if count > 1:
        names = _names_of_several(y, count)
        if len(set(names)) < count:
            raise ValueError(f"labels must have names of their own, got {names}")
        return np.arange(count), names
    name = next(iter(column_names(y)), None) if is_frame(y) else getattr(y, "name", None)
    y = classes_of(y)
    check_classification_targets(y)
    kind = type_of_target(y, input_name="y", raise_unknown=True)
    if kind != "binary":
        raise ValueError(
            f"Only binary classification is supported. The type of the target is {kind}. Give fit one column of 0 and "
            "1 per class, such as pandas.get_dummies(y): each is a label."
        )
    return np.unique(y), [name if isinstance(name, str) and name else "label"]


def _names_of_several(y: Any, count: int) -> list[str]:
    given = column_names(y) if is_frame(y) else [""] * count
    return [str(name) or f"label_{n}" for n, name in enumerate(given)]


def two_classes(classes: Any) -> Array:
    """Return the classes that a caller names, in order; ValueError unless there are two."""
    found: Array = np.unique(classes)
    if len(found) != 2:
        raise ValueError(f"classes must be two, got {found.tolist()}")
    return found


def count_labels(y: Any) -> int:
    """Return the number of labels: the columns of a ``y`` with two dimensions."""
    shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
    return int(shape[1]) if len(shape) == 2 else 1


def _dense(y: Any) -> Any:
    """Return labels as a dense array, converted from a sparse matrix of scipy."""
    if hasattr(y, "toarray"):
        return y.toarray()
    return y if hasattr(y, "shape") else np.asarray(y)


def classes_of(y: Any, where: str = "y", *, warn: bool = False) -> Array:
    """Return the class of each row, (N,); ValueError where one is missing, or they are of several types."""
    y_N: Array = column_or_1d(_dense(y), warn=warn)
    if y_N.dtype.kind != "O":
        # NaN and NaT are not equal to themselves.
        missing = int(np.count_nonzero(y_N != y_N))
    else:
        try:
            column = pa.array(y_N, from_pandas=True)
        except pa.ArrowException as error:
            raise ValueError(f"{where} must hold values of one type ({error})") from error
        missing = column.null_count
        # pandas has booleans as objects if some were missing, and scikit-learn accepts objects as classes only if text.
        y_N = y_N if is_text(column.type) else column.to_numpy(zero_copy_only=False)
    if missing:
        raise ValueError(
            f"Input {where} contains NaN or None: {counted(missing, 'row')} of {len(y_N):,} without a class; leave "
            "them out"
        )
    return y_N


def encode_labels(y: Any, classes: Array, names: Sequence[str], where: str = "y") -> npt.NDArray[np.uint8]:
    """Return labels (N, L) of 0, 1 and 255 for not measured.

    Args:
        y: The labels; the columns of a frame may be in another order, those of an array are in this one.
        classes: As ``find_classes`` returns them.
        names: Those of the labels that there are to be.
        where: What messages should call ``y``.

    Raises:
        ValueError: There are more or fewer, some of them have other names, or they hold something else.
    """
    if count_labels(y) != len(names):
        raise ValueError(f"{where} has {counted(count_labels(y), 'label')}; expected {len(names)}")
    if len(names) == 1:
        y = classes_of(y, where, warn=not hasattr(y, "toarray"))
        unknown = np.setdiff1d(y, classes).tolist()
        if unknown:
            raise ValueError(f"{where} holds {unknown[0]!r}; the classes are {classes.tolist()}")
        # The larger of the two is the positive class, as in scikit-learn.
        ones_N = np.asarray(y == classes[-1])
        return ones_N.astype(np.uint8)[:, None]
    try:
        values_NL = check_array(_dense(y), dtype=np.float64, ensure_all_finite="allow-nan", input_name=where)
    except (TypeError, ValueError) as error:
        # NumPy's error about text says that it is no float, but not what to do.
        raise ValueError(
            f"Of several labels each must be 0, 1 or NaN (not measured): {error}. Compare each column with the value "
            "that counts as 1, such as (y == 'yes').astype(float)"
        ) from error
    if is_frame(y):
        values_NL = values_NL[:, _order(_names_of_several(y, len(names)), names, where)]
    measured_NL = ~np.isnan(values_NL)
    wrong = np.setdiff1d(values_NL[measured_NL], [0, 1])
    if len(wrong):
        raise ValueError(f"Of several labels each must be 0, 1 or NaN (not measured); {where} holds {wrong[0]:g}")
    return np.where(measured_NL, values_NL, NOT_MEASURED).astype(np.uint8)


def _order(given: Sequence[str], names: Sequence[str], where: str) -> list[int]:
    """Return the index of each label among the given ones; their positions if no name is the same."""
    if not {*given} & {*names}:
        return [*range(len(names))]
    if {*given} != {*names}:
        raise ValueError(f"{where} has the labels {', '.join(given)}; expected {', '.join(names)}")
    return [given.index(name) for name in names]


def check_classes(labels_NL: npt.NDArray[np.uint8], where: str, hint: str = "") -> None:
    """Raise ValueError unless one label has both classes; with several labels the others need not.

    Args:
        labels_NL: 0, 1, or another value for not measured.
        where: The rows, as the message should call them.
        hint: What the user can do, for the end of the message.
    """
    if any({0, 1} <= {*labels_N.tolist()} for labels_N in labels_NL.T):
        return
    lacking = "no label with both classes" if labels_NL.shape[1] > 1 else "one class only"
    raise ValueError(
        f"{where} ({counted(len(labels_NL), 'row')}): {lacking}; the two classes of a label are needed{hint}"
    )


def warn_of_unmeasured(labels_NL: npt.NDArray[np.uint8], names: list[str]) -> None:
    """Warn of labels that are measured in no training row."""
    for name, labels_N in zip(names, labels_NL.T, strict=True):
        if (labels_N == NOT_MEASURED).all():
            rows = counted(len(labels_N), "row")
            warn_caller(f"y: label {name!r} has no value in {rows}: its predictions mean nothing")


def positive_value(classes: Array, names: list[str]) -> dict[str, str]:
    """Return, by label, the value that counts as 1, as text; empty where the label holds 0 and 1.

    >>> positive_value(np.array(["no", "yes"]), ["churn"]), positive_value(np.array([-1.0, 1.0]), ["churn"])
    ({'churn': 'yes'}, {'churn': '1'})
    >>> positive_value(np.array([False, True]), ["churn"]), positive_value(np.arange(2), ["a", "b"])
    ({}, {})
    >>> positive_value(np.array([0.5, 20240102.0]), ["churn"])
    {'churn': '20240102'}
    """
    if len(names) > 1 or np.isin(classes.tolist(), [0, 1]).all():
        return {}
    positive = classes[-1].item() if classes.dtype.kind in "iuf" else classes[-1]
    is_whole = isinstance(positive, float) and positive.is_integer()
    return {names[0]: str(int(positive) if is_whole else positive)}


def check_weights(sample_weight: Any, labels_NL: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Return row weights ``(N,)``; ValueError where one is negative, too large or too small, or all are zero."""
    weight_N = _check_sample_weight(sample_weight, labels_NL, dtype=np.float64, ensure_non_negative=True)
    if not weight_N.any():
        raise ValueError("Sample weights must contain at least one non-zero number.")
    return _as_trained(weight_N, "Sample weights")


def _as_trained(weight_N: Array, what: str) -> npt.NDArray[np.float32]:
    """Return weights as float32, as training stores them; ValueError where one is too large, or would become 0."""
    if weight_N.max() > np.float32(MAX_WEIGHT):
        raise ValueError(f"{what} must be at most {MAX_WEIGHT:g}, got {weight_N.max():g}.")
    trained_N = weight_N.astype(np.float32)
    lost = int(np.count_nonzero((trained_N == 0) & (weight_N > 0)))
    if lost:
        raise ValueError(
            f"{what} are too small for a 32-bit float in {counted(lost, 'row')}; multiply all by the same number."
        )
    return trained_N


def check_groups(groups: Any, rows: int) -> UInt64:
    """Return a key of each row's group, ``(N,)``.

    Raises:
        ValueError: There are more or fewer than ``rows``, one is missing, or they are of several types.
    """
    group_N = np.asarray(groups)
    if group_N.shape != (rows,):
        raise ValueError(f"groups must hold one value for each of {counted(rows, 'row')}, got shape {group_N.shape}")
    try:
        column = pa.array(group_N, from_pandas=True)
    except pa.ArrowException as error:
        raise ValueError(f"groups must hold values of one type ({error})") from error
    if column.null_count:
        raise ValueError(
            f"groups contains NaN or None in {counted(column.null_count, 'row')}; leave them out, or give each a group "
            "of its own"
        )
    return value_keys(column)


def find_class_weights(class_weight: Any, labels_NL: npt.NDArray[np.uint8], classes: Array) -> Array | None:
    """Return the weights of rows of class 0 and of class 1, ``(2,)``; None where both are equal.

    Args:
        class_weight: A dict, "balanced" or None, as scikit-learn takes it.
        labels_NL: Labels of the rows that count.
        classes: As ``find_classes`` returns them.

    Raises:
        ValueError: It is neither, names a class that there is none of, holds a weight that is not above 0 or is too
            large, or there are several labels.
    """
    if class_weight is None:
        return None
    if labels_NL.shape[1] > 1:
        raise ValueError("class_weight is for one label; with several, set label_weights or pos_weight")
    y = classes[labels_NL[:, 0].astype(np.int64)]
    weights = np.asarray(compute_class_weight(class_weight, classes=classes, y=y), dtype=np.float32)
    if not ((weights > 0) & (weights <= MAX_WEIGHT)).all():
        raise ValueError(f"class_weight must be numbers above 0 and at most {MAX_WEIGHT:g}, got {class_weight}")
    return weights


def with_class_weights(
    class_weights: Array | None, labels_NL: npt.NDArray[np.uint8], weight_N: Array | None
) -> npt.NDArray[np.float32] | None:
    """Return the weights of rows, times those of their classes; None where there are neither.

    Raises:
        ValueError: A product is too large, or too small.
    """
    if class_weights is None:
        return weight_N
    found_N = class_weights[labels_NL[:, 0].astype(np.int64)].astype(np.float64)
    return _as_trained(found_N if weight_N is None else found_N * weight_N, "Sample weights times class weights")


def labelled(
    labels_NL: npt.NDArray[np.uint8], weight_N: Array | None, rows: npt.NDArray[np.int64], keys_N: UInt64 | None = None
) -> Arrays:
    """Return the labels of ``rows``, and their weights and the numbers of their groups where there are any."""
    labels = {"labels": labels_NL[rows]}
    weights = {} if weight_N is None else {"weight": weight_N[rows]}
    groups = {} if keys_N is None else {"group": group_bytes(keys_N[rows])}
    return {**labels, **weights, **groups}


def split_info(labels_NL: npt.NDArray[np.uint8], names: list[str]) -> SplitInfo:
    """Count the classes of each label."""
    values = {"0": 0, "1": 1, "null": NOT_MEASURED}
    classes = {
        name: {key: int(np.count_nonzero(labels_N == value)) for key, value in values.items()}
        for name, labels_N in zip(names, labels_NL.T, strict=True)
    }
    return SplitInfo(rows=len(labels_NL), classes=classes, shards=[])
