"""The arrays of prepared rows: their names, the shape and type of a row, and what they hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkan_core.data.encoding.preprocessor import Preprocessor

# Codes of lists and bit vectors: one array in batches and spill files, two in shards (``sparse_rows``).
SPARSE = "sparse"
OFFSETS, INDICES = "sparse_offsets", "sparse_indices"

Layout = Mapping[str, tuple[tuple[int, ...], str]]
"""Row shape and dtype of each array, such as ``{"numeric": ((29,), "uint8")}``."""


def array_layout(preprocessor: Preprocessor, labels: int, *, weighted: bool, grouped: bool) -> Layout:
    """Return row shape and dtype of each array, as batches and spill files have them."""
    layout: dict[str, tuple[tuple[int, ...], str]] = {}
    if preprocessor.numeric:
        layout["numeric"] = ((len(preprocessor.numeric),), preprocessor.numeric_dtype)
    if preprocessor.coded:
        layout["categorical"] = ((len(preprocessor.coded),), "int32")
    if preprocessor.sparse:
        layout[SPARSE] = ((max(1, preprocessor.row_codes),), "int32")
    layout["labels"] = ((labels,), "uint8")
    if weighted:
        layout["weight"] = ((), "float32")
    if grouped:
        layout["group"] = ((), "uint8")
    return layout


def stored_layout(layout: Layout) -> Layout:
    """Return row shape and dtype of the arrays in a shard, where two arrays replace ``sparse``."""
    stored: dict[str, tuple[tuple[int, ...], str]] = {name: kind for name, kind in layout.items() if name != SPARSE}
    return {**stored, OFFSETS: ((), "int64"), INDICES: ((), "int32")} if SPARSE in layout else stored


@dataclass(frozen=True, kw_only=True)
class Content:
    """Contents of the shards of a data set, according to its manifest."""

    layout: Layout
    labels: tuple[str, ...] = ()
    """Name of each column of the array ``labels``."""

    cardinalities: tuple[tuple[str, int], ...] = ()
    """Name of each column of the array ``categorical``, and the number of its codes."""

    sparse_codes: int = 0
    """Number of codes of all columns of lists and bit vectors."""


@dataclass(frozen=True)
class Field:
    """Where an array lies in a shard."""

    offset: int
    size: int
    row_bytes: int
    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]
