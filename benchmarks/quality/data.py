"""Parquet files as data sets: roles and splits are determined once, so that every model gets the same rows.

Shape suffixes: N rows, L labels, F numeric columns, C categorical columns.
"""

import fnmatch
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from dkan_core import DataError, PrepareConfig
from dkan_core.config.prepare import SPLITS
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.source.column_requirements import ColumnRequirements
from dkan_core.data.source.roles import ColumnRoles, assign_roles
from dkan_core.data.source.sources import read_sources
from dkan_core.data.source.splits import assign_splits
from dkan_core.utils.storage.files import write_json

ROOT = Path(__file__).parents[2]
GROUP, SPLIT = "group_id", "split"
FACTS = "set.json"


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A source file, split into ``folder/{train,valid,test}.parquet``; each holds the column ``split``, too."""

    name: str
    digest: str
    """SHA-256 of the source and the names of its labels."""
    folder: str
    labels: tuple[str, ...]
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    """Strings when read from ``folder``, also those that were booleans or dictionaries."""
    rows: dict[str, int]
    split_by: str
    group: str | None = None
    """Column of rows that belong together."""

    def path(self, split: str) -> Path:
        """Return the Parquet file of a split."""
        return Path(self.folder) / f"{split}.parquet"

    def read(self, split: str) -> pa.Table:
        """Read a split."""
        return pq.read_table(self.path(split))

    def labels_NL(self, table: pa.Table) -> npt.NDArray[np.uint8]:
        """Return the labels: 0, 1 or 255 (not measured)."""
        return label_array(table, self.labels)


def label_array(table: pa.Table, labels: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Return label columns as ``(N, L)``: 0, 1 or 255 (not measured)."""
    columns = [table[name].cast(pa.uint8()).fill_null(NOT_MEASURED).to_numpy() for name in labels]
    return np.stack(columns, axis=1)


def find_files(sources: Sequence[Path]) -> list[Path]:
    """Return every file named, and of a folder its ``*.parquet`` in order; each is a data set of its own.

    Raises:
        DataError: A source is missing or a folder has no Parquet file, or two files have the same name.
    """
    files: list[Path] = []
    for source in sources:
        found = sorted(source.glob("*.parquet")) if source.is_dir() else [source]
        if not found or not found[0].exists():
            raise DataError(f"{source}: no such Parquet file, or a folder without *.parquet")
        files += [path for path in found if path not in files]
    names = [path.stem for path in files]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two files are called {twice}.parquet; tables name sets by file, so rename one")
    return files


def demo_flights(out: Path) -> Path:
    """Write the demo's flights as one file, unless it is there already.

    Raises:
        DataError: They cannot be made.
    """
    path = out / "flights.parquet"
    if not path.exists():
        made = subprocess.run(
            [sys.executable, ROOT / "examples/flights.py", out / "flights"], capture_output=True, text=True, check=False
        )
        if made.returncode:
            raise DataError(f"the demo's flights: {made.stderr.strip()}; or name a Parquet file")
        pq.write_table(pq.read_table(out / "flights").drop_columns([SPLIT, "date"]), path)
    return path


def stage(source: Path, root: Path, label_patterns: Sequence[str]) -> DataSet:
    """Check a file, and write its splits under ``root`` unless they lie there already.

    Rows are split by the column ``split`` (train, valid or test) where there is one, else 70/10/20 by the hash of
    ``group_id`` where there is one, else by the hash of the row number, as ``dkan prepare`` does at seed 0.

    Raises:
        DataError: The file has no label, a label other than 0, 1 and null, or one without both classes in a split.
    """
    types = read_sources([str(source)], ColumnRequirements()).types
    labels = tuple(name for name in types if any(fnmatch.fnmatchcase(name, pattern) for pattern in label_patterns))
    if not labels:
        raise DataError(f"{source}: no column is called {' or '.join(label_patterns)}; name the labels with --label")
    digest = hashlib.sha256(source.read_bytes() + json.dumps(labels).encode()).hexdigest()
    folder = root / f"{source.stem}-{digest[:12]}"
    if (folder / FACTS).exists():
        return _restored(json.loads((folder / FACTS).read_text()), source.stem, folder)
    by_column = SPLIT if SPLIT in types else None
    group = GROUP if GROUP in types else None
    config = PrepareConfig(label=labels, group=group, split_column=by_column)
    schema = assign_roles(types, config, str(source))
    table = pq.read_table(source)
    parts = _split(table, config, str(source))
    plain = _plain(table, schema)
    folder.mkdir(parents=True, exist_ok=True)
    for index, split in enumerate(SPLITS):
        chosen = plain.take(np.flatnonzero(parts == index))
        _check_classes(chosen, labels, f"{source}: the {split} split")
        pq.write_table(
            chosen.append_column(SPLIT, pa.array([split] * len(chosen), pa.string())), folder / f"{split}.parquet"
        )
    data = DataSet(
        name=source.stem,
        digest=digest,
        folder=str(folder),
        labels=labels,
        numeric=schema.numeric,
        categorical=schema.categorical,
        rows={split: int(np.count_nonzero(parts == index)) for index, split in enumerate(SPLITS)},
        split_by=f"column {SPLIT}" if by_column else f"hash of {group or 'the row number'}",
        group=group,
    )
    write_json(folder / FACTS, asdict(data))
    return data


def _restored(facts: dict[str, Any], name: str, folder: Path) -> DataSet:
    listed = {key: tuple(facts[key]) for key in ("labels", "numeric", "categorical")}
    return DataSet(**{**facts, **listed, "name": name, "folder": str(folder)})


def _split(table: pa.Table, config: PrepareConfig, where: str) -> npt.NDArray[np.int8]:
    parts, first = [], 0
    for batch in table.to_batches():
        row_ids = np.arange(first, first + batch.num_rows, dtype=np.uint64)
        parts.append(assign_splits(batch, row_ids, config, where))
        first += batch.num_rows
    return np.concatenate(parts)


def _plain(table: pa.Table, schema: ColumnRoles) -> pa.Table:
    """Return features and labels in plain types: strings, numbers without decimals."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name in schema.numeric:
        columns[name] = table[name].cast(pa.float64()) if pa.types.is_decimal(table[name].type) else table[name]
    for name in schema.categorical:
        columns[name] = table[name].cast(pa.string())
    for name in schema.labels:
        columns[name] = table[name].cast(pa.int8())
    return pa.table({**columns, **({} if schema.group is None else {schema.group: table[schema.group]})})


def _check_classes(table: pa.Table, labels: Sequence[str], where: str) -> None:
    for name, values_N in zip(labels, label_array(table, labels).T, strict=True):
        found = set(np.unique(values_N).tolist()) - {NOT_MEASURED}
        if found != {0, 1}:
            raise DataError(f"{where}: label {name!r} holds {sorted(found)}; expected both 0 and 1 (or null)")


class Encoder:
    """What the comparators read: numbers as they are, and the train split's categories as codes."""

    def __init__(self, data: DataSet, train: pa.Table) -> None:
        self.data = data
        self.categories = [sorted(set(train[name].unique().to_pylist()) - {None}) for name in data.categorical]

    def numeric_NF(self, table: pa.Table) -> npt.NDArray[np.float64]:
        """Return the numeric columns; what is missing or infinite is NaN."""
        x_NF = np.empty((len(table), len(self.data.numeric)))
        for index, name in enumerate(self.data.numeric):
            x_NF[:, index] = table[name].cast(pa.float64(), safe=False).to_numpy()
        x_NF[~np.isfinite(x_NF)] = np.nan
        return x_NF

    def codes_NC(self, table: pa.Table) -> npt.NDArray[np.int64]:
        """Return the categories counted from 1; 0 is null, or a value that the train split does not have."""
        codes_NC = np.zeros((len(table), len(self.categories)), dtype=np.int64)
        for index, (name, categories) in enumerate(zip(self.data.categorical, self.categories, strict=True)):
            codes = {category: code for code, category in enumerate(categories, start=1)}
            encoded = table[name].combine_chunks().dictionary_encode()
            codes_D = np.array([codes.get(value, 0) for value in encoded.dictionary.to_pylist()] + [0])
            codes_NC[:, index] = codes_D[encoded.indices.fill_null(len(codes_D) - 1).to_numpy(zero_copy_only=False)]
        return codes_NC
