"""Scoring of raw Parquet, batch by batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from dkan_core.data.encoding.bulk import BulkEncoder
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import check_probabilities, score
from dkan_core.utils.arrays import Arrays


def scored_batches(
    saved: SavedModel,
    path: str,
    columns: Sequence[str],
    device: torch.device,
    on_arrays: Callable[[Arrays], object] = lambda _: None,
    folder_types: Mapping[str, str] | None = None,
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.float32]]]:
    """Yield the rows of a raw Parquet file in order, with the probability of each label.

    Args:
        saved: The model, its module on ``device``.
        path: The file.
        columns: What to read in addition to the model's own columns.
        device: Where to compute.
        on_arrays: Called with the rows of each batch as the model reads them.
        folder_types: What columns in the names of folders are read as, from ``copied_folder_types``. Default: what the
            model takes them for.

    Shape:
        - Output: N rows, ``(N, L)``
    """
    needed = list(dict.fromkeys([*saved.preprocessor.columns, *columns]))
    row, model, encoder = 0, saved.module.for_scoring(), BulkEncoder(saved.preprocessor)
    folder_types = saved.preprocessor.folder_types if folder_types is None else folder_types
    for batch in read_batches(open_file(path, folder_types=folder_types), needed):
        arrays = encoder.transform(batch, path)
        on_arrays(arrays)
        found_NL = score(model, arrays, device)
        check_probabilities(found_NL, saved.config.labels, path, row)
        row += len(batch)
        yield batch, found_NL
