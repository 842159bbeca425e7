"""Scoring: prepared splits in memory, and batches of raw Parquet."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from dkan_core.data.encoding.source_check import check_features
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.format.shard_writer import Arrays
from dkan_core.data.loading.loader import RowReader, all_batches
from dkan_core.data.loading.prefetching import prefetched
from dkan_core.data.preparation.label_columns import check_label_columns
from dkan_core.data.source.column_types import column_types, common_type, value_types
from dkan_core.data.source.columns import open_parquet, read_batches
from dkan_core.data.source.folders import FOLDER_TEXT, with_whole_numbers
from dkan_core.data.source.positive import check_positive
from dkan_core.errors import DataError
from dkan_core.model.base import TabularModel
from dkan_core.model.calibration import sigmoid
from dkan_core.model.model_folder import REFIT_ROWS
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.hints import first_line, hint
from dkan_core.utils.torch_resources import map_of_threads

# Bounds the memory of scoring; batches of more rows were no faster.
SCORING_ROWS = 16_384
# Outputs of the first layer that one thread of a CPU computes at once, 4 MB: the layers after it then read them from a
# cache. Chunks of fewer rows take more time for each row: 512 rows 1.5 times that of 4,096.
CHUNK_OUTPUTS, MIN_CHUNK_ROWS = 1 << 20, 1024
TRAINED_WITH = "the model was trained with"
# A multiple of what kernels take at once (8 to 32 rows), and a divisor of ``SCORING_ROWS``.
TILE_ROWS = 64

logger = logging.getLogger(__name__)


def score(model: TabularModel, arrays: Arrays, device: torch.device) -> npt.NDArray[np.float32]:
    """Return the probability of each label.

    Args:
        model: The model in eval mode, on ``device``.
        arrays: Prepared rows.
        device: Where to compute.

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
    # In float64, so that rounding does not depend on where in an array a row stands.
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
    # Asked this way round, NaN is wrong, too.
    wrong = np.argwhere(~((probabilities_NL >= 0) & (probabilities_NL <= 1)))
    if len(wrong):
        row, column = wrong[0]
        raise DataError(
            f"{where}: row {first_row + row}: the model gives no probability of {labels[column]!r}, "
            f"but {probabilities_NL[row, column]}"
        )


def log_odds(model: TabularModel, arrays: Arrays, device: torch.device) -> Tensor:
    """Return the calibrated log-odds of each label, on the device.

    Args:
        model: The model in eval mode, on ``device``.
        arrays: Prepared rows.
        device: Where to compute.

    Shape:
        - Input: ``numeric`` (N, F), ``categorical`` (N, C), ``sparse`` (N, S)
        - Output: ``(N, L)``
    """
    model = model.for_scoring()
    names = [name for name in arrays if name in ("numeric", "categorical", "sparse")]
    inputs = {name: torch.from_numpy(arrays[name]) for name in names}
    rows = len(next(iter(inputs.values())))
    if device.type != "cpu":
        return _score_chunks(model, inputs, _starts(rows, SCORING_ROWS), SCORING_ROWS, device, map)
    threads = torch.get_num_threads()
    step = _chunk_rows(model, rows, threads)
    starts = _starts(rows, step)
    with map_of_threads(len(starts)) as each:
        return _score_chunks(model, inputs, starts, step, device, each)


def _starts(rows: int, step: int) -> range:
    """Return where chunks start; one at least, so that no rows have a result, too, of the right shape."""
    return range(0, max(1, rows), step)


def _chunk_rows(model: TabularModel, rows: int, threads: int) -> int:
    """Return how many rows to score at once on the CPU."""
    share = min(CHUNK_OUTPUTS // model.first_width, max(MIN_CHUNK_ROWS, -(-rows // threads)))
    return min(SCORING_ROWS, max(TILE_ROWS, share // TILE_ROWS * TILE_ROWS))


def _score_chunks(
    model: TabularModel,
    inputs: Mapping[str, Tensor],
    starts: range,
    step: int,
    device: torch.device,
    each: Callable[[Callable[[int], Tensor], range], Iterable[Tensor]],
) -> Tensor:
    # Inside, as the mode is of each thread by itself.
    @torch.inference_mode()
    def score_chunk(start: int) -> Tensor:
        chunk = {name: tensor[start : start + step] for name, tensor in inputs.items()}
        rows = len(next(iter(chunk.values())))
        scored_NL: Tensor = model(**{name: _whole_tiles(tensor).to(device) for name, tensor in chunk.items()})
        return scored_NL[:rows]

    return torch.cat([*each(score_chunk, starts)])


def _whole_tiles(rows_NX: Tensor) -> Tensor:
    """Add rows up to a multiple of ``TILE_ROWS``.

    Kernels treat the last few rows of a batch in another way: without this, the last bit of a row's probability would
    depend on how many rows are scored with it.
    """
    lacking = -len(rows_NX) % TILE_ROWS
    return torch.cat([rows_NX, rows_NX.new_zeros(lacking, rows_NX.shape[1])]) if lacking else rows_NX


@dataclass(frozen=True)
class ScoredSplit:
    """Labels ``(N, L)``, log-odds ``(N, L)`` and, where there are any, weights ``(N,)`` of a split's rows."""

    labels_NL: npt.NDArray[np.uint8]
    log_odds_NL: npt.NDArray[np.float32]
    weight_N: npt.NDArray[np.float32] | None


def score_split(model: TabularModel, reader: RowReader, device: torch.device) -> ScoredSplit:
    """Score every row of a prepared split in stored order.

    Args:
        model: The model in eval mode, on ``device``.
        reader: The split.
        device: Where to compute.
    """
    return score_batches(model, all_batches(reader, SCORING_ROWS), device)


def score_batches(model: TabularModel, rows: Iterator[Arrays], device: torch.device) -> ScoredSplit:
    """Score encoded rows with their labels, which are read ahead in a thread.

    Args:
        model: The model in eval mode, on ``device``.
        rows: Batches of them, with ``labels`` and maybe ``weight``.
        device: Where to compute.
    """
    model = model.for_scoring()
    batches = [
        (arrays["labels"], log_odds(model, arrays, device).cpu().numpy(), arrays.get("weight"))
        for arrays in prefetched(rows)
    ]
    labels, scored, weights = zip(*batches, strict=True)
    weighted = weights[0] is not None
    return ScoredSplit(np.concatenate(labels), np.concatenate(scored), np.concatenate(weights) if weighted else None)


def check_match(saved: SavedModel, manifest: PreparedData, prepared: str | Path) -> None:
    """Raise DataError unless the data at ``prepared`` has the model's labels, of the same meaning, and its encoding.

    Args:
        saved: The model.
        manifest: The data.
        prepared: Where they are, for messages.
    """
    if list(saved.config.labels) != manifest.labels:
        raise DataError(
            f"{prepared}: has labels {', '.join(manifest.labels)}; the model was trained for "
            f"{', '.join(saved.config.labels)}: use data with those, or a model of these"
        )
    check_positive(manifest.positive, str(prepared), saved.config.positive, "the model")
    if saved.preprocessor != manifest.preprocessor:
        raise DataError(
            f"{prepared}: is encoded differently from the model's training data; prepare its source with "
            "`dkan prepare ... --like MODEL`, or evaluate on the raw Parquet with `dkan evaluate MODEL RAW.parquet`"
        )


def known_split(saved: SavedModel, split: str) -> str:
    """Return why a model knows a split that other models do not; empty where it does not.

    Args:
        saved: The model.
        split: Of the data that it was trained on.
    """
    known = split == "valid" and REFIT_ROWS in saved.metrics
    return "the model knows these rows: it was trained on train and valid together (refit)" if known else ""


def probability_column(label: str) -> str:
    """Return what the column of a label's probability is called, beside the label itself."""
    return f"{label}_probability"


def scored_batches(
    saved: SavedModel,
    path: str,
    columns: Sequence[str],
    device: torch.device,
    on_rows: Callable[[int], None],
    on_arrays: Callable[[Arrays], None] = lambda _: None,
    folder_types: Mapping[str, str] | None = None,
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.float32]]]:
    """Yield the rows of a raw Parquet file in order, with the probability of each label.

    Args:
        saved: The model, its module on ``device``.
        path: The file.
        columns: What to read besides the model's own columns.
        device: Where to compute.
        on_rows: Called with the number of rows after each batch.
        on_arrays: Called with the rows of each batch as the model reads them.
        folder_types: What columns in the names of folders are read as, as of ``copied_folder_types``. Default: what the
            model takes them for.

    Shape:
        - Output: N rows, ``(N, L)``
    """
    needed = list(dict.fromkeys([*saved.preprocessor.columns, *columns]))
    row, model = 0, saved.module.for_scoring()
    folder_types = saved.preprocessor.folder_types if folder_types is None else folder_types
    for batch in read_batches(path, needed, on_rows, folder_types=folder_types):
        arrays = saved.preprocessor.transform(batch, path)
        on_arrays(arrays)
        found_NL = score(model, arrays, device)
        check_probabilities(found_NL, saved.config.labels, path, row)
        row += len(batch)
        yield batch, found_NL


def output_batch(
    batch: pa.RecordBatch, found_NL: npt.NDArray[np.float32], columns: Sequence[str], schema: pa.Schema
) -> pa.RecordBatch:
    """Return columns that are passed through and probabilities, as ``output_schema`` has them.

    A column without a type, as of a file that has no values in it, has that of the other files.

    Args:
        batch: Rows of the source.
        found_NL: Their probabilities.
        columns: Columns to pass through.
        schema: Of the output.

    Raises:
        DataError: The type of all files does not hold a value of a column to pass through.
    """
    passed = [_cast(batch.column(name), schema.field(name)) for name in columns]
    return pa.record_batch([*passed, *map(pa.array, found_NL.T)], schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {field.name!r} is {column.type} in one file, and {field.type}, which does not hold all of its "
            f"values, in all ({first_line(error)}); write all files with one type"
        ) from error


def check_no_clash(columns: Iterable[str], added: Iterable[str], clash: str) -> None:
    """Raise DataError where a column of the output has the name of one that is added to it.

    Args:
        columns: Names of the output's columns so far.
        added: Names of those to add.
        clash: What the message says is wrong.
    """
    if names := sorted({*columns} & {*added}):
        raise DataError(f"column {names[0]!r} cannot be copied to the output: {clash}")


def copied_folder_types(saved: SavedModel, paths: Sequence[str]) -> dict[str, str]:
    """Return what columns in the names of folders are read as, where they are copied beside scores.

    Args:
        saved: The model.
        paths: All files that are scored, so that their scores have columns of the same types.
    """
    return with_whole_numbers(saved.preprocessor.folder_types, paths)


def output_schema(
    saved: SavedModel,
    paths: Sequence[str],
    columns: Sequence[str],
    labels: Sequence[str] = (),
    folder_types: Mapping[str, str] | None = None,
) -> tuple[pa.Schema, list[int]]:
    """Check every file's columns; return the schema of the output and the rows of each file.

    Args:
        saved: The model.
        paths: The files.
        columns: Columns to pass through.
        labels: Columns to compare the scores with.
        folder_types: As of ``scored_batches``.

    Raises:
        DataError: A file lacks a column, or no type holds the values of a column to pass through in all files.
    """
    predicted = [probability_column(label) for label in saved.config.labels]
    check_no_clash(columns, predicted, "the prediction has that name")
    passed: dict[str, pa.DataType] = {}
    rows = []
    for path in paths:
        parquet = open_parquet(path)
        types = column_types(path, parquet.schema_arrow)
        for name in columns:
            if name not in types:
                raise DataError(
                    f"{path}: column {name!r} does not exist, so it cannot be copied to the output (--column); "
                    f"{hint(name, types, [*types], cutoff=0.6)}"
                )
            passed[name] = _passed_type(name, types[name], passed.get(name, pa.null()), path, paths[0])
        check_features(
            saved.preprocessor, value_types(path, parquet, saved.preprocessor.source_types), path, because=TRAINED_WITH
        )
        check_label_columns(types, labels, saved.preprocessor, path)
        rows.append(parquet.metadata.num_rows)
    read_as = saved.preprocessor.folder_types if folder_types is None else folder_types
    passed |= {
        name: pa.type_for_alias(read_as.get(name, "string")) for name, kind in passed.items() if kind == FOLDER_TEXT
    }
    return pa.schema([*passed.items(), *((name, pa.float32()) for name in predicted)]), rows


def _passed_type(name: str, kind: pa.DataType, earlier: pa.DataType, path: str, first: str) -> pa.DataType:
    """Return the type that holds a column to pass through as it is in a file and in earlier ones."""
    if earlier == pa.null() or kind in (earlier, pa.null()):
        return kind if earlier == pa.null() else earlier
    if any(map(pa.types.is_decimal, (earlier, kind))):
        raise DataError(f"{path}: column {name!r} is {kind}; in earlier files it is {earlier}")
    return common_type(name, kind, earlier, path, first, zone="UTC")
