"""Reads data for an inspection: exact counts of all rows, and a sample of each split.

Shape suffixes: N rows of a sample, L labels.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.config import PrepareConfig
from dkan_core.config.prepare import SPLITS
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.preprocessor import CodedFeature, NumericFeature, Preprocessor
from dkan_core.data.format.manifest import open_prepared
from dkan_core.data.hashing import salted
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.loading.loader import open_split, read_sample
from dkan_core.data.preparation.label_checks import check_binary
from dkan_core.data.preparation.label_columns import stored_labels
from dkan_core.data.preparation.sampling import BottomK, add_to_samples
from dkan_core.data.preparation.statistics import count_others
from dkan_core.data.preparation.task import PreparationTask, describe_files, hints_of, with_time_bounds
from dkan_core.data.source.column_types import is_number
from dkan_core.data.source.partition import whole_files
from dkan_core.data.source.roles import assign_roles, column_requirements, is_feature
from dkan_core.data.source.sources import read_sources
from dkan_core.data.source.splits import SplitBatch, read_split_batches
from dkan_core.errors import DataError
from dkan_core.explanation.columns import EXACT_KNOTS, source_columns
from dkan_core.explanation.inverse_transform import inverse_transform
from dkan_core.inspection.copies import find_copies
from dkan_core.utils.progress import progress

# Rows per split. Shares are then off by 0.4% at most with 95% certainty; three samples of 100 columns take 150 MB.
SAMPLE_ROWS = 1 << 16

# By stored value of a label, its name in the classes of a manifest.
STORED = {0: "0", 1: "1", NOT_MEASURED: "null"}

IDS = "IDs, which are not inspected"
"""Description of columns of lists of ids and of bit vectors."""

UNLABELLED = ("",)
"""Stands for the label in settings without one: no column of a file has this name."""

LABEL = "\N{REPLACEMENT CHARACTER}dkan: label "
"""Prefix of the labels' columns in a sample, which also holds features."""


@dataclass(kw_only=True)
class InspectedRows:
    """Counts of all rows, and samples."""

    where: str
    rows: dict[str, int]
    """By split."""

    classes: dict[str, dict[str, dict[str, int]]]
    """By split and label, the rows that hold 0, 1 and null."""

    missing: dict[str, int]
    """Rows of each column that hold null, NaN or infinity; of prepared data, of the sample of train."""

    counted: int
    """Rows that ``missing`` was counted in."""

    types: dict[str, str]
    """Of every column."""

    roles: dict[str, str]
    """Of the columns that are no features."""

    refused: dict[str, str] = field(default_factory=dict)
    """Columns that ``prepare`` would refuse, and why."""

    samples: dict[str, pa.Table]
    """By split: features, and labels under names of their own."""

    whole: bool
    """Whether the samples hold every row of train and valid."""

    inexact: frozenset[str] = frozenset()
    """Numbers of prepared data that are only as exact as their scores, so that their distinct values are not known."""

    codes: tuple[str, ...] = ()
    """Columns that are named as categories, whatever their values look like."""

    encoding: Preprocessor
    """The encoding of prepared data, or that which ``prepare`` would choose from the sample."""

    estimated: bool = False
    """Whether that encoding may differ from the one that ``prepare`` chooses, which reads more rows."""

    labels: list[str]

    copies: float | None = None
    """From ``find_copies``; None for prepared data, and where there are lists of IDs or no rows of valid."""

    positive: dict[str, str] = field(default_factory=dict)
    """By label, the value that counts as 1, of raw Parquet."""

    others: dict[str, Counter[str]] = field(default_factory=dict)
    """By such a label, other values with their rows, not all where there are very many."""

    hints: Mapping[str, str]
    """Columns by which rows could be split that are split at random, as ``find_split_hints`` returns them."""

    @cached_property
    def times(self) -> dict[str, list[NumericFeature]]:
        """By source column of dates or times, its features."""
        found: dict[str, list[NumericFeature]] = {name: [] for name in self.encoding.times}
        for feature in self.encoding.numeric:
            if feature.time is not None:
                found[feature.time.column].append(feature)
        return found

    @cached_property
    def coded(self) -> dict[str, CodedFeature]:
        """Coded features by name."""
        return {feature.name: feature for feature in self.encoding.coded}

    def labels_NL(self, split: str) -> npt.NDArray[np.uint8]:
        """Return the labels of a sample, 255 for not measured."""
        return np.stack([np.asarray(self.samples[split][f"{LABEL}{name}"]) for name in self.labels], axis=1)


def read_raw(sources: Sequence[str], config: PrepareConfig) -> InspectedRows:
    """Read raw Parquet once.

    Args:
        sources: Files, folders, globs or fsspec URIs.
        config: Roles of the columns and split rule; its labels may be ``UNLABELLED``.

    Raises:
        DataError: The sources are not what was expected; the message names file and column.
    """
    found = read_sources(sources, column_requirements(config))
    files, types, footers = found.files, found.types, found.footers
    where, shown = describe_files(files), {name: str(kind) for name, kind in types.items()}
    roles = {name: role for name, role in _roles(config).items() if name in shown}
    no_features = {name: kind for name, kind in types.items() if name not in roles and not is_feature(kind)}
    labels = tuple(name for name in config.label if name not in UNLABELLED)
    kept = {name: kind for name, kind in types.items() if name not in no_features}
    # Without a label, roles are assigned as if there were one.
    assigned = assign_roles({**kept, **({} if labels else {UNLABELLED[0]: pa.int8()})}, config, where)
    inspected = replace(assigned, sparse=(), labels=labels, folders=found.folders, common=found.common)
    task = PreparationTask(config=config, files=files, roles=inspected)
    task = with_time_bounds(task, whole_files(files, footers))
    seen = _SeenRows(task)
    with progress("reading", task.rows, "rows") as advance:
        fragments = whole_files(files, footers)
        for batch in read_split_batches(fragments, task.roles, config, advance, task.bounds, row_bytes=0):
            seen.add(batch)
    samples = {split: each.sample().rows for split, each in zip(SPLITS, seen.samples, strict=True) if each.pieces}
    if not seen.rows[0]:
        raise DataError(f"{where}: no rows in the train split, of {seen.rows.sum():,} in all")
    encoding, useless = _fit(samples["train"], task)
    copies = None
    if seen.rows[1] and not assigned.sparse:
        train, valid = (samples[split].select(inspected.features) for split in ("train", "valid"))
        copies = find_copies(train, valid, int(seen.rows[0]))
    return InspectedRows(
        where=where,
        rows={split: int(count) for split, count in zip(SPLITS, seen.rows, strict=True) if count},
        classes=seen.classes(),
        missing=seen.missing,
        counted=task.rows,
        types=shown,
        roles={**roles, **dict.fromkeys(assigned.sparse, IDS)},
        refused={**{name: f"is {kind}, which is no feature" for name, kind in no_features.items()}, **useless},
        samples=samples,
        whole=bool((seen.rows <= SAMPLE_ROWS).all()),
        encoding=encoding,
        estimated=bool(seen.rows[0] > SAMPLE_ROWS),
        labels=[*labels],
        copies=copies,
        codes=config.categorical,
        positive=assigned.positive,
        others=seen.others,
        hints=hints_of(found, config),
    )


class _SeenRows:
    """Counts of the rows that were read, and samples of them."""

    def __init__(self, task: PreparationTask) -> None:
        self.roles = task.roles
        self.samples = [BottomK(SAMPLE_ROWS, salted(task.config.seed, "inspection")) for _ in SPLITS]
        self.missing = dict.fromkeys(self.roles.features, 0)
        self.others = {name: Counter[str]() for name in self.roles.positive}
        self.rows = np.zeros(len(SPLITS), np.int64)
        self._counts = np.zeros((len(SPLITS), len(self.roles.labels), len(STORED)), np.int64)

    def add(self, batch: SplitBatch) -> None:
        """Count and sample a batch."""
        labels = self.roles.labels
        for name in labels:
            check_binary(name, batch.rows.column(name), batch.path)
        for name, value in self.roles.positive.items():
            count_others(self.others[name], batch.source.column(name), value)
        stored_NL = stored_labels(batch.rows, labels) if labels else np.empty((len(batch.split), 0), np.uint8)
        beside = pa.record_batch([*map(pa.array, stored_NL.T)], names=[f"{LABEL}{name}" for name in labels])
        inside = [batch.split == split for split in range(len(SPLITS))]
        for split, inside_N in enumerate(inside):
            self.rows[split] += inside_N.sum()
            self._counts[split] += np.stack([(stored_NL[inside_N] == value).sum(axis=0) for value in STORED], axis=1)
        add_to_samples(self.samples, chain(self._counted(batch), [beside]), batch.row_ids, inside)

    def _counted(self, batch: SplitBatch) -> Iterator[pa.RecordBatch]:
        """Yield the features, some columns at a time, after counting missing values."""
        for block in batch.features():
            for name, column in zip(block.schema.names, block.columns, strict=True):
                self.missing[name] += _count_missing(column)
            yield block

    def classes(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the rows of each split, label and class."""
        return {
            split: {
                name: dict(zip(STORED.values(), self._counts[index, label].tolist(), strict=True))
                for label, name in enumerate(self.roles.labels)
            }
            for index, split in enumerate(SPLITS)
            if self.rows[index]
        }


def _roles(config: PrepareConfig) -> dict[str, str]:
    named = {"group": config.group, "weight": config.weight}
    named |= {"split": config.split_column or config.split_by_time}
    roles = {name: role for role, name in named.items() if name is not None}
    return {**roles, **dict.fromkeys(config.drop, "dropped"), **dict.fromkeys(config.label, "label")}


def _count_missing(column: pa.Array) -> int:
    finite: int | None = pc.sum(pc.is_finite(column)).as_py() or 0 if pa.types.is_floating(column.type) else None
    return column.null_count if finite is None else len(column) - int(finite)


def _fit(sample: pa.Table, task: PreparationTask) -> tuple[Preprocessor, dict[str, str]]:
    """Return the encoding that ``prepare`` would choose from the sample, and columns that it would refuse, and why."""
    roles, kept, refused = task.roles, {*task.roles.features}, dict[str, str]()
    choose = partial(fit_preprocessor, max_categories=task.config.max_categories)
    kinds = {name: kind for kind in _KINDS for name in getattr(roles, kind)}
    for name in roles.features:
        numeric, categorical, times = ((name,) if kinds[name] == kind else () for kind in _KINDS)
        try:
            choose(sample.select([name]), numeric, categorical, "uint8", "data", times=times)
        except DataError as error:
            refused[name] = str(error).removeprefix(f"data: column {name!r} ")
            kept.remove(name)
    numeric, categorical, times = (tuple(each for each in getattr(roles, kind) if each in kept) for kind in _KINDS)
    return choose(sample, numeric, categorical, task.config.numeric_dtype, task.where, times=times), refused


_KINDS = ("numeric", "categorical", "times")


def read_prepared(prepared: str | Path) -> InspectedRows:
    """Read a sample of each split of prepared data.

    Raises:
        DataError: There are none, or they are damaged.
    """
    samples: dict[str, pa.Table] = {}
    with open_prepared(prepared) as (folder, manifest):
        encoding = manifest.preprocessor
        for split in manifest.splits:
            with open_split(folder, manifest, split) as reader:
                arrays: dict[str, Any] = read_sample(reader, SAMPLE_ROWS)
            stored = zip(manifest.labels, np.asarray(arrays["labels"]).T, strict=True)
            labels = {f"{LABEL}{name}": pa.array(values_N) for name, values_N in stored}
            features = inverse_transform(arrays, encoding)
            # Built in one call, because a table without columns, as with only ids, would have no rows.
            samples[split] = pa.table({**dict(zip(features.column_names, features.columns, strict=True)), **labels})
    read = [name for name in samples["train"].column_names if not name.startswith(LABEL)]
    kinds = {name: samples["train"].schema.field(name).type for name in read}
    ids = [feature.name for feature in encoding.sparse]
    types = {name: "number" if is_number(kind) else "category" for name, kind in kinds.items()}
    return InspectedRows(
        where=str(prepared),
        rows={split: info.rows for split, info in manifest.splits.items()},
        classes={split: info.classes for split, info in manifest.splits.items()},
        missing={name: _count_missing(samples["train"][name].combine_chunks()) for name in read},
        counted=len(samples["train"]),
        types={**types, **dict.fromkeys(ids, "ids")},
        roles=dict.fromkeys(ids, IDS),
        samples=samples,
        whole=all(info.rows <= SAMPLE_ROWS for info in manifest.splits.values()),
        inexact=frozenset(
            column.name
            for column in source_columns(encoding)
            if column.numeric is not None and len(column.knots) > EXACT_KNOTS
        ),
        encoding=encoding,
        hints=manifest.split_hints,
        labels=manifest.labels,
    )
