"""Training in the calling process alone, for small data: it starts no worker, server or evaluator.

Steps, their order, evaluations and the choice of the best model are those of ``train`` with one worker: with the same
rows in the same order and as many threads of torch, the result is the same to the bit.

Shape suffixes: P trainable parameters of the model.
"""

import logging
import os
from dataclasses import dataclass
from typing import Any

import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.format.shard_writer import Arrays
from dkan_core.data.loading.loader import RowReader, run_batches
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import decayed_ranges, flatten
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.initial_model import InitialModel, initial_model
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore, Rules, initialize_store, save_restore_point
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.training.validation.early_stopping import EarlyStopping, describe_best
from dkan_core.training.validation.scorer import Best, Scorer

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
    """One entry per evaluation."""

    refused: int
    """Updates that were not applied because something in them was not finite."""


def train_single(
    train: RowReader,
    valid: RowReader,
    prepared: PreparedData,
    config: ResolvedTrainConfig,
    initial: InitialModel | None = None,
) -> SingleResult:
    """Train in this process and return the best model; torch's random state is left as it was.

    Args:
        train: Shuffled rows to train on.
        valid: Rows to evaluate on; at least one label has both classes there.
        prepared: The manifest of both.
        config: Resolved settings for one worker.
        initial: Model to start from. Default: an untrained one.

    Raises:
        TrainingError: The loss is not finite, whatever the learning rate.
    """
    assert config.workers == 1, f"one process trains, not {config.workers}"
    with torch.random.fork_rng(devices=[]):
        return _Single(train, valid, prepared, config, initial).run()


class _Single:
    """The loop over steps."""

    def __init__(
        self,
        train: RowReader,
        valid: RowReader,
        prepared: PreparedData,
        config: ResolvedTrainConfig,
        initial: InitialModel | None,
    ) -> None:
        self.train = train
        self.config = config
        self.architecture = initial.architecture if initial else choose_architecture(train, prepared, config)
        model = initial_model(self.architecture, prepared, config, initial)
        values_P = flatten(model).numpy()
        self.memory = create_memory(MemoryShape(parameters=len(values_P), workers=1, average=config.ema_decay > 0))
        os.close(self.memory.handle)
        initialize_store(self.memory, values_P)
        rules = Rules.from_config(config, train.rows, decayed_ranges(model, config, train.rows))
        self.schedule = rules.schedule
        self.store = ParameterStore(self.memory, rules)
        self.replica = Replica(model, torch.device(config.device))
        self.gradient_P = self.memory.pushes_WN[0]
        self.replica.bind_gradient_array(self.gradient_P)
        self.scorer = Scorer(self.replica, valid, EarlyStopping(config.patience))
        self.best: Best | None = None
        self.history: list[dict[str, Any]] = []

    def run(self) -> SingleResult:
        """Run every step, or until patience or time is used up."""
        limit = self.config.max_seconds
        due = self.schedule.evaluations_due
        for step, arrays in enumerate(run_batches(self.train, self.config)):
            self._step(step, arrays)
            ledger = self.store.ledger
            time_is_up = limit is not None and ledger.seconds >= limit
            if time_is_up or ledger.step == self.schedule.steps or due(ledger.step) > due(step):
                self._evaluate()
                save_restore_point(self.memory, ledger)
                self.store.commit(ledger.with_reset_counters())
            if time_is_up or self.scorer.early_stopping.exhausted:
                break
        return self._result()

    def _step(self, step: int, arrays: Arrays) -> None:
        """Take one step, as worker and server would."""
        self.replica.load(self.store.state_KP[0])
        loss, weight = self.replica.compute_gradient(arrays, self.config)
        self.replica.copy_buffer(self.replica.gradients_P, self.gradient_P)
        update = WorkerUpdate(
            rank=0,
            lease=step,
            unit=step,
            array_P=self.gradient_P,
            loss=loss,
            weight=weight,
            rows=len(arrays["labels"]),
            staleness=0,
        )
        self.store.apply_updates([update])

    def _evaluate(self) -> None:
        """Score the validation rows; keep the parameters if they are the best."""
        facts = self.store.ledger.facts(self.schedule.steps_per_epoch)
        entry, best = self.scorer.score_parameters(self.store.state_KP[::3], facts)
        self.best = best or self.best
        self.history.append(entry)
        logger.info(
            "epoch %.2f  loss %.4f  AP %.4f  best %.4f",
            entry["epoch"],
            entry["loss"],
            entry["average_precision"],
            entry["best_average_precision"],
        )

    def _result(self) -> SingleResult:
        """Return the best model in memory of its own."""
        assert self.best is not None, "no evaluation gave an average precision"
        facts = self.best.facts
        calibration, metrics = describe_best(
            self.best.scored, self.architecture.labels, self.config, epoch=facts["epoch"], step=facts["step"]
        )
        self.replica.load(self.best.values_P)
        best = TabularFastKAN(self.architecture)
        best.load_state_dict(self.replica.model.state_dict())
        best.calibrate(*calibration)
        return SingleResult(
            model=best.eval(),
            architecture=self.architecture,
            metrics=metrics,
            history=self.history,
            refused=self.store.ledger.refused,
        )
