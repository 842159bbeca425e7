"""What is to be prepared: the source files, what each column is for, and where a split by time begins."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dkan_core.config import PrepareConfig, check_config
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.preparation.reference import read_reference
from dkan_core.data.preparation.statistics import sample_rows
from dkan_core.data.source.copies import warn_of_copies
from dkan_core.data.source.files import source_paths
from dkan_core.data.source.folders import FOLDER_TEXT
from dkan_core.data.source.partition import Fragment
from dkan_core.data.source.roles import ColumnRoles, assign_roles, column_requirements, split_keys
from dkan_core.data.source.sources import Footer, SourceFile, Sources, read_sources
from dkan_core.data.source.split_hints import find_split_hints
from dkan_core.data.source.split_rule import rule_of_settings
from dkan_core.data.source.time_split import TimeBounds, find_time_bounds
from dkan_core.errors import ConfigError, DataError, redact
from dkan_core.utils.messages import counted
from dkan_core.utils.progress import progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PreparationTask:
    """Sources, roles of columns and settings of a preparation."""

    config: PrepareConfig
    files: list[SourceFile]
    footers: Sequence[Footer] = ()
    """Of each file; none in a task of a plan, whose rows are cut into parts."""
    roles: ColumnRoles
    encoding: Preprocessor | None = None
    """To be taken as it is; None is to be fitted."""
    bounds: TimeBounds | None = None
    """Where valid and test begin, of a split by time; None before they are found."""
    grouped: bool = False
    """Whether each row gets the number of its group."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """Columns by which rows could be split that are split at random, as ``find_split_hints`` returns them."""

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(file.rows for file in self.files)

    @property
    def counted_columns(self) -> tuple[list[str], list[str]]:
        """Categorical and sparse columns whose values are counted in all rows; none if the sample holds all rows."""
        if self.rows <= sample_rows(len(self.roles.features)):
            return [], []
        known = set() if self.encoding is None else {*self.encoding.columns}
        categorical, sparse = (
            [name for name in names if name not in known] for names in (self.roles.categorical, self.roles.sparse)
        )
        return categorical, sparse

    @property
    def where(self) -> str:
        """The files, as messages call them."""
        return describe_files(self.files)

    @property
    def sources(self) -> list[SourceFile]:
        """The files as the manifest lists them, without credentials."""
        return [file.model_copy(update={"path": redact(file.path)}) for file in self.files]

    @property
    def split_rule(self) -> dict[str, str]:
        """What decides a row's split, as the manifest has it."""
        return rule_of_settings(self.config, self.roles.keys, self.bounds)


def describe_files(files: Sequence[SourceFile]) -> str:
    """Return how messages call the files."""
    return files[0].path + (f" and {counted(len(files) - 1, 'more file')}" if len(files) > 1 else "")


def find_task(
    sources: str | Path | Sequence[str | Path], config: PrepareConfig, *, adds: bool = False
) -> PreparationTask:
    """Read every source file's footer and give each column its role.

    Args:
        sources: Files, folders, globs or fsspec URIs.
        config: Roles of the columns, split rule, storage type and seed.
        adds: Whether the rows are added to others, so that they may all be of one class.

    Raises:
        ConfigError: A setting is wrong.
        DataError: The sources are not what was expected; the message names file and column.
    """
    check_config(PrepareConfig, config)
    chosen = source_paths(sources)
    if config.extend and config.like is None:
        raise ConfigError("extend: there is nothing to extend; name a model or prepared data with --like")
    reference = None if config.like is None else read_reference(config.like)
    if reference is not None:
        config = reference.complete(config)
    found = read_sources(chosen, reference.column_requirements(config) if reference else column_requirements(config))
    files, types = found.files, found.types
    where = describe_files(files)
    warn_of_copies(files, found.footers)
    hints = hints_of(found, config)
    folders = found.folders
    if reference is None:
        roles = assign_roles(types, config, where, found.empty)
    else:
        known = {name: kind for name, kind in reference.preprocessor.folder_types.items() if name in folders}
        folders |= known
        types |= dict.fromkeys(known, FOLDER_TEXT)
        roles = reference.assign_roles(types, config, where, found.empty)
    if not adds:
        _check_not_constant(found.constant, where)
    keys = split_keys(types, config, roles.features)
    return PreparationTask(
        config=config,
        files=files,
        footers=found.footers,
        roles=replace(roles, folders=folders, common=found.common, **keys),
        encoding=None if reference is None else reference.preprocessor,
        grouped=config.has_groups,
        hints=hints,
    )


def hints_of(found: Sources, config: PrepareConfig) -> dict[str, str]:
    """Return the columns that rows could be split by, as ``find_split_hints`` does; none if they are split by some."""
    if not config.splits_at_random:
        return {}
    taken = {*config.label, *filter(None, [config.weight]), *found.partial}
    return find_split_hints(found.types, taken, next(file.path for file in found.files if file.rows))


def _check_not_constant(labels: Mapping[str, Collection[object]], where: str) -> None:
    """Raise DataError where a label is known to hold one value alone, which reading all rows would show, too."""
    for name, values in labels.items():
        for value in values:
            raise DataError(f"{where}: label column {name!r} has one class only: {value!r} in every row with a value")


def with_time_bounds(task: PreparationTask, fragments: Sequence[Fragment]) -> PreparationTask:
    """Return the task with where valid and test begin, if rows are split by time.

    Raises:
        DataError: A row has no time, or there are too few different ones.
    """
    column = task.config.split_by_time
    if column is None:
        return task
    with progress("reading times", task.rows, "rows") as advance:
        bounds = find_time_bounds(fragments, column, task.config.split_percent, advance, task.roles)
    text = (
        "%s decides the split and is not a feature; "
        "to use its month, weekday or hour as features, add a copy under another name"
    )
    logger.info(text, column)
    logger.info("split by %s: %s", column, ", ".join(f"{name} {value}" for name, value in bounds.describe().items()))
    return replace(task, bounds=bounds)
