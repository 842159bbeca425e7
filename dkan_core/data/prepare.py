"""``prepare``: raw Parquet to shuffled, encoded shards in two passes."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dkan_core.config import PrepareConfig
from dkan_core.data.encoding import Preprocessor, fit_preprocessor
from dkan_core.data.hashing import salted, splitmix64
from dkan_core.data.manifest import MANIFEST, PreparedData, SplitInfo
from dkan_core.data.schema import Schema, SourceFile, assign_roles, read_sources
from dkan_core.data.shards import ShardWriter
from dkan_core.data.splits import SPLITS, read_split_batches
from dkan_core.data.statistics import Statistics, check_labels, collect_statistics
from dkan_core.errors import DataError
from dkan_core.metrics import NOT_MEASURED
from dkan_core.progress import progress
from dkan_core.storage import staged_folder, write_json

OUTPUTS = (*SPLITS, MANIFEST)

logger = logging.getLogger(__name__)


def prepare(
    sources: str | Path | Sequence[str | Path], out: str | Path, config: PrepareConfig, *, overwrite: bool = False
) -> PreparedData:
    """Turn Parquet files into a prepared data set.

    Args:
        sources: Files, folders, globs or fsspec URIs.
        out: Folder or URI for ``manifest.json`` and the shards; absent or empty, or an earlier result with overwrite.
        config: Roles of the columns, split rule, storage type and seed.
        overwrite: Whether an earlier result in ``out`` may be replaced.

    Returns:
        The manifest that was written.

    Raises:
        DataError: The sources are not what was expected; the message names file and column.
        OutputError: ``out`` cannot take the result. Nothing half-written is left.
    """
    chosen = [sources] if isinstance(sources, (str, Path)) else list(sources)
    with staged_folder(out, names=OUTPUTS, overwrite=overwrite) as folder:
        files, types = read_sources([str(source) for source in chosen])
        where = files[0].path if len(files) == 1 else f"{len(files)} files from {files[0].path}"
        schema = assign_roles(types, config, where)
        total = sum(file.rows for file in files)
        with progress("reading", total, "rows") as advance:
            statistics = collect_statistics(files, schema, config, advance)
        check_labels(statistics, where)
        _report_invalid(statistics)
        preprocessor = fit_preprocessor(
            statistics.sample, schema.numeric, schema.categorical, config.numeric_dtype, where
        )
        statistics.sample = statistics.sample.slice(0, 0)  # not needed any more, and large
        with progress("writing", total, "rows") as advance:
            splits = _write_splits(folder, files, schema, config, preprocessor, statistics, advance)
        prepared = PreparedData(
            preprocessor=preprocessor,
            labels=list(config.label),
            weight=config.weight,
            splits=splits,
            split_rule=_split_rule(config),
            seed=config.seed,
            invalid=statistics.invalid,
            sources=files,
        )
        write_json(folder / MANIFEST, prepared.to_dict())
    rows = ", ".join(f"{name} {split.rows:,}" for name, split in prepared.splits.items())
    logger.info("prepared %s: %s rows", out, rows)
    return prepared


def _report_invalid(statistics: Statistics) -> None:
    for name, counts in statistics.invalid.items():
        logger.warning("column %r: %d NaN and %d infinite values taken as missing", name, counts["nan"], counts["inf"])


def _split_rule(config: PrepareConfig) -> dict[str, Any]:
    if config.split_column is not None:
        return {"by": "column", "column": config.split_column}
    by = {"by": "group", "column": config.group} if config.group is not None else {"by": "row"}
    return {**by, "percent": config.split}


def _write_splits(
    folder: Path,
    files: Sequence[SourceFile],
    schema: Schema,
    config: PrepareConfig,
    preprocessor: Preprocessor,
    statistics: Statistics,
    advance: Any,
) -> dict[str, SplitInfo]:
    present = [index for index in range(len(SPLITS)) if statistics.rows[index]]
    layout = _layout(preprocessor, schema)
    writers = {index: ShardWriter(folder / SPLITS[index], statistics.rows[index], layout) for index in present}
    shuffle_seed = salted(config.seed, "shuffle")
    for batch in read_split_batches(files, schema, config, advance):
        arrays = encode_rows(batch.rows, preprocessor, schema, batch.path)
        keys = splitmix64(batch.row_ids, seed=shuffle_seed)
        for index, writer in writers.items():
            rows = np.flatnonzero(batch.split == index)
            writer.add(keys[rows], {name: array[rows] for name, array in arrays.items()})
    splits = {
        SPLITS[index]: SplitInfo(
            rows=statistics.rows[index], classes=_classes(statistics, index), shards=list(writer.finish())
        )
        for index, writer in writers.items()
    }
    for name, info in splits.items():
        written = sum(shard.rows for shard in info.shards)
        if written != info.rows:
            raise DataError(f"{files[0].path}: the source changed: {name} had {info.rows:,} rows, then {written:,}")
    return splits


def _layout(preprocessor: Preprocessor, schema: Schema) -> dict[str, tuple[tuple[int, ...], str]]:
    layout: dict[str, tuple[tuple[int, ...], str]] = {}
    if preprocessor.numeric:
        layout["numeric"] = ((len(preprocessor.numeric),), preprocessor.numeric_dtype)
    if preprocessor.coded:
        layout["categorical"] = ((len(preprocessor.coded),), "int32")
    layout["labels"] = ((len(schema.labels),), "uint8")
    if schema.weight is not None:
        layout["weight"] = ((), "float32")
    return layout


def encode_rows(
    batch: pa.RecordBatch, preprocessor: Preprocessor, schema: Schema, path: str
) -> dict[str, npt.NDArray[Any]]:
    """Encode a batch's features, labels (N, L) with 255 for null, and weight (N,) where asked for."""
    arrays = preprocessor.transform(batch, path)
    labels = [batch.column(name).cast(pa.uint8()).fill_null(NOT_MEASURED) for name in schema.labels]
    arrays["labels"] = np.stack([label.to_numpy(zero_copy_only=False) for label in labels], axis=1)
    if schema.weight is not None:
        weight = batch.column(schema.weight).cast(pa.float32(), safe=False)
        arrays["weight"] = weight.to_numpy(zero_copy_only=False)
    return arrays


def _classes(statistics: Statistics, index: int) -> dict[str, dict[str, int]]:
    return {
        name: {"0": counters[index][0], "1": counters[index][1], "null": counters[index][None]}
        for name, counters in statistics.labels.items()
    }
