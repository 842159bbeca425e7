"""Training in the calling process, for small data: without worker, server and evaluator processes.

Steps, evaluations and the choice of the best model are those of ``train`` with one worker: with the same rows in the
same order, and the same number of torch threads, the result is bit-identical.

Shape suffixes: P trainable parameters of the model.
"""

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import RowReader, SliceBatches
from dkan_core.model.base import TabularModel
from dkan_core.training.compute.device_steps import make_local_steps
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.training.roles.own_updates import OwnSteps
from dkan_core.training.roles.training_loop import TrainingLoop
from dkan_core.training.setup.code_factors import start_at_factors
from dkan_core.training.setup.initial_model import InitialModel, initial_model, starting_architecture
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.parameter_store import ParameterStore, UpdateRules, initialize_store
from dkan_core.training.state.refit_choices import RefitChoices
from dkan_core.training.state.shared_memory import EvaluatorProgress, MemoryShape, create_memory
from dkan_core.training.state.snapshots import scored_values
from dkan_core.training.state.stopwatch import Stopwatch
from dkan_core.training.validation.finishing import Finisher
from dkan_core.training.validation.scorer import BestParameters, ValidationScorer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SingleResult:
    """Result of ``train_single``."""

    model: TabularModel
    """The best model by validation AP, on the CPU, ready to score."""

    metrics: dict[str, Any]
    """Its metrics on validation, as a model folder holds them."""

    history: list[dict[str, Any]]
    """One entry per evaluation."""

    ended: str
    """Why it ended: one of ``ENDINGS``."""

    refused: int
    """Updates that were refused because they were not finite."""


def train_single(
    train: RowReader,
    valid: RowReader,
    prepared: PreparedData,
    config: ResolvedTrainConfig,
    initial: InitialModel | None = None,
    on_evaluation: Callable[[Mapping[str, Any]], None] | None = None,
    choices: RefitChoices | None = None,
) -> SingleResult:
    """Train in this process and return the best model; torch's random state is left as it was.

    Args:
        train: Shuffled rows to train on.
        valid: Rows to evaluate on; at least one label has both classes there.
        prepared: The manifest of both.
        config: Resolved settings for one worker.
        initial: Model to start from. Default: an untrained one.
        on_evaluation: Called with each entry of the history. Default: no call.
        choices: Choices of the first training, if this is a refit; its result is the last model, not the best.

    Raises:
        TrainingError: The loss is not finite, whatever the learning rate.
    """
    assert config.workers == 1, f"one process trains, not {config.workers}"
    return _Single(train, valid, prepared, config, initial, on_evaluation, choices).run()


@dataclass
class _Single:
    """A training loop that is its own worker and evaluator; the arguments are those of ``train_single``."""

    train: RowReader
    valid: RowReader
    prepared: PreparedData
    config: ResolvedTrainConfig
    initial: InitialModel | None
    on_evaluation: Callable[[Mapping[str, Any]], None] | None
    choices: RefitChoices | None

    def __post_init__(self) -> None:
        # There is no other process to synchronize with, whatever strategy the settings name.
        config = self.config = replace(self.config, strategy="single", mode="sync", sync_interval=1)
        train, prepared, initial = self.train, self.prepared, self.initial
        architecture = starting_architecture(train, prepared, config, initial, self.choices)
        model = initial_model(architecture, prepared, config, initial)
        if initial is None:
            start_at_factors(model, train, prepared)
        values_P = flatten(model).numpy()
        memory = create_memory(MemoryShape.from_config(config, len(values_P)))
        # The mapping stays valid, and no other process opens the file.
        os.close(memory.handle)
        initialize_store(memory, values_P, initial.moments_2P if initial else None)
        rules = UpdateRules.from_config(config, train.rows, parameter_groups(model, config, train.rows))
        self.store = ParameterStore(memory, rules, torch.get_num_threads())
        self.replica = Replica(model, torch.device(config.device), config.kernel)
        self.scorer = ValidationScorer(self.replica, self.valid, config.patience, self.choices)
        self.best: BestParameters | None = None
        self.history: list[dict[str, Any]] = []

    def run(self) -> SingleResult:
        """Run every step, or until patience or time is used up."""
        with closing(SliceBatches(self.train, self.config, 0)) as slices:
            source = OwnSteps(self.store, make_local_steps(self.replica, slices, self.store.rules), Stopwatch())
            TrainingLoop(source, self._evaluate).run()
        return self._result()

    def _evaluate(self, ledger: Ledger, _: bool) -> bool:
        """Score the committed state and keep it if it is the best, unless patience is used up already."""
        if self.scorer.skips(final=bool(ledger.ended)):
            return True
        values_VP = scored_values(self.store.state_KP, self.store.memory.shape)
        figures = ledger.figures(self.store.rules.schedule.steps_per_epoch)
        entry, best = self.scorer.score_parameters(values_VP, figures)
        self.best = best or self.best
        self.history.append(entry)
        if self.on_evaluation is not None:
            self.on_evaluation(entry)
        logger.info(
            "epoch %.2f  loss %.4f  AP %.4f  best %.4f",
            entry["epoch"],
            entry["loss"],
            entry["average_precision"],
            entry["best_average_precision"],
        )
        self.store.memory.evaluated.write(EvaluatorProgress(exhausted=int(self.scorer.early_stopping.exhausted)))
        return True

    def _result(self) -> SingleResult:
        """Return the finished copy of the best model."""
        assert self.best is not None, "no evaluation gave an average precision"
        self.replica.load(self.best.values_P)
        finisher = Finisher(lambda: self.train, self.valid, self.prepared, self.config, self.choices)
        model, metrics = finisher.finish(self.replica.model, self.best)
        return SingleResult(
            model=model,
            metrics=metrics,
            history=self.history,
            ended=self.store.ledger.ending,
            refused=self.store.ledger.refused,
        )
