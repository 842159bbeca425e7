"""Log-odds and probabilities of encoded rows, in chunks, on the device of a model in eval mode."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dkan_core.errors import DataError
from dkan_core.model.base import INPUTS, TabularModel
from dkan_core.model.calibration import sigmoid
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.torch_resources import map_of_threads

# Bounds the memory of scoring; batches of more rows were no faster.
SCORING_ROWS = 16_384
# First-layer outputs that a CPU thread computes at once: 4 MB, so that later layers read them from the cache. Smaller
# chunks take more time per row: with 512 rows 1.5 times that of 4,096.
CHUNK_OUTPUTS, MIN_CHUNK_ROWS = 1 << 20, 1024
# A multiple of the rows that kernels process at once (8 to 32), and a divisor of ``SCORING_ROWS``.
TILE_ROWS = 64


def score(model: TabularModel, arrays: Arrays, device: torch.device) -> npt.NDArray[np.float32]:
    """Return the probability of each label for prepared rows.

    Shape:
        - Input: ``numeric`` (N, F), ``categorical`` (N, C), ``sparse`` (N, S)
        - Output: ``(N, L)``
    """
    return to_probability(log_odds(model, arrays, device).cpu().numpy())


def to_probability(log_odds_NL: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the probabilities that log-odds stand for.

    Shape:
        - Input and output: ``(N, L)``
    """
    # float64, so that rounding does not depend on a row's position in an array.
    return sigmoid(log_odds_NL).astype(np.float32)


def check_probabilities(
    probabilities_NL: npt.NDArray[np.float32], labels: Sequence[str], where: str | Path, first_row: int = 0
) -> None:
    """Raise DataError at the first probability that is not a finite number in [0, 1].

    Shape:
        - probabilities_NL: ``(N, L)``

    Args:
        probabilities_NL: What a model gives.
        labels: Of its columns.
        where: File or folder of the rows.
        first_row: Number of the first of the rows, counted from 0.
    """
    # Negated, so that NaN is found as well.
    wrong = np.argwhere(~((probabilities_NL >= 0) & (probabilities_NL <= 1)))
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            f"{where}: row {first_row + row}: the model gives no probability of {labels[column]!r}, "
            f"but {probabilities_NL[row, column]}"
        )


def log_odds(model: TabularModel, arrays: Arrays, device: torch.device) -> Tensor:
    """Return the calibrated log-odds of each label for prepared rows, on the device.

    Shape:
        - Input: ``numeric`` (N, F), ``categorical`` (N, C), ``sparse`` (N, S)
        - Output: ``(N, L)``
    """
    model = model.for_scoring()
    inputs = {name: torch.from_numpy(arrays[name]) for name in INPUTS if name in arrays}
    rows = len(next(iter(inputs.values())))
    if device.type != "cpu":
        return _score_chunks(model, inputs, chunks_of(rows, SCORING_ROWS), device, map)
    chunks = chunks_of(rows, _chunk_rows(model, rows, torch.get_num_threads()))
    with map_of_threads(len(chunks)) as each:
        return _score_chunks(model, inputs, chunks, device, each)


def chunks_of(rows: int, step: int) -> list[slice]:
    """Return ranges of ``step`` rows; at least one range, so that the result has the right shape without rows."""
    return [slice(start, start + step) for start in range(0, max(1, rows), step)]


def _chunk_rows(model: TabularModel, rows: int, threads: int) -> int:
    """Return how many rows to score at once on the CPU."""
    share = min(CHUNK_OUTPUTS // model.first_width, max(MIN_CHUNK_ROWS, -(-rows // threads)))
    return min(SCORING_ROWS, max(TILE_ROWS, share // TILE_ROWS * TILE_ROWS))


def _score_chunks(
    model: TabularModel,
    inputs: Mapping[str, Tensor],
    chunks: Sequence[slice],
    device: torch.device,
    each: Callable[[Callable[[slice], Tensor], Sequence[slice]], Iterable[Tensor]],
) -> Tensor:
    # Set in each thread, as inference mode is per thread.
    @torch.inference_mode()
    def score_chunk(part: slice) -> Tensor:
        chunk = {name: tensor[part] for name, tensor in inputs.items()}
        rows = len(next(iter(chunk.values())))
        scored_NL: Tensor = model(**{name: _whole_tiles(tensor).to(device) for name, tensor in chunk.items()})
        return scored_NL[:rows]

    return torch.cat([*each(score_chunk, chunks)])


def _whole_tiles(rows_NX: Tensor) -> Tensor:
    """Add rows up to a multiple of ``TILE_ROWS``.

    Kernels treat the last few rows of a batch differently. Without the padding, the last bit of a row's probability
    would depend on how many rows are scored with it.
    """
    lacking = -len(rows_NX) % TILE_ROWS
    return torch.cat([rows_NX, rows_NX.new_zeros(lacking, rows_NX.shape[1])]) if lacking else rows_NX
