"""One run from start to end: its memory, filled from the seed or from a checkpoint, and its processes."""

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import ConfigError
from dkan_core.model.architecture import ModelConfig
from dkan_core.training.communication.process_group import local_rendezvous, serve_loopback_store
from dkan_core.training.communication.rendezvous import Rendezvous
from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.compute.gradient import decayed_ranges, flatten
from dkan_core.training.launcher.checkpoint_file import Checkpoint, run_facts
from dkan_core.training.launcher.checkpoint_writer import CheckpointWriter
from dkan_core.training.launcher.child_processes import ForkServer
from dkan_core.training.launcher.reporting import Reporter
from dkan_core.training.launcher.resuming import check_architecture, waiting_snapshots
from dkan_core.training.launcher.run_log import Ending
from dkan_core.training.launcher.supervisor import Supervisor, process_names
from dkan_core.training.launcher.torchrun import Ranks
from dkan_core.training.roles.evaluator import MODEL_FOLDER
from dkan_core.training.roles.stopwatch import TimeReader
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import Placement
from dkan_core.training.setup.initial_model import InitialModel, initial_model
from dkan_core.training.state.ledger import Ledger, add_to_digest
from dkan_core.training.state.parameter_store import initialize_store, save_restore_point
from dkan_core.training.state.process_spec import ProcessSpec
from dkan_core.training.state.schedule import Schedule, plan_work
from dkan_core.training.state.shared_memory import MemoryShape, SharedMemory, create_memory
from dkan_core.training.state.snapshots import republish_snapshot
from dkan_core.training.validation.best_state import best_path
from dkan_core.utils.resources import available_memory

LOGS = "logs"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """What a run ended with."""

    history: list[dict[str, Any]]
    """One entry per evaluation."""

    ledger: Ledger
    replaced: dict[str, int]
    """Processes that took the place of dead ones, by role."""


class Run:
    """The processes of one run.

    Args:
        data: Prepared folder.
        manifest: What is in it.
        folder: Of the run.
        config: Resolved settings.
        checkpoints: Folder or URI for checkpoints.
        checkpoint: To resume from.
        fork_server: Where the processes come from.
        ending: Told of the newest checkpoint.
        ranks: The other launchers, under torchrun.
        initial: Model to start from, where there is no checkpoint. Default: an untrained one.
    """

    def __init__(
        self,
        data: Path,
        manifest: PreparedData,
        folder: Path,
        config: ResolvedTrainConfig,
        checkpoints: str,
        checkpoint: Checkpoint | None,
        fork_server: ForkServer,
        ending: Ending,
        ranks: Ranks | None = None,
        initial: InitialModel | None = None,
    ) -> None:
        self.ranks = ranks
        self.ending = ending
        self.folder = folder
        self.config = config
        self.checkpoint = checkpoint
        self.fork_server = fork_server
        self.rows = manifest.splits["train"].rows
        initial = initial if checkpoint is None else None
        self.architecture = self._architecture(data, manifest, initial)
        model = initial_model(self.architecture, manifest, config, initial)
        values_P = flatten(model).numpy()
        shape = MemoryShape.from_config(config, len(values_P))
        check_fits(shape)
        self.memory = create_memory(shape)
        if checkpoint is None:
            initialize_store(self.memory, values_P)
        else:
            restore(self.memory, checkpoint, Schedule.from_config(config, self.rows))
        self.template = ProcessSpec(
            role="",
            prepared=str(data),
            run=str(folder),
            config=config,
            model=self.architecture.to_dict(),
            train_rows=self.rows,
            decayed=tuple(decayed_ranges(model, config, self.rows)),
            best=str(best_path(folder, checkpoints)),
            shape=shape,
            memory=self.memory.handle,
            rendezvous=self._rendezvous(),
            wakeups={name: os.pipe() for name in process_names(config, ranks=1 if ranks else None)},
        )
        self.facts = run_facts(manifest.fingerprint, self.architecture.to_dict(), config)
        self.where = checkpoints
        if ranks is not None:
            ranks.publish_value("plan", self.template.model)

    def _rendezvous(self) -> Rendezvous | None:
        if self.ranks is not None:
            return self.ranks.rendezvous(self.config)
        if self.config.strategy in ("parameter-server", "single"):
            return None
        self._store = serve_loopback_store(self.config.exchange_timeout)
        return local_rendezvous(self._store, self.config)

    def _architecture(self, data: Path, manifest: PreparedData, initial: InitialModel | None) -> ModelConfig:
        if self.checkpoint is not None:
            return check_architecture(self.checkpoint, manifest, self.config)
        if initial is not None:
            return initial.architecture
        with open_split(data, manifest, "train") as reader:
            return choose_architecture(reader, manifest, self.config)

    def execute(self) -> Outcome:
        """Run to the end."""
        schedule = Schedule.from_config(self.config, self.rows)
        history = self.checkpoint.history if self.checkpoint else ()
        try:
            times = TimeReader(self.memory, has_server=self.config.strategy == "parameter-server")
            with Reporter(self.folder, self.config, schedule, times, history) as reporter:
                model = self.folder / MODEL_FOLDER
                best = Path(self.template.best)
                checkpoint_writer = CheckpointWriter(self.memory, reporter, model, best, self.where, self.facts)
                placement = Placement.from_config(self.config, self.ranks.place if self.ranks else None)
                logs = self.folder / LOGS
                supervisor = Supervisor(
                    self.memory, self.template, placement, logs, self.fork_server, reporter, checkpoint_writer
                )
                try:
                    supervisor.run()
                    checkpoint_writer.write_now()
                finally:
                    self.ending.checkpoint = checkpoint_writer.newest or self.ending.checkpoint
                ledger = self.memory.ledger.read()
                self._check(ledger, schedule)
                return Outcome(reporter.history, ledger, supervisor.replaced)
        finally:
            os.close(self.memory.handle)
            for pair in self.template.wakeups.values():
                Wakeup(pair).close()

    def _check(self, ledger: Ledger, schedule: Schedule) -> None:
        """Check that the ledger adds up: after every epoch, each work unit was taken once."""
        if ledger.step == schedule.steps:
            count = plan_work(self.config, self.rows).count
            assert ledger.units_done == count and ledger.digest == add_to_digest(0, range(count)), (
                "a work unit was lost"
            )
            assert ledger.rows == self.config.epochs * self.rows, "rows were lost"


def check_fits(shape: MemoryShape) -> None:
    """Raise ConfigError where the processes' shared memory is more than this machine or container has left."""
    free = available_memory()
    if shape.needed_bytes > free:
        raise ConfigError(
            f"{shape.parameters:,} parameters and {shape.workers} workers need {shape.needed_bytes / 1e9:.1f} GB of "
            f"shared memory, and {free / 1e9:.1f} GB are free; lower members, hidden or workers, or give more memory"
        )


def restore(memory: SharedMemory, checkpoint: Checkpoint, schedule: Schedule) -> None:
    """Put a checkpoint's state into fresh memory."""
    state_KP = checkpoint.state_KP
    own = memory.shape.state
    memory.buffers_2KP[0] = state_KP[:own]
    memory.moments_W2P[:] = state_KP[own:].reshape(memory.moments_W2P.shape)
    # The clock starts with the first step: what the processes need to get ready is no time of training.
    ledger = replace(
        checkpoint.ledger.with_stopped_clock(), active_buffer=0, ended=0, acked_rank=-1, acked_lease=0, checksum=0
    )
    memory.ledger.write(ledger)
    save_restore_point(memory, ledger)
    for each in waiting_snapshots(checkpoint, schedule):
        republish_snapshot(memory, each)
    logger.info("resuming from step %d", ledger.step)
