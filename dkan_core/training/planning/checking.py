"""Comparison of a plan with short runs of ``train``."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.order import steps_per_epoch
from dkan_core.training.launcher.run_log import quiet
from dkan_core.training.launcher.train import train
from dkan_core.training.planning.formulas import SCHEMES, Prediction
from dkan_core.utils.storage.scratch import scratch_folder

# A run takes whole epochs with at least this many steps in total, unless that takes longer than this time.
MIN_STEPS, SECONDS = 100, 5.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PlanCheck:
    """One line of a plan, and what a run did."""

    scheme: str
    workers: int
    predicted: float
    """Rows per second."""

    measured: float


def check_plan(
    data: Path, config: ResolvedTrainConfig, interval: int, predictions: Sequence[Prediction], most: int
) -> list[PlanCheck]:
    """Train shortly wherever this machine has the devices for it."""
    rows = read_manifest(data).splits["train"].rows
    schemes = {scheme.name: scheme for scheme in SCHEMES}
    checked = []
    for each in predictions:
        if each.workers > most:
            continue
        scheme = schemes[each.scheme]
        devices = "cpu" if config.device == "cpu" else "cuda"
        settings = replace(
            config,
            strategy=scheme.strategy,
            mode=scheme.mode,
            workers=each.workers,
            device=devices,
            eval_device="auto",
            sync_interval=interval if scheme.has_local_steps else 1,
            epochs=-(-MIN_STEPS // steps_per_epoch(rows, config.batch_size)),
            evaluations_per_epoch=1,
            patience=MIN_STEPS,
            # Whole epochs at first, but a large data set must not turn a check into a training run.
            max_seconds=SECONDS,
            checkpoint_uri=None,
            tensorboard=False,
            tracking="none",
        )
        measured = rows_per_second(data, settings)
        checked.append(
            PlanCheck(scheme=scheme.name, workers=each.workers, predicted=each.rows_per_second, measured=measured)
        )
        logger.info("%s, %d workers: %.0f rows/s", scheme.name, each.workers, measured)
    return checked


def rows_per_second(data: Path, config: ResolvedTrainConfig) -> float:
    """Return the speed of a run from the end of its first round on, when its clock starts."""
    with scratch_folder() as folder, quiet():
        facts = train(data, folder / "run", config).metrics["training"]
    first = config.batch_size * config.sync_interval
    return float(max(0, facts["ledger"]["rows"] - first) / max(1e-9, facts["seconds"]))
