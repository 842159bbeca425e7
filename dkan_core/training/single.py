"""Training inside the calling process, on rows that need no worker, server or evaluator of their own.

The steps, their order, the evaluations and the choice of the best model are those of ``train`` with one worker: the
same rows in the same order, and as many threads of torch, give the same bits.

Shape suffixes: P trained numbers of the model.
"""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dkan_core.config import TrainConfig
from dkan_core.data.loader import RowReader, run_batches
from dkan_core.data.manifest import PreparedData
from dkan_core.metrics import macro_average_precision
from dkan_core.model.tabular import ModelConfig, TabularFastKAN
from dkan_core.prediction import score_split
from dkan_core.training.architecture import choose_architecture
from dkan_core.training.optimizer import FlatAdamW
from dkan_core.training.schedule import Pace, Schedule
from dkan_core.training.selection import Selection, describe_best
from dkan_core.training.step import bind, decayed_ranges, flatten, untrained_model, worker_step

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SingleResult:
    """What ``train_single`` ended with."""

    model: TabularFastKAN
    """The best model by validation AP, on the CPU, ready to score."""

    architecture: ModelConfig
    """That of the model."""

    metrics: dict[str, Any]
    """Its metrics on validation, as a model folder holds them."""

    history: list[dict[str, Any]]
    """One entry an evaluation."""


def train_single(train: RowReader, valid: RowReader, prepared: PreparedData, config: TrainConfig) -> SingleResult:
    """Train in this process and keep the best model in memory; torch's random state is left as it was.

    Args:
        train: Rows to learn from, shuffled.
        valid: Rows to evaluate on; at least one label has both classes there.
        prepared: What is known about them.
        config: Resolved settings for one worker.

    Raises:
        TrainingError: The loss is no number any more.
    """
    assert config.workers == 1, f"one process trains, not {config.workers}"
    # Seeding a step seeds every GPU that this process uses.
    uses_cuda = config.device == "cuda" or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if uses_cuda else []):
        return _Single(train, valid, prepared, config).run()


class _Single:
    """The loop over steps."""

    def __init__(self, train: RowReader, valid: RowReader, prepared: PreparedData, config: TrainConfig) -> None:
        self.train, self.valid, self.config = train, valid, config
        self.device = torch.device(config.device)
        self.architecture = choose_architecture(train, prepared, config)
        self.model = untrained_model(self.architecture, prepared, config).to(self.device)
        self.values_P = flatten(self.model).cpu().numpy()
        self.gradients_P = np.zeros_like(self.values_P)
        # On the CPU the model lives in these arrays themselves; copies between them then do nothing.
        self.shared_values_P, self.shared_gradients_P = map(torch.from_numpy, (self.values_P, self.gradients_P))
        self.model_values_P = self.shared_values_P.to(self.device)
        self.model_gradients_P = self.shared_gradients_P.to(self.device)
        bind(self.model, self.model_values_P, self.model_gradients_P)
        self.optimizer = FlatAdamW(self.values_P, decayed=decayed_ranges(self.model, config, train.rows))
        self.schedule = Schedule.of(config, train.rows)
        self.selection = Selection(config.patience)
        self.history: list[dict[str, Any]] = []
        self.best_P = self.values_P
        self.metrics: dict[str, Any] = {}

    def run(self) -> SingleResult:
        """Run every step, or until patience or time is used up."""
        pace = Pace(self.schedule, self.config.max_seconds)
        for step, arrays in enumerate(run_batches(self.train, self.config)):
            loss, weight = worker_step(self.model, arrays, self.device, self.config, step=step, rank=0)
            self._apply(step, weight)
            pace.add(loss=loss, weight=weight, rows=len(arrays["labels"]))
            done, time_is_up = step + 1, pace.time_is_up
            if time_is_up or done == self.schedule.steps or self.schedule.is_evaluated(done):
                self._evaluate(pace.facts(done))
                pace.restart()
            if time_is_up or self.selection.exhausted:
                break
        return SingleResult(
            model=self._best(), architecture=self.architecture, metrics=self.metrics, history=self.history
        )

    def _apply(self, step: int, weight: float) -> None:
        if weight == 0:
            return
        self.shared_gradients_P.copy_(self.model_gradients_P)
        self.optimizer.step(self.gradients_P, rate=self.schedule.learning_rate(step))
        self.model_values_P.copy_(self.shared_values_P)

    def _evaluate(self, facts: dict[str, float]) -> None:
        """Score the validation rows; keep the parameters if they are the best."""
        self.model.eval()
        scored = score_split(self.model, self.valid, self.device)
        self.model.train()
        value = macro_average_precision(scored.labels_NL, scored.log_odds_NL)
        better = self.selection.take(value)
        if better:
            self.best_P = self.values_P.copy()
            self.calibration, self.metrics = describe_best(
                scored, self.architecture.labels, self.config, epoch=facts["epoch"], step=facts["step"]
            )
        best = self.selection.best
        self.history.append({**facts, "average_precision": value, "best_average_precision": best, "best": better})
        logger.info("epoch %.2f  loss %.4f  AP %.4f  best %.4f", facts["epoch"], facts["loss"], value, best)

    def _best(self) -> TabularFastKAN:
        """Return the best model in memory of its own."""
        assert self.metrics, "no evaluation gave an average precision"
        self.model_values_P.copy_(torch.from_numpy(self.best_P))
        best = TabularFastKAN(self.architecture)
        best.load_state_dict(self.model.state_dict())
        best.calibrate(*self.calibration)
        return best.eval()
