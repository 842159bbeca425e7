"""Rows that name some of many ids, and the same rows as a column for each id."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

IDS = 40
ROWS = 1200


def make_ones(rows: int = ROWS, ids: int = IDS, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return which ids each row has ``(rows, ids)``: ever fewer the larger an id, and some rows none."""
    rng = np.random.default_rng(seed)
    ones_NV = rng.random((rows, ids)) < np.linspace(0.4, 0.05, ids)
    ones_NV[::17] = False
    return ones_NV.astype(np.uint8)


def make_others(ones_NV: npt.NDArray[np.uint8], seed: int = 1) -> dict[str, npt.NDArray[np.generic]]:
    """Return a number, a label that depends on it and on the ids, and each row's own number."""
    rng = np.random.default_rng(seed)
    x_N = rng.normal(size=len(ones_NV))
    log_odds_N = ones_NV @ rng.normal(size=ones_NV.shape[1]) + x_N
    y_N = log_odds_N - np.median(log_odds_N) + rng.logistic(size=len(x_N)) > 0
    return {"x": x_N, "y": y_N.astype(np.int8), "row": np.arange(len(x_N))}


def as_lists(ones_NV: npt.NDArray[np.uint8], kind: pa.DataType | None = None) -> pa.Array:
    """Return the ids of each row as a list."""
    return pa.array([np.flatnonzero(ones_V).tolist() for ones_V in ones_NV], kind or pa.list_(pa.int32()))


def as_bits(ones_NV: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the ids of each row as a vector of bits."""
    packed = np.packbits(ones_NV, axis=1)
    return pa.array([row.tobytes() for row in packed], pa.binary(packed.shape[1]))


def list_table(ones_NV: npt.NDArray[np.uint8]) -> pa.Table:
    """Return rows with a column of lists."""
    return pa.table({**make_others(ones_NV), "tags": as_lists(ones_NV)})
