"""``--dry-run`` describes what a command would do, after the checks that it makes before writing anything."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dkan_core.utils.messages import counted, one_line, some_of

if TYPE_CHECKING:
    from dkan_core.config import PrepareConfig, ResolvedTrainConfig, TrainConfig
    from dkan_core.data.format.manifest import PreparedData
    from dkan_core.data.preparation.task import PreparationTask
    from dkan_core.data.source.roles import ColumnRoles
    from dkan_core.training.communication.rendezvous import TorchRun

# Columns of each kind to show.
SHOWN = 8


def describe_preparation(sources: Sequence[str], out: str, config: "PrepareConfig", *, overwrite: bool) -> str:
    """Return what ``dkan prepare`` would do; settings and schemas are checked, values are not.

    Raises:
        UserError: It would be refused.
    """
    from dkan_core.data.format.manifest import CONTENTS, OUTPUTS
    from dkan_core.data.preparation.task import find_task
    from dkan_core.utils.storage.outputs import check_free

    check_free(out, ours=OUTPUTS, overwrite=overwrite, contents=CONTENTS)
    task = find_task(list(sources), config)
    return _described_task(task, f"would prepare {_described_files(task)} into {out}")


def describe_append(sources: Sequence[str], prepared: str, *, like: str | None = None, drop: Sequence[str] = ()) -> str:
    """Return what ``dkan prepare --append`` would do; settings and schemas are checked, values are not.

    Raises:
        UserError: It would be refused.
    """
    from dkan_core.data.preparation.append import find_new_rows
    from dkan_core.utils.storage.shared_folder import SharedFolder

    earlier, task = find_new_rows(list(sources), SharedFolder(prepared), like, drop)
    rows = sum(split.rows for split in earlier.splits.values())
    return _described_task(task, f"would add {_described_files(task)} to {prepared}, which has {counted(rows, 'row')}")


def _described_files(task: "PreparationTask") -> str:
    size = sum(file.bytes for file in task.files)
    return f"{counted(task.rows, 'row')} of {counted(len(task.files), 'file')} ({size / 1e6:,.1f} MB)"


def _described_task(task: "PreparationTask", action: str) -> str:
    from dkan_core.data.source.split_hints import split_warnings
    from dkan_core.data.source.split_rule import describe_split

    lines = [
        action,
        f"labels: {', '.join(_label_text(name, task.roles.positive) for name in task.roles.labels)}",
        *_feature_lines(task.roles),
        describe_split(task.split_rule),
        *(f"warning: {text}" for text in split_warnings(task.hints)),
    ]
    return "\n".join(map(one_line, lines))


def _label_text(name: str, positive: Mapping[str, str]) -> str:
    return f"{name} (1 where it is {positive[name]!r})" if name in positive else name


def _feature_lines(roles: "ColumnRoles") -> list[str]:
    """Return the names of the features by kind; dates, times and IDs are named only where there are some."""
    kinds = {"numeric features": roles.numeric, "categorical features": roles.categorical}
    rarer = {"dates and times": roles.times, "lists of IDs": roles.sparse}
    kinds |= {kind: names for kind, names in rarer.items() if names}
    return [f"{kind} ({len(names)}): {_listed(names)}" for kind, names in kinds.items()]


def _described_model(config: "ResolvedTrainConfig") -> str:
    if not config.hidden:
        return f"an additive model of {counted(config.members, 'member')}"
    widths = " x ".join(map(str, config.hidden))
    maybe = ", unless trials find another architecture that helps" if config.architecture_search else ""
    return f"{counted(config.members, 'network')} of {widths} hidden units{maybe}"


def _listed(names: Sequence[str]) -> str:
    return some_of(names, SHOWN) or "none"


def describe_training(prepared: str, out: str, config: "TrainConfig", *, overwrite: bool) -> str:
    """Return what ``dkan train`` would do; reads no rows, but the model to start from and the checkpoint to resume.

    Raises:
        UserError: It would be refused.
    """
    from dkan_core.training.launcher.resuming import find_starting_point
    from dkan_core.training.state.schedule import Schedule

    manifest, found = resolve_training(prepared, out, config, overwrite=overwrite)
    find_starting_point(out, found, manifest, overwrite=overwrite)
    rows = manifest.splits["train"].rows
    steps = Schedule.from_config(found, rows).steps
    lines = [
        f"would train on {counted(rows, 'row')}, validate on {manifest.splits['valid'].rows:,}, and write to {out}",
        f"labels: {_listed(manifest.labels)}; {counted(len(manifest.preprocessor.columns), 'column')}",
        f"{_described_model(found)}; "
        f"{counted(found.epochs, 'epoch')} of batches of {found.batch_size:,}: {counted(steps, 'step')}; "
        f"learning rate {found.learning_rate:.2g}",
        f"strategy {found.strategy}, {counted(found.workers, 'worker')} on {found.device}",
    ]
    return "\n".join(map(one_line, lines))


def resolve_training(
    prepared: str, out: str, config: "TrainConfig", torchrun: "TorchRun | None" = None, *, overwrite: bool
) -> "tuple[PreparedData, ResolvedTrainConfig]":
    """Return the manifest and the settings that a run would begin with, after the checks before a run.

    Raises:
        UserError: It would be refused.
    """
    from dkan_core.data.format.manifest import open_prepared
    from dkan_core.training.launcher.run_folder import check_initial_stays, check_run_folder
    from dkan_core.training.setup.defaults import resolve_for
    from dkan_core.training.setup.initial_model import take_initial
    from dkan_core.training.state.checkpoint_store import CHECKPOINTS, OWN_CHECKPOINTS

    check_run_folder(out, config.checkpoint_uri, overwrite=overwrite or config.resume in OWN_CHECKPOINTS)
    check_initial_stays(out, config.init_from)
    with open_prepared(prepared, "train", "valid") as (_, manifest):
        asked, _ = take_initial(config, manifest, prepared, f"{out}/{CHECKPOINTS}")
        return manifest, resolve_for(asked, manifest, torchrun)
