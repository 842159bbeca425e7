"""Compares a graph with its model on generated rows: at every boundary of every column, and beyond.

Shape suffixes: N rows, L labels.
"""

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dkan_core.data.encoding.preprocessor import CategoryFeature, Preprocessor
from dkan_core.errors import OutputError
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import score
from dkan_core.utils.arrays import Float64
from dkan_core.utils.resources import available_cores

OUTPUT = "probabilities"
# Ten times the observed effect of summation order on probabilities, and a hundredth of what matters to users.
MAX_DIFFERENCE = 1e-5
# With thousands of columns, the basis functions of so many rows still fit in the memory of a small pod.
CHECKED_AT_ONCE = 256
# Least number of rows, so that even few values per column occur in many combinations.
MIN_ROWS = 512
# The rows are the same for every export of a model.
SEED = 0


def largest_difference(content: bytes, saved: SavedModel, missing_text: str) -> tuple[float, int]:
    """Return the largest difference between the graph's and the model's probabilities, and the number of compared rows.

    Args:
        content: The graph, serialized.
        saved: The model, on the CPU.
        missing_text: What stands for a missing value in a column of texts.

    Raises:
        OutputError: The difference is above ``MAX_DIFFERENCE``, or onnxruntime cannot run the graph.
    """
    session = _session(content)
    largest, checked = 0.0, 0
    for rows in _batches(boundary_rows(saved.preprocessor, missing_text)):
        wanted_NL = score(saved.module, saved.preprocessor.transform(rows, "generated rows"), torch.device("cpu"))
        (found_NL,) = session.run([OUTPUT], graph_inputs(rows, saved.preprocessor, missing_text))
        difference_NL = np.abs(found_NL - wanted_NL)
        # Negated, so that NaN counts as too far.
        if not (difference_NL <= MAX_DIFFERENCE).all():
            worst = np.unravel_index(np.argmax(np.nan_to_num(difference_NL, nan=np.inf)), difference_NL.shape)
            raise OutputError(
                f"{saved.folder}: the ONNX graph does not give the model's probabilities: on generated rows they "
                f"differ by up to {difference_NL[worst]:.1e}, as {found_NL[worst]:.7f} instead of "
                f"{wanted_NL[worst]:.7f}, and may differ by {MAX_DIFFERENCE:.0e}; nothing was written"
            )
        largest, checked = max(largest, float(difference_NL.max())), checked + len(rows)
    return largest, checked


def _session(content: bytes) -> Any:
    # Set before the import, which reads it: onnxruntime would send usage reports, and store them in the user's home.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = available_cores()
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def graph_inputs(
    rows: pa.RecordBatch | pa.Table, preprocessor: Preprocessor, missing_text: str
) -> dict[str, npt.NDArray[Any]]:
    """Return rows as the graph's inputs: each column ``(N, 1)`` of float64 or texts, by name."""
    numeric = {feature.name for feature in preprocessor.numeric}
    columns = {}
    for name in preprocessor.columns:
        kind, missing = (pa.float64(), np.nan) if name in numeric else (pa.string(), missing_text)
        column = rows[name].cast(kind, safe=False).fill_null(missing)
        columns[name] = column.to_numpy(zero_copy_only=False).reshape(-1, 1)
    return columns


def boundary_rows(preprocessor: Preprocessor, missing_text: str) -> pa.RecordBatch:
    """Return random combinations of all values at which some column's encoding changes."""
    numeric = {feature.name: [np.array(feature.knots)] for feature in preprocessor.numeric}
    for feature in preprocessor.coded:
        if feature.name in numeric:
            numeric[feature.name].append(np.array(feature.vocabulary, dtype=np.float64))
    values = {name: pa.array(_around(np.concatenate(known))) for name, known in numeric.items()}
    for feature in preprocessor.coded:
        if isinstance(feature, CategoryFeature):
            texts = [*feature.codes, None, _unseen(feature, missing_text)]
            values[feature.name] = pa.array(texts, pa.string())
    count = max(MIN_ROWS, *map(len, values.values()))
    rng = np.random.default_rng(SEED)
    columns = {name: known.take(pa.array(rng.permutation(count) % len(known))) for name, known in values.items()}
    return pa.record_batch(columns)


def _around(known: Float64) -> Float64:
    """Return numbers, their neighbours, values between them, values beyond them, and NaN."""
    known = np.unique(known)
    between = [known[:-1] * (1 - share) + known[1:] * share for share in (0.25, 0.5, 0.75)]
    with np.errstate(over="ignore"):
        neighbours = [np.nextafter(known, end) for end in (-np.inf, np.inf)]
        beyond = [known[[0]] * 2 - known[-1] - 1, known[[-1]] * 2 - known[0] + 1]
    extremes = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e308, -1e308])
    return np.concatenate([known, *between, *neighbours, *beyond, extremes])


def _unseen(feature: CategoryFeature, missing_text: str) -> str:
    """Return a text that is not in a column's vocabulary."""
    candidates = (f"unseen {number}" for number in itertools.count())
    return next(text for text in candidates if text not in {*feature.codes, missing_text})


def _batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(rows), CHECKED_AT_ONCE):
        yield rows.slice(start, CHECKED_AT_ONCE)
