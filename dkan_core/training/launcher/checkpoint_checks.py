"""Checks that a checkpoint fits the data and settings of a run that is to resume from it."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dkan_core.config import EXECUTION_SETTINGS, ResolvedTrainConfig, TrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.errors import ConfigError, DataError
from dkan_core.model.architecture import ModelConfig, ignoring
from dkan_core.model.parameter_count import count_trained
from dkan_core.training.setup.search_space import SEARCHED_SETTINGS, possible_findings
from dkan_core.training.state.checkpoint_file import STORED_NAMES, Checkpoint
from dkan_core.training.state.ledger import Ledger, add_to_digest
from dkan_core.training.state.schedule import plan_work, rows_after_units
from dkan_core.training.state.shared_memory import MemoryShape

EXTENDING_SETTINGS = ("epochs", "patience", "evaluations_per_epoch")
"""Settings that decide when a run ends and when it is evaluated: a change affects only the steps that follow."""

CHANGEABLE_ON_RESUME = (*EXECUTION_SETTINGS, *EXTENDING_SETTINGS)
"""Settings that may differ in a resumed run; a change of any other would have changed the steps already taken."""


def check_resumable(checkpoint: Checkpoint, config: ResolvedTrainConfig, data: str, rows: int) -> None:
    """Check that a run can resume from a checkpoint.

    Args:
        checkpoint: The checkpoint.
        config: Resolved settings of the run.
        data: Fingerprint of its data.
        rows: Rows of its train split.

    Raises:
        ConfigError: The checkpoint has other data or settings, or more steps than the run.
        DataError: Its ledger contradicts itself.
    """
    where = checkpoint.source
    if checkpoint.data != data:
        raise ConfigError(
            f"{where}: belongs to other data (fingerprint {checkpoint.data[:12]}, here {data[:12]}); "
            "train with that data, or without --resume; to continue with other data, start from that run's model with "
            "--init-from"
        )
    # A setting that did not exist when the checkpoint was written had its default. ``init_from`` is compared first, as
    # other settings follow from it.
    defaults = {"init_from": None, **_plain(TrainConfig())}
    theirs = {**defaults, "architecture_search": config.architecture_search, **checkpoint.settings}
    if theirs["architecture_search"] and not config.architecture_search:
        # A run whose settings name the result of the search, instead of asking for one, takes the same steps.
        theirs |= {
            "architecture_search": False,
            **{name: checkpoint.architecture.get(name) for name in SEARCHED_SETTINGS},
        }
    ours = _plain(config)
    unknown = [name for name in theirs if name not in ours]
    if unknown:
        raise ConfigError(
            f"{where}: was trained with {unknown[0]} {theirs[unknown[0]]}, a setting that this version does not have; "
            "resume with the version that wrote it, or train without --resume"
        )
    expected = comparable_settings(ours)
    for name, value in comparable_settings(theirs).items():
        if name not in CHANGEABLE_ON_RESUME and expected.get(name) != value:
            raise ConfigError(
                f"{where}: was trained with {name} {theirs[name]}, not {ours.get(name)}; "
                "resume with the settings of that run (--config RUN/config.toml), or train without --resume"
            )
    _check_epochs(checkpoint.ledger, config, rows, where)
    before = Ledger()
    for index, each in enumerate(checkpoint.pending):
        _check_ledger(each.ledger, config, rows, f"{where}: pending.{index}", before)
        before = each.ledger
    _check_ledger(checkpoint.ledger, config, rows, where, before)


def comparable_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with one name for strategies that take the same steps: a run may continue without its GPU.

    >>> comparable_settings({"strategy": "single"}), comparable_settings({"strategy": "ring"})
    ({'strategy': 'parameter-server'}, {'strategy': 'ring'})
    """
    # With one worker, both take the same steps; with more, or in another mode, those settings differ.
    strategy = settings["strategy"]
    return {**settings, "strategy": "parameter-server" if strategy == "single" else strategy}


def _plain(config: TrainConfig) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return plain


def _check_epochs(ledger: Ledger, config: ResolvedTrainConfig, rows: int, where: str) -> None:
    """Raise ConfigError if a checkpoint has more steps than the run."""
    plan = plan_work(config, rows)
    if ledger.step > plan.epochs * plan.steps_per_epoch:
        done = math.ceil(ledger.step / plan.steps_per_epoch)
        raise ConfigError(
            f"epochs {config.epochs}: {where} has done {ledger.step} steps, which is into epoch {done}; "
            f"give --epochs {done} or more, or train without --resume"
        )


def _check_ledger(ledger: Ledger, config: ResolvedTrainConfig, rows: int, where: str, before: Ledger) -> None:
    """Check that a ledger belongs to a run with these settings: all its counts follow from the work units done.

    Args:
        ledger: The ledger to check.
        config: Resolved settings.
        rows: Rows of the train split.
        where: Name of the ledger in messages.
        before: An earlier ledger of the run, already checked.
    """
    plan = plan_work(config, rows)
    if not before.units_done <= ledger.units_done <= plan.count:
        raise DataError(
            f"{where}: ledger.ranges: expected {before.units_done} to {plan.count}, got {ledger.units_done}"
        )
    expected = {
        "step": plan.step_after_units(ledger.units_done),
        "next_unit": ledger.units_done,
        "rows": rows_after_units(
            plan, ledger.units_done, rows=rows, batch_size=config.batch_size, weights=config.slice_weights
        ),
        "digest": add_to_digest(before.digest, range(before.units_done, ledger.units_done)),
    }
    for name, value in expected.items():
        found = getattr(ledger, name)
        if found != value:
            raise DataError(
                f"{where}: ledger.{STORED_NAMES.get(name, name)}: expected {value} after {ledger.units_done} "
                f"work units, got {found}"
            )


def check_architecture(checkpoint: Checkpoint, prepared: PreparedData, config: ResolvedTrainConfig) -> ModelConfig:
    """Return the architecture of a checkpoint, after a check that it fits the data and the checkpoint's state.

    Raises:
        DataError: The architecture does not fit.
    """
    where = f"{checkpoint.source}: architecture"
    architecture = ModelConfig.from_dict(checkpoint.architecture, where)
    # Everything follows from data and settings, except what was chosen from the rows.
    chosen = architecture.hidden, architecture.num_centers
    found = (each for each in possible_findings(config) if (each.hidden, each.num_centers) == chosen)
    whole = ModelConfig.for_data(
        prepared,
        next(found, config),
        one_hot_groups=architecture.one_hot_groups,
        missing=architecture.missing,
        additive=architecture.additive,
        sketch_seed=architecture.sketch_seed,
    )
    expected = ignoring(whole, architecture.ignored_features).to_dict()
    for name, value in architecture.to_dict().items():
        if value != expected[name]:
            raise DataError(f"{where}.{name}: expected {expected[name]} for this data and settings, got {value}")
    parameters = count_trained(architecture)
    shape = MemoryShape.from_config(config, parameters)
    size = (shape.whole_state, parameters)
    arrays = {"state": checkpoint.state_KP}
    arrays |= {f"pending.{index}": each.state_KP for index, each in enumerate(checkpoint.pending)}
    for name, array in arrays.items():
        if array.shape != size:
            raise DataError(f"{checkpoint.source}: tensor {name}: expected shape {size}, got {array.shape}")
    if len(checkpoint.pending) > shape.snapshot_slots:
        raise DataError(f"{checkpoint.source}: pending: expected at most {shape.snapshot_slots} snapshots")
    return architecture
