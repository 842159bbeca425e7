"""What a command says before it does anything: labels to choose from, and what a dry run would do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkan_core.errors import ConfigError
from dkan_core.utils.hints import counted, some_of

if TYPE_CHECKING:
    from dkan_core.config import PrepareConfig, ResolvedTrainConfig, TrainConfig

# Rows of the first file that are looked at for labels; and how many columns are shown.
LOOKED_AT, SHOWN = 20_000, 8


def settings_with_label(settings: dict[str, Any], config: Path | None, sources: Sequence[str]) -> dict[str, Any]:
    """Return the settings; without a label, tell which columns could be one.

    Args:
        settings: The options that were given.
        config: A file with further ones; it may name the label.
        sources: Files, folders, globs or fsspec URIs.

    Raises:
        ConfigError: No label is named, nor a model that knows it.
    """
    if config is not None or settings.get("label") or settings.get("like"):
        return settings
    candidates = label_candidates(sources)
    found = f"; columns of two values: {', '.join(candidates)}" if candidates else ""
    raise ConfigError(f"label: name at least one label column with --label{found}")


def label_candidates(sources: Sequence[str]) -> list[str]:
    """Return the columns of the first file that hold two values in its first rows: 0 and 1 with their share, or text.

    Args:
        sources: Files, folders, globs or fsspec URIs.

    Raises:
        DataError: There is no such file, or it cannot be read.
    """
    import shlex

    import pyarrow as pa
    import pyarrow.compute as pc

    from dkan_core.data.source.column_types import column_types, is_number, is_text
    from dkan_core.data.source.columns import open_parquet, read_batches
    from dkan_core.data.source.files import find_parquet

    path = find_parquet(sources)[0]
    shown = path.rstrip("/").rpartition("/")[2]
    types = column_types(path, open_parquet(path).schema_arrow)
    names = [name for name, kind in types.items() if is_number(kind) or is_text(kind) or pa.types.is_boolean(kind)]
    found: list[str] = []
    texts: list[str] = []
    for batch in read_batches(path, names):
        for name, column in zip(names, batch.slice(0, LOOKED_AT).columns, strict=True):
            if is_text(column.type):
                pair = pc.unique(column.drop_null()).to_pylist()
                texts += [f"{name} (--positive {' or '.join(map(shlex.quote, pair))})"] * (len(pair) == 2)
                continue
            values = column.cast(pa.float64(), safe=False).drop_null()
            pair = sorted(pc.unique(values).to_pylist()) if len(pc.unique(values)) == 2 else []
            if pair == [0.0, 1.0]:
                found.append(f"{name} ({pc.mean(values).as_py():.1%} are 1 in {shown})")
            elif pair:
                texts.append(f"{name} (--positive {' or '.join(f'{value:g}' for value in pair)})")
        break
    found += texts
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return found[:SHOWN] + more


def describe_preparation(sources: Sequence[str], out: str, config: "PrepareConfig", *, overwrite: bool) -> str:
    """Return what ``dkan prepare`` would do; schemas are checked, rows are not read.

    Args:
        sources: Files, folders, globs or fsspec URIs.
        out: Where the result would go.
        config: Settings.
        overwrite: Whether an earlier result may be replaced.

    Raises:
        UserError: It would be refused.
    """
    from dkan_core.data.format.manifest import OUTPUTS
    from dkan_core.data.preparation.prepare import find_task
    from dkan_core.data.source.split_hints import describe_split, split_warnings
    from dkan_core.utils.storage.outputs import check_free

    check_free(out, ours=OUTPUTS, overwrite=overwrite)
    task, _ = find_task(list(sources), config)
    size = sum(file.bytes for file in task.files)
    rule = task.split_rule
    split = f"Split by time: the earliest rows by {rule['column']} are train." if rule["by"] == "time" else None
    lines = [
        f"would prepare {counted(task.rows, 'row')} of {counted(len(task.files), 'file')} "
        f"({size / 1e6:,.1f} MB) into {out}",
        f"labels: {', '.join(_label_text(name, task.schema.positive) for name in task.schema.labels)}",
        f"numeric features ({len(task.schema.numeric)}): {_listed(task.schema.numeric)}",
        f"categorical features ({len(task.schema.categorical)}): {_listed(task.schema.categorical)}",
        split or describe_split(rule),
        *(f"warning: {text}" for text in split_warnings(task.hints)),
    ]
    return "\n".join(lines)


def _label_text(name: str, positive: Mapping[str, str]) -> str:
    return f"{name} (1 where it is {positive[name]!r})" if name in positive else name


def _described_model(config: "ResolvedTrainConfig") -> str:
    if not config.hidden:
        return f"an additive model of {counted(config.members, 'member')}"
    widths = " x ".join(map(str, config.hidden))
    maybe = ", unless trials find another architecture that helps" if config.architecture_search else ""
    return f"{counted(config.members, 'network')} of {widths} hidden units{maybe}"


def _listed(names: Sequence[str]) -> str:
    return some_of(names, SHOWN) or "none"


def describe_training(prepared: str, out: str, config: "TrainConfig", *, overwrite: bool) -> str:
    """Return what ``dkan train`` would do; of the data only the manifest is read.

    Args:
        prepared: Folder or URI that ``dkan prepare`` wrote.
        out: Where the run would go.
        config: Settings.
        overwrite: Whether an earlier run may be replaced.

    Raises:
        UserError: It would be refused.
    """
    from dkan_core.data.format.manifest import open_prepared
    from dkan_core.training.launcher.run_folder import check_run_folder
    from dkan_core.training.setup.defaults import resolve_for
    from dkan_core.training.state.schedule import Schedule

    check_run_folder(out, overwrite=overwrite or config.resume != "never")
    with open_prepared(prepared, "train", "valid") as (_, manifest):
        rows = manifest.splits["train"].rows
        found = resolve_for(config, manifest)
    steps = Schedule.from_config(found, rows).steps
    return "\n".join(
        [
            f"would train on {counted(rows, 'row')}, validate on {manifest.splits['valid'].rows:,}, and write to {out}",
            f"labels: {_listed(manifest.labels)}; {counted(len(manifest.preprocessor.columns), 'column')}",
            f"{_described_model(found)}; "
            f"{found.epochs} epoch{'s' * (found.epochs > 1)} of batches of {found.batch_size:,}: {steps:,} steps; "
            f"learning rate {found.learning_rate:.2g}",
            f"strategy {found.strategy}, {found.workers} worker{'s' * (found.workers > 1)} on {found.device}",
        ]
    )
