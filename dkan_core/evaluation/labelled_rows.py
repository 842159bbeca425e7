"""Rows to evaluate a model on: a prepared split, or raw Parquet with labels, which is encoded as it is read.

Shape suffixes: N rows, F numeric features, C coded features, L labels.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.bulk import BulkEncoder
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.encoding.source_check import check_features
from dkan_core.data.format.manifest import MANIFEST, PreparedData, manifest_text, open_prepared
from dkan_core.data.format.origin import Origin, origin_of, raw_origin
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.data.preparation.label_columns import (
    check_label_columns,
    label_columns,
    positive_in,
    positive_of_columns,
    stored_labels,
    with_binary_labels,
)
from dkan_core.data.source.column_types import value_types
from dkan_core.data.source.files import find_in_order
from dkan_core.data.source.parquet_files import open_in_order, open_stamped
from dkan_core.data.source.positive import other_values, with_nulls
from dkan_core.data.source.reading import open_file, read_batches
from dkan_core.data.source.sources import SourceFile
from dkan_core.data.source.split_hints import split_warnings
from dkan_core.data.source.split_rule import describe_split
from dkan_core.errors import ConfigError, DataError, redact
from dkan_core.explanation.inverse_transform import inverse_transform
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.prepared import check_match, score_batches
from dkan_core.scoring.probabilities import SCORING_ROWS, check_probabilities, to_probability
from dkan_core.utils.arrays import Arrays, Int64, joined_rows
from dkan_core.utils.messages import listed_names
from dkan_core.utils.progress import progress
from dkan_core.utils.torch_resources import best_device


class EvaluationData(Protocol):
    """Labelled rows, in a fixed order."""

    name: str
    """Their name in the metrics."""

    title: str
    """Their name in the heading of a report."""

    labels: list[str]
    """Names of the labels, as in the model, whatever the columns are called."""

    positives: Mapping[str, str]
    """By label, the value that counts as 1; labels that are not here hold 0 and 1."""

    rows: int

    split: str
    """A sentence on the rule that put them into this split; empty where they are in none."""

    warnings: list[str]
    """Why scores on them may be higher than on new rows."""

    origin: Origin
    """Their source files, and the rule that put them into this split, if they are in one."""

    def batches(self, encoding: Preprocessor) -> Iterator[Arrays]:
        """Yield all rows in order, encoded for a model, with ``labels`` (N, L)."""

    def sample(self, rows: int) -> Int64:
        """Return the numbers of at most ``rows`` representative rows, in order."""

    def positive(self, label: str) -> str:
        """Return which value of a label counts as 1, once the rows have been read; nothing where it holds 0 and 1."""

    def summary(self) -> dict[str, Any]:
        """Return the facts that a report shows."""


def score_rows(
    saved: SavedModel, data: EvaluationData, batches: Iterator[Arrays]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.float32] | None]:
    """Return the labels of labelled rows, their probabilities in the order of the model's labels, and any weights.

    Args:
        saved: The model.
        data: The rows.
        batches: All of them, as ``data`` encodes them for the model.

    Shape:
        - Output: ``(N, L)``, ``(N, L)``, ``(N,)``

    Raises:
        DataError: The model gives no probability for a row.
    """
    device = best_device()
    with progress("scoring", data.rows, "rows") as advance:
        scored = score_batches(saved.module.to(device), _counted(batches, advance), device)
    probabilities_NL = to_probability(scored.log_odds_NL)
    check_probabilities(probabilities_NL, saved.config.labels, data.title)
    return scored.labels_NL, probabilities_NL, scored.weight_N


def _counted(batches: Iterator[Arrays], advance: Callable[[int], None]) -> Iterator[Arrays]:
    for arrays in batches:
        yield arrays
        advance(len(arrays["labels"]))


class PreparedRows:
    """A prepared split.

    A model with another encoding is given the values that are read back from the split, as exact as they are stored.

    Raises:
        DataError: There is no such split, or a shard is missing, cut off or damaged.
    """

    def __init__(self, folder: Path, manifest: PreparedData, split: str) -> None:
        self.folder, self.manifest = folder, manifest
        self.name, self.title = split, f"{split} split"
        self.labels = manifest.labels
        self.positives: Mapping[str, str] = manifest.positive
        self.split, self.warnings = describe_split(manifest.split_rule), split_warnings(manifest.split_hints)
        self.origin = origin_of(manifest)
        with open_split(folder, manifest, split) as reader:
            self.rows = reader.rows

    def batches(self, encoding: Preprocessor) -> Iterator[Arrays]:
        """Yield all rows in stored order."""
        ours = self.manifest.preprocessor
        # Arrays of the same encoding need no conversion; reading back and encoding again would take most of the time.
        same = encoding == ours
        with open_split(self.folder, self.manifest, self.name) as reader:
            for arrays in all_batches(reader, SCORING_ROWS):
                if same:
                    yield arrays
                else:
                    inputs = encoding.transform(inverse_transform(arrays, ours), "the prepared data")
                    yield {**inputs, **{name: arrays[name] for name in ("labels", "weight") if name in arrays}}

    def sample(self, rows: int) -> Int64:
        """Return the numbers of rows at equal distances: those that were added later are behind the others."""
        taken = min(rows, self.rows)
        return np.arange(taken) * self.rows // max(1, taken)

    def positive(self, label: str) -> str:
        """Return which value of a label counts as 1."""
        value = self.manifest.positive.get(label)
        return "" if value is None else f"{value!r} counts as 1"

    def summary(self) -> dict[str, Any]:
        """Return the facts of the whole data set."""
        return self.manifest.summary()


class RawRows:
    """Raw Parquet with columns of labels.

    Args:
        name: What metrics and report call them.
        paths: Files or URIs, in the order to be read.
        names: What the model calls its labels.
        columns: Columns that hold them; by default those that are called as the labels are.
        encoding: What the model reads.
        positive: By the model's label, the value that counts as 1; none where its column holds 0 and 1.

    Raises:
        DataError: A column is missing or cannot hold what is read from it, or there are no rows.
    """

    def __init__(
        self,
        name: str,
        paths: Sequence[str],
        names: Sequence[str],
        columns: Sequence[str],
        encoding: Preprocessor,
        positive: Mapping[str, str],
    ) -> None:
        self.name = self.title = name
        self.split, self.warnings = "", list[str]()
        self.paths, self.labels, self.rows = paths, list(names), 0
        self.columns, self.positives = label_columns(names, columns), positive
        files = []
        opened = open_in_order(open_stamped, self.paths, self.paths[0])
        for path, (parquet, size, modified) in zip(self.paths, opened, strict=True):
            types = value_types(path, parquet, encoding.source_types)
            # Features are checked first: if they are missing, too, these are other data, not rows without labels.
            check_features(encoding, types, path)
            check_label_columns(types, self.columns, encoding, path)
            files.append(SourceFile(path=path, rows=parquet.metadata.num_rows, bytes=size, modified=modified))
            self.rows += parquet.metadata.num_rows
        self.origin = raw_origin(files)
        if not self.rows:
            raise DataError(f"{self.name}: no rows in any file")
        self._positive = positive_of_columns(positive, names, self.columns)
        # Values by column, in a dict to keep their order.
        self._others: dict[str, dict[str, None]] = {column: {} for column in self._positive}

    def batches(self, encoding: Preprocessor) -> Iterator[Arrays]:
        """Yield all rows in the order of the files."""
        encoder, needed = BulkEncoder(encoding), list(dict.fromkeys([*encoding.columns, *self.columns]))
        for path in self.paths:
            file = open_file(path, folder_types=encoding.folder_types)
            types = value_types(path, file.parquet, encoding.source_types)
            check_features(encoding, types, path)
            for rows in read_batches(file, needed):
                seen = with_nulls(rows, [*self._positive])
                for column, value in positive_in(seen.schema, self._positive).items():
                    self._others[column] |= dict.fromkeys(other_values(seen.column(column), value))
                binary = with_binary_labels(rows, self.columns, self._positive, path)
                yield encoder.transform(binary, path) | {"labels": stored_labels(binary, self.columns)}

    def sample(self, rows: int) -> Int64:
        """Return the numbers of random rows, as neighbours are often alike."""
        # A fixed seed: the same rows give the same report.
        drawn = np.random.default_rng(0).choice(self.rows, min(rows, self.rows), replace=False, shuffle=False)
        return np.sort(drawn)

    def positive(self, label: str) -> str:
        """Return which value of a label counts as 1, and which count as 0."""
        column = self.columns[self.labels.index(label)]
        others = self._others.get(column)
        return f"{self._positive[column]!r} counts as 1, {listed_names([*others])} as 0" if others else ""

    def summary(self) -> dict[str, Any]:
        """Return how many rows there are, and where they are from."""
        return {
            "source": self.name,
            "files": len(self.paths),
            "rows": self.rows,
            "label columns": list(self.columns),
        }


@contextmanager
def open_evaluation_data(
    saved: SavedModel, data: Sequence[str], split: str | None, label: Sequence[str]
) -> Iterator[EvaluationData]:
    """Yield the rows that a model is to be evaluated on.

    Args:
        saved: The model.
        data: One folder or URI of prepared data, which has a manifest; or raw Parquet: files, folders, globs, URIs.
        split: Of prepared data, "test" by default; raw data have none.
        label: Columns of labels in raw data; by default those that are called as the model's labels.

    Raises:
        ConfigError: A setting is for the other kind of data.
        DataError: The data cannot be read, or do not belong to the model.
    """
    if not data:
        raise ConfigError("name prepared data or raw Parquet to evaluate on")
    prepared = [source for source in data if manifest_text(source) is not None]
    if not prepared:
        yield _open_raw(saved, data, split, label)
        return
    if len(data) > 1:
        raise ConfigError(f"{prepared[0]}: is prepared data, which is evaluated on alone; got {len(data)} places")
    split = split or "test"
    with open_prepared(data[0], split) as (folder, manifest):
        if label and [*label] != manifest.labels:
            raise ConfigError(
                f"label {', '.join(label)}: {data[0]} is prepared data, with labels {', '.join(manifest.labels)}; "
                "leave out --label"
            )
        check_match(saved, manifest, data[0])
        yield PreparedRows(folder, manifest, split)


def _open_raw(saved: SavedModel, data: Sequence[str], split: str | None, label: Sequence[str]) -> RawRows:
    try:
        paths = find_in_order(data)
    except DataError as error:
        raise DataError(f"{error}; expected raw Parquet, or prepared data: a folder with {MANIFEST}") from error
    name = data[0] if len(data) == 1 else f"{data[0]} and {len(data) - 1} more"
    if split is not None:
        raise ConfigError(
            f"split {split}: {name} is raw Parquet, which has no splits and is evaluated on as a whole; "
            "leave out --split, or prepare it with `dkan prepare ... --like MODEL`"
        )
    # Without credentials, as metrics and the report show the name.
    return RawRows(redact(name), paths, saved.config.labels, label, saved.preprocessor, saved.config.positive)


class RowCollector:
    """Keeps rows with some numbers, given in order, from the batches that pass through."""

    def __init__(self, numbers: Int64) -> None:
        self._numbers, self._kept = numbers, list[Arrays]()

    def watch(self, batches: Iterator[Arrays]) -> Iterator[Arrays]:
        """Yield the batches as they are."""
        first = 0
        for arrays in batches:
            rows = len(arrays["labels"])
            # The wanted numbers are sorted, so those in this batch are neighbours.
            start, stop = np.searchsorted(self._numbers, [first, first + rows])
            if start < stop:
                wanted = self._numbers[start:stop] - first
                self._kept.append({name: array[wanted] for name, array in arrays.items()})
            first += rows
            yield arrays

    def rows(self) -> Arrays:
        """Return the rows that were kept, in order; nothing where there are none."""
        names = self._kept[0] if self._kept else ()
        return {name: joined_rows([part[name] for part in self._kept]) for name in names}
