"""A short measured sweep over learning rates: which one to train with on this data, this model, this batch size."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dkan_core.config import ResolvedTrainConfig, TrainConfig, check_config
from dkan_core.data.format.manifest import PreparedData, open_prepared
from dkan_core.data.loading.loader import RowReader, SampledRows, open_split
from dkan_core.data.loading.order import steps_per_epoch
from dkan_core.errors import ConfigError, TrainingError
from dkan_core.training.launcher.run_log import quiet
from dkan_core.training.roles.in_process import train_single
from dkan_core.training.setup.architecture import settle_architecture
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.initial_model import InitialModel, take_initial
from dkan_core.training.setup.model_parallel_checks import undivided
from dkan_core.training.setup.placement import threads_per_worker
from dkan_core.training.state.schedule import Schedule
from dkan_core.utils.progress import progress
from dkan_core.utils.torch_resources import torch_threads

# Multiples of the learning rate that ``train`` would take: powers of two, up to 8 times either way.
FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
# Long enough for warm-up and decay to take effect, short enough that a sweep takes minutes.
STEPS = 150
# The fewest that tell chance from merit.
REPEATS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What the runs of one learning rate ended with, one number per seed; None where the run diverged."""

    learning_rate: float
    factor: float
    """Multiple of the rate that ``train`` would take."""

    average_precision: tuple[float | None, ...]
    """Validation AP of a run's best model."""

    log_loss: tuple[float | None, ...]
    """Validation loss of that model, calibrated."""

    @property
    def diverged(self) -> bool:
        """Whether a run did not end with a model."""
        return None in self.average_precision

    @property
    def mean(self) -> float:
        """Mean AP over the seeds; below every other where a run diverged."""
        return -math.inf if self.diverged else float(np.mean([*self.average_precision]))


@dataclass(frozen=True, kw_only=True)
class TuneResult:
    """What a sweep found."""

    learning_rate: float
    """The rate to train with."""

    noise: float | None
    """Largest difference between two rates' AP that chance explains; None with one run per rate."""

    notes: tuple[str, ...]
    """Warnings and hints about the result."""

    trials: tuple[Trial, ...]
    """One per rate, lowest first."""

    steps: int
    """Steps of each run."""

    rows: int
    """Rows of the train split that were used."""

    batch_size: int
    seeds: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plain form that is saved as JSON."""
        return asdict(self)

    def table(self) -> str:
        """Return Markdown: AP of each rate, how far its seeds are apart, and validation loss."""
        lines = ["| learning rate | factor | AP | spread | log loss | |", "|---:|---:|---:|---:|---:|---|"]
        for trial in self.trials:
            notes = ["current"] * (trial.factor == 1) + ["recommended"] * (trial.learning_rate == self.learning_rate)
            scores = "diverged | |"
            if not trial.diverged:
                spread = float(np.ptp([*trial.average_precision]))
                scores = f"{trial.mean:.4f} | {spread:.4f} | {np.mean([*trial.log_loss]):.4f}"
            lines.append(f"| {trial.learning_rate:g} | {trial.factor:g} | {scores} | {', '.join(notes)} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        return "\n".join([self.table(), "", f"recommended: --learning-rate {self.learning_rate:g}", *notes])

    # At the end of a notebook's cell as well.
    __repr__ = __str__


def tune_learning_rate(
    prepared: str | Path,
    config: TrainConfig | None = None,
    *,
    factors: Sequence[float] = FACTORS,
    steps: int = STEPS,
    repeats: int = REPEATS,
) -> TuneResult:
    """Train briefly with several learning rates, each from the same start, and compare validation AP.

    A run is what ``train`` does in as many steps as it gets, warm-up and cosine included, and on the model and batch
    size that it would choose for the whole data: whole epochs at most, or a part of one, then of a sample of the rows.
    It runs inside this process, whatever ``config.workers`` says.

    The spread over seeds shows which differences are chance: ``noise`` is two standard errors of the difference between
    two rates' mean AP, its variance pooled over the better half of the rates. The best rate is recommended if it beats
    the present one by more than that. Short runs favour higher rates than long ones: a rate above the present one is
    recommended only if the runs are at least half as long as those of ``train``. The same arguments give the same
    result (except with ``max_seconds``).

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote.
        config: Settings; those that are None are chosen as by ``train``.
        factors: Multiples of the rate that ``train`` would take, rounded to three digits.
        steps: Largest number of steps of a run; a run has at least one.
        repeats: Runs of each rate, with seeds from ``config.seed`` on.

    Returns:
        The rate to take, and what each one reached.

    Raises:
        UserError: The data or a setting is wrong.
        TrainingError: Every rate diverged.
    """
    if not factors or not all(0 < factor < math.inf for factor in factors):
        raise ConfigError(f"factors must be positive numbers, got {tuple(factors)}")
    if steps < 1 or repeats < 1:
        raise ConfigError(f"steps and repeats must be at least 1, got {steps} and {repeats}")
    config = config or TrainConfig()
    check_config(TrainConfig, config)
    with (
        open_prepared(prepared, "train", "valid") as (folder, manifest),
        open_split(folder, manifest, "train") as train,
        open_split(folder, manifest, "valid") as valid,
    ):
        alone = replace(undivided(config), workers=1, resume="never")
        alone, initial = take_initial(alone, manifest, prepared, "")
        base = resolve_for(alone, manifest)
        base = settle_architecture(train, manifest, base)
        full_steps = Schedule.from_config(base, train.rows).steps
        head, base = _shortened(train, base, steps)
        train_once = partial(_run, head, valid, manifest, initial=initial)
        trials = _sweep(train_once, base, sorted(set(factors)), repeats)
    steps = Schedule.from_config(base, head.rows).steps
    chosen, noise, notes = _recommend(trials, steps, full_steps)
    return TuneResult(
        learning_rate=chosen.learning_rate,
        noise=noise,
        notes=tuple(notes),
        trials=tuple(trials),
        steps=steps,
        rows=head.rows,
        batch_size=base.batch_size,
        seeds=tuple(base.seed + repeat for repeat in range(repeats)),
    )


def _shortened(train: RowReader, config: ResolvedTrainConfig, steps: int) -> tuple[RowReader, ResolvedTrainConfig]:
    """Return rows and settings of a run of at most ``steps`` steps."""
    epochs = steps // steps_per_epoch(train.rows, config.batch_size)
    if epochs == 0:
        return SampledRows(train, steps * config.batch_size), replace(config, epochs=1)
    return train, replace(config, epochs=min(epochs, config.epochs))


def _sweep(
    train_once: Callable[[ResolvedTrainConfig], tuple[float | None, float | None]],
    base: ResolvedTrainConfig,
    factors: list[float],
    repeats: int,
) -> list[Trial]:
    """Train with every multiple of the base's rate; ``train_once`` returns AP and loss, None where a run diverged."""
    # Three digits: what is recommended is what was tried, and can be typed.
    rates = [float(f"{factor * base.learning_rate:.3g}") for factor in factors]
    configs = [
        [replace(base, learning_rate=rate, seed=base.seed + repeat) for repeat in range(repeats)] for rate in rates
    ]
    trials = []
    with progress("tuning", len(rates) * repeats, "runs") as advance, torch_threads(threads_per_worker(1)):
        for factor, rate, runs in zip(factors, rates, configs, strict=True):
            scores = []
            for config in runs:
                scores.append(train_once(config))
                advance(1)
            precisions, losses = zip(*scores, strict=True)
            trials.append(Trial(learning_rate=rate, factor=factor, average_precision=precisions, log_loss=losses))
            logger.info(
                "learning rate %g: %s", rate, "diverged" if trials[-1].diverged else f"AP {trials[-1].mean:.4f}"
            )
    return trials


def _run(
    train: RowReader,
    valid: RowReader,
    manifest: PreparedData,
    config: ResolvedTrainConfig,
    *,
    initial: InitialModel | None,
) -> tuple[float | None, float | None]:
    """Return validation AP and loss of a run's best model, or None where it diverged."""
    with quiet():
        try:
            result = train_single(train, valid, manifest, config, initial)
        except TrainingError:
            return None, None
    if result.refused:
        return None, None
    return float(result.metrics["average_precision"]), float(result.metrics["log_loss"])


def _recommend(trials: Sequence[Trial], steps: int, full_steps: int) -> tuple[Trial, float | None, list[str]]:
    """Return the rate to train with, how large a difference chance makes, and what to keep in mind.

    Args:
        trials: One per rate, lowest first.
        steps: Steps of each run.
        full_steps: Steps that ``train`` takes at most.
    """
    # Among rates that give the same model, as with an additive one, the nearest to that of train wins.
    best = max(trials, key=lambda trial: (trial.mean, -abs(math.log(trial.factor))))
    if best.diverged:
        raise TrainingError(f"every learning rate diverged, from {trials[0].learning_rate:g} on; check the weights")
    notes = []
    fitting = best
    # A short run ends before a high rate can do harm: only runs about as long as those of train may recommend one.
    if 2 * steps < full_steps and best.factor > 1:
        fitting = max((trial for trial in trials if trial.factor <= 1), key=lambda trial: trial.mean, default=best)
        fitting = best if fitting.diverged else fitting
        notes.append(
            f"{best.learning_rate:g} is best in runs of {steps} steps, but short runs like higher rates than the "
            f"{full_steps} steps of dkan train do; --steps {full_steps} measures those"
        )
    noise = _noise([trial for trial in trials if not trial.diverged])
    level = [trial for trial in trials if noise is not None and abs(fitting.mean - trial.mean) <= noise]
    # Among rates that differ by chance alone, the one that train takes by default wins.
    chosen = next((trial for trial in level if trial.factor == 1), fitting)
    if noise is None:
        notes.append("with one run per rate, differences may be noise; use --repeats 2")
    elif len(level) > 1:
        rates = ", ".join(f"{trial.learning_rate:g}" for trial in level)
        notes.append(f"AP differences up to {noise:.4f} are within noise: {rates} are as good as each other")
    if chosen is best and len(trials) > 1 and best in (trials[0], trials[-1]):
        end, beyond = ("lowest", "lower") if best is trials[0] else ("highest", "higher")
        notes.append(f"the best rate is the {end} of the sweep; try {beyond} ones with --factor")
    return chosen, noise, notes


def _noise(trials: list[Trial]) -> float | None:
    """Return two standard errors of the difference of two means over seeds."""
    # Rates that are far too low or high scatter more: their spread does not apply to good rates.
    better = sorted(trials, key=lambda trial: -trial.mean)[: (len(trials) + 1) // 2]
    scores_TS = np.array([trial.average_precision for trial in better], dtype=np.float64)
    seeds = scores_TS.shape[1]
    return None if seeds < 2 else 2 * math.sqrt(2 / seeds * scores_TS.var(axis=1, ddof=1).mean())
