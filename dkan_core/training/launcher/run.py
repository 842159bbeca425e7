"""One run from start to end: its memory, filled from the seed or from a checkpoint, and its processes."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dkan_core.config import ResolvedTrainConfig
from dkan_core.config.strategies import ONE_NODE
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import ConfigError
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.tracking.tracker import Tracker
from dkan_core.training.communication.process_group import local_rendezvous, serve_loopback_store
from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.compute.flat_model import flatten
from dkan_core.training.launcher.checkpoint_checks import check_architecture
from dkan_core.training.launcher.checkpoint_writer import CheckpointWriter
from dkan_core.training.launcher.fork_server_client import ForkServer
from dkan_core.training.launcher.remaining_work import waiting_snapshots, with_ending
from dkan_core.training.launcher.reporting import Reporter, TimeReader
from dkan_core.training.launcher.run_folder import LOGS
from dkan_core.training.launcher.run_log import EndLogger
from dkan_core.training.launcher.supervisor import Supervisor
from dkan_core.training.launcher.torchrun import Ranks
from dkan_core.training.roles.process_spec import ProcessSpec, process_names
from dkan_core.training.setup.code_factors import start_at_factors
from dkan_core.training.setup.initial_model import InitialModel, initial_model, starting_architecture
from dkan_core.training.setup.parameter_groups import parameter_groups
from dkan_core.training.setup.placement import Placement, threads_per_worker
from dkan_core.training.state.checkpoint_file import Checkpoint, run_facts
from dkan_core.training.state.checkpoint_store import best_path
from dkan_core.training.state.ledger import Ledger, add_to_digest
from dkan_core.training.state.parameter_store import initialize_store, save_restore_point
from dkan_core.training.state.refit_choices import RefitChoices
from dkan_core.training.state.schedule import Schedule, plan_work
from dkan_core.training.state.shared_memory import MemoryShape, SharedMemory, create_memory
from dkan_core.training.state.snapshots import newest_snapshot, republish_snapshot
from dkan_core.utils.file_names import METRICS, MODEL_FOLDER
from dkan_core.utils.messages import counted
from dkan_core.utils.resources import available_memory
from dkan_core.utils.torch_resources import torch_threads

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Data, settings and state of a training before its first step, once its settings are resolved."""

    run: str
    """Path or URI of the run."""

    data: Path
    """Prepared folder."""

    manifest: PreparedData
    """Its manifest."""

    folder: Path
    """Local folder of the run."""

    config: ResolvedTrainConfig
    checkpoints: str
    """Folder or URI for checkpoints."""

    clears_checkpoints: bool
    """Whether the checkpoints that are there are another run's, which this one replaces."""

    checkpoint: Checkpoint | None
    """Checkpoint to resume from, if any."""

    initial: InitialModel | None
    """Model to start from, where there is no checkpoint. None: an untrained one."""

    ranks: Ranks | None = None
    """The other launchers, under torchrun."""

    choices: RefitChoices | None = None
    """Choices of the first training, where this is a refit."""

    @property
    def train_rows(self) -> int:
        """Rows of the train split."""
        return self.manifest.splits["train"].rows

    @property
    def placement(self) -> Placement:
        """Where its processes compute."""
        return Placement.from_config(self.config, self.ranks.torchrun if self.ranks else None)


@dataclass(frozen=True)
class Outcome:
    """Result of a run."""

    history: list[dict[str, Any]]
    """One entry per evaluation."""

    ledger: Ledger
    replaced: dict[str, int]
    """Processes that took the place of dead ones, by role."""

    interrupted: bool = False
    """Whether Ctrl-C was pressed, be it after the last step, when it no longer decides why the run ends."""


@contextmanager
def open_run(start: RunStart, architecture: ModelConfig) -> Iterator["Run"]:
    """Yield a run that is ready to be executed: its memory filled, its wake-ups and its rendezvous made.

    Raises:
        ConfigError: The run needs more memory than there is.
    """
    config, checkpoint, ranks = start.config, start.checkpoint, start.ranks
    # A checkpoint already contains what became of the initial model.
    model = initial_model(architecture, start.manifest, config, start.initial if checkpoint is None else None)
    if start.initial is None and checkpoint is None:
        with open_split(start.data, start.manifest, "train") as reader, torch_threads(threads_per_worker(1)):
            start_at_factors(model, reader, start.manifest)
    rows = start.train_rows
    with ExitStack() as stack:
        memory = _filled_memory(stack, start, model)
        rendezvous = ranks.rendezvous(config) if ranks else None
        if ranks is None and config.strategy not in ONE_NODE:
            store = serve_loopback_store(config.exchange_timeout)  # it is there until this block ends
            rendezvous = local_rendezvous(store, config)
        template = ProcessSpec(
            role="",
            prepared=str(start.data),
            fingerprint=start.manifest.fingerprint,
            run=str(start.folder),
            config=config,
            model=architecture.to_dict(),
            train_rows=rows,
            groups=parameter_groups(model, config, rows),
            logs=str(start.folder / LOGS),
            best=str(best_path(start.folder, start.checkpoints)),
            shape=memory.shape,
            memory=memory.handle,
            earlier_origins=_earlier_origins(start),
            choices=start.choices,
            republished=newest_snapshot(memory).number,
            rendezvous=rendezvous,
            wakeups={name: os.pipe() for name in process_names(config, ranks=1 if ranks else None)},
        )
        del model  # the run has no use for a second copy of its parameters
        for pair in template.wakeups.values():
            stack.callback(Wakeup(pair).close)
        facts = run_facts(start.manifest.fingerprint, template.model, config)
        if ranks is not None:
            ranks.publish_value("facts", facts)
        yield Run(start, memory, template, facts)


def _earlier_origins(start: RunStart) -> tuple[dict[str, Any], ...]:
    """Return the origins of the initial model, or of the best model in the checkpoint: the initial one may be gone."""
    if start.initial is not None:
        return start.initial.origins
    metrics = json.loads(start.checkpoint.model.get(METRICS, "{}")) if start.checkpoint is not None else {}
    return tuple(metrics.get("earlier_origins", []))


def architecture_of_run(start: RunStart) -> ModelConfig:
    """Return the architecture of the model that a run trains.

    Raises:
        DataError: The checkpoint does not fit the data.
    """
    if start.checkpoint is not None:
        return check_architecture(start.checkpoint, start.manifest, start.config)
    with open_split(start.data, start.manifest, "train") as reader, torch_threads(threads_per_worker(1)):
        return starting_architecture(reader, start.manifest, start.config, start.initial, start.choices)


def _filled_memory(stack: ExitStack, start: RunStart, model: TabularModel) -> SharedMemory:
    """Return shared memory with the state to begin with; its handle is closed with the stack."""
    values_P = flatten(model).numpy()
    shape = MemoryShape.from_config(start.config, len(values_P))
    check_shared_memory(shape)
    memory = create_memory(shape)
    stack.callback(os.close, memory.handle)
    if start.checkpoint is None:
        initialize_store(memory, values_P, start.initial.moments_2P if start.initial else None)
    else:
        restore(memory, start.checkpoint, Schedule.from_config(start.config, start.train_rows))
    return memory


@dataclass(frozen=True)
class Run:
    """The processes of one run: made by ``open_run``."""

    start: RunStart
    memory: SharedMemory
    template: ProcessSpec
    """Template for the spec of every process."""

    facts: dict[str, Any]
    """What every checkpoint has in common."""

    def execute(self, fork_server: ForkServer, end: EndLogger, tracker: Tracker) -> Outcome:
        """Run to the end."""
        start, config, folder = self.start, self.start.config, self.start.folder
        schedule = Schedule.from_config(config, start.train_rows)
        times = TimeReader(self.memory, has_server=config.has_server)
        earlier = start.checkpoint.history if start.checkpoint else ()
        first_step, is_refit = self.memory.ledger.read().step, start.choices is not None
        with Reporter(
            folder, schedule, times, tracker, earlier, first_step=first_step, shows_scores=not is_refit
        ) as reporter:
            checkpoint_writer = CheckpointWriter(
                self.memory,
                reporter,
                folder / MODEL_FOLDER,
                Path(self.template.best),
                start.checkpoints,
                self.facts,
                config.checkpoint_seconds,
                all_points=config.checkpoint_steps is not None,
            )
            supervisor = Supervisor(
                self.memory, self.template, start.placement, fork_server, reporter, checkpoint_writer
            )
            try:
                supervisor.run()
            finally:
                end.checkpoint = checkpoint_writer.newest or end.checkpoint
                end.has_unsaved_best = reporter.has_unsaved_best
            ledger = self.memory.ledger.read()
            # A run that was stopped early has work units left; what it did is checked when it is resumed.
            if ledger.step == schedule.steps:
                check_all_done(ledger, config, start.train_rows)
            ledger = with_ending(ledger, config, reporter.history)
            return Outcome(reporter.history, ledger, supervisor.replaced, supervisor.interrupted)


def check_all_done(ledger: Ledger, config: ResolvedTrainConfig, rows: int) -> None:
    """Check that the ledger adds up after every epoch: each work unit, and so each row, was taken once."""
    count = plan_work(config, rows).count
    assert ledger.units_done == count and ledger.digest == add_to_digest(0, range(count)), "a work unit was lost"
    assert ledger.rows == config.epochs * rows, "rows were lost"


def check_shared_memory(shape: MemoryShape) -> None:
    """Raise ConfigError where the processes' shared memory is more than this machine or container has left."""
    # A container that runs out of memory kills a process without a message, so check beforehand.
    free = available_memory()
    if shape.needed_bytes > free:
        workers = counted(shape.workers, "worker")
        raise ConfigError(
            f"{shape.parameters:,} parameters and {workers} need {shape.needed_bytes / 1e9:.1f} GB of shared memory, "
            f"and {free / 1e9:.1f} GB are free; lower members, hidden or workers, or give more memory"
        )


def restore(memory: SharedMemory, checkpoint: Checkpoint, schedule: Schedule) -> None:
    """Put a checkpoint's state into fresh memory."""
    state_KP = checkpoint.state_KP
    own = memory.shape.state
    memory.buffers_2KP[0] = state_KP[:own]
    memory.moments_W2P[:] = state_KP[own:].reshape(memory.moments_W2P.shape)
    # The clock starts with the first step: startup is not training time.
    ledger = replace(checkpoint.ledger.with_stopped_clock(), active_buffer=0, ended=0, acked_lease=0, checksum=0)
    memory.ledger.write(ledger)
    save_restore_point(memory, ledger)
    for each in waiting_snapshots(checkpoint, schedule):
        republish_snapshot(memory, each)
    logger.info("resuming from step %d", ledger.step)
