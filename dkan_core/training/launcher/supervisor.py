"""The launcher's watch over a run's processes: it starts them, replaces one that dies, and stops them all.

Only the launcher decides which processes live; what each of them needs to continue is in shared memory. The launcher
never blocks on anything slow: a process starts once it is due and the fork server is ready.
"""

import logging
import selectors
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path

from dkan_core.errors import DkanError, TrainingError
from dkan_core.training.communication.rendezvous import PEER_LOST
from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.launcher.checkpoint_writer import CheckpointWriter
from dkan_core.training.launcher.child_processes import Child
from dkan_core.training.launcher.fork_server_client import ForkServer
from dkan_core.training.launcher.liveness import LivenessCounters, ProcessRecord, Progress
from dkan_core.training.launcher.reporting import Reporter
from dkan_core.training.roles.process_spec import COMPUTING, ProcessSpec, role_and_rank
from dkan_core.training.setup.placement import Placement
from dkan_core.training.state.shared_memory import Control, SharedMemory, WorkerGeneration
from dkan_core.training.state.snapshots import newest_snapshot
from dkan_core.utils.signals import handle_signal, hold_signal

# How long a turn of the loop waits for messages: the delay until a process that is due is started.
POLL_SECONDS = 0.1

# After a longer gap between its checks, the launcher was stopped itself, and takes no process for silent.
ABSENT_SECONDS = 5.0

# How long workers with a state of their own have to reach the end of their round when the run is stopped, and killed
# processes to be gone.
FREEZE_SECONDS = 1.0

# When a rank ends because it has lost another one, how long to wait for the end of that other one.
CAUSE_SECONDS = 2.0

# Exit codes of a rank that ends because of another. NCCL's watchdog also ends a rank whose own GPU has failed: a rank
# that it has ended is more likely to be the cause than one that has lost its peer.
CONSEQUENCES = {-signal.SIGABRT: 1, PEER_LOST: 2}

logger = logging.getLogger(__name__)


@dataclass
class Supervisor:
    """The processes of one run."""

    memory: SharedMemory
    template: ProcessSpec
    """Template for the spec of every child."""

    placement: Placement
    fork_server: ForkServer
    reporter: Reporter
    checkpoint_writer: CheckpointWriter

    def __post_init__(self) -> None:
        names = self.template.wakeups
        self.wakeups = {name: Wakeup(pair) for name, pair in names.items()}
        self.replaced = dict.fromkeys((role_and_rank(name)[0] for name in names), 0)
        self._records = {name: ProcessRecord(self._process_spec(name)) for name in names}
        self._at_launch = {name: self._progress_of(record.role) for name, record in self._records.items()}
        self._selector = selectors.DefaultSelector()
        self._looked = time.monotonic()
        self._interrupts = 0
        self._interrupt_logged = False

    def run(self) -> None:
        """Run to the end, and write a checkpoint of it.

        Raises:
            UserError: A process found the data wrong.
            TrainingError: A process cannot start, or deaths keep the run from making progress.
            KeyboardInterrupt: Ctrl-C was pressed a second time; after the first the run ends in order.
        """
        with hold_signal(signal.SIGTERM) as handle_sigterm:
            try:
                with handle_signal(signal.SIGINT, lambda *_: self._interrupt()):
                    for record in self._records.values():
                        self._announce_generation(record)
                    while not self._is_over():
                        handle_sigterm()
                        self._run_iteration()
                    self._handle_messages(self._children("evaluator")[0])
            # SIGTERM raises SystemExit: a pod that is preempted leaves a checkpoint of its last commit.
            except (SystemExit, DkanError, OSError):
                self._stop_and_checkpoint()
                raise
            finally:
                for child in self._children():
                    child.end()
                self._selector.close()
                self.checkpoint_writer.wait()
            self.checkpoint_writer.write_now()

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed, be it after the last step."""
        return self._interrupts > 0

    def _children(self, role: str = "") -> list[Child]:
        """Return the newest process of every name, of one role or of all."""
        return [
            record.child for record in self._records.values() if record.child and record.role in (role or record.role)
        ]

    def _is_over(self) -> bool:
        return any(child.poll() == 0 for child in self._children("evaluator"))

    def _run_iteration(self) -> None:
        """Start what is due, take what the children say, heal those that died, show progress."""
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if self._interrupts and not self._interrupt_logged:
            self._interrupt_logged = True
            logger.warning("interrupted: one last evaluation, then the run ends; press Ctrl-C again to stop at once")
        self._start_due()
        for key, _ in self._selector.select(POLL_SECONDS):
            self._handle_channel(key.data)
        self._kill_unresponsive()
        self.reporter.progress(self.memory.ledger.read())
        self.checkpoint_writer.write_if_due()

    def _start_due(self) -> None:
        for record in self._records.values():
            if not self.fork_server.is_ready():
                return
            if record.due is not None and record.due <= time.monotonic():
                self._start(record)

    def _start(self, record: ProcessRecord) -> None:
        log = Path(self.template.logs) / f"{record.name}.log"
        child = self.fork_server.try_spawn(self._process_spec(record.name, record.generation), log)
        if child is None:
            return
        if record.child is not None:
            record.child.end()
        record.record_start(child, LivenessCounters.read(self.memory, record.role, record.rank), time.monotonic())
        self._selector.register(child.channel, selectors.EVENT_READ, child)

    def _process_spec(self, name: str, generation: int = 1) -> ProcessSpec:
        role, rank = role_and_rank(name)
        return replace(
            self.template,
            role=role,
            rank=rank,
            generation=generation,
            device=self.placement.device_of(role, rank),
            threads=self.placement.threads if role in COMPUTING else 1,
            rendezvous=self.template.rendezvous and self.template.rendezvous.for_generation(generation),
            # Without what is to be scored again, as the best model of it was not saved.
            history=tuple(self.reporter.confirmed()) if role == "evaluator" else (),
        )

    def _announce_generation(self, record: ProcessRecord) -> None:
        """Tell the server which process of a worker's rank is valid from now on, even before it has started."""
        if record.role == "worker":
            self.memory.worker_generations[record.rank].write(WorkerGeneration(generation=record.generation))
            self._notify_server()

    def _handle_channel(self, child: Child) -> None:
        # When several report at once, handling an earlier one's death may already have ended this one.
        if self._records[child.name].child is not child or child.channel not in self._selector.get_map():
            return
        self._handle_messages(child)
        if child.channel.lost:
            self._selector.unregister(child.channel)
            if child.wait() != 0:
                self._replace_dead(child)

    def _handle_messages(self, child: Child) -> None:
        for message in child.messages():
            self.reporter.take(message)

    def _replace_dead(self, child: Child) -> None:
        """Replace a process that died, unless its replacement would have nothing to do or fail again."""
        # Nothing is left for it to do.
        if child.role == "worker" and self.memory.ledger.read().ended:
            return
        records = [self._records[child.name]]
        if child.role == "collective-worker":
            # Ranks live and die together.
            child = self._end_collective_workers(child)
            records = [record for record in self._records.values() if record.role == "collective-worker"]
        now = time.monotonic()
        progress = self._progress()
        for record in records:
            # It may have made progress between the last look at it and its death.
            record.record_counters(LivenessCounters.read(self.memory, record.role, record.rank), now)
            record.record_death(child, progress, now)
        if self._cannot_work(child) or self._records[child.name].should_give_up(now):
            raise TrainingError(self._records[child.name].first_death)
        logger.warning("%s; starting a replacement", child.summarize_death())
        self.replaced[child.role] += 1
        for record in records:
            self._announce_generation(record)

    def _cannot_work(self, child: Child) -> bool:
        """Return whether a process failed by itself before its role made progress, or its run has several launchers."""
        alone = self.template.rendezvous is None or self.template.rendezvous.one_node
        if child.role == "collective-worker" and not alone:
            return True
        # A signal may come from outside; an error of the process itself would recur.
        failed = child.wait() > 0 and child.wait() != PEER_LOST
        return failed and self._progress_of(child.role) == self._at_launch[child.name]

    def _end_collective_workers(self, child: Child) -> Child:
        """End all ranks; return the one that was the cause, not one that died because of it."""
        # A rank that waits for its restart has already ended.
        records = (record for record in self._records.values() if record.role == child.role and record.due is None)
        children = [record.child for record in records if record.child]
        deadline = time.monotonic() + CAUSE_SECONDS
        while child.wait() in CONSEQUENCES and time.monotonic() < deadline:
            failed = [each for each in children if each.poll() not in (None, 0)]
            # Of equally likely causes, the rank whose end was noticed first.
            child = min([child, *failed], key=lambda each: CONSEQUENCES.get(each.wait(), 0))
            time.sleep(0.01)
        for each in children:
            each.kill()
            each.wait()
            if each.channel in self._selector.get_map():
                self._handle_messages(each)
                self._selector.unregister(each.channel)
        return child

    def _progress(self) -> Progress:
        """Return how far the run is, in counts that a process advances only by completing work."""
        ledger = self.memory.ledger.read()
        return ledger.units_done, ledger.ended, newest_snapshot(self.memory).number, self.memory.evaluated.read().number

    def _progress_of(self, role: str) -> int:
        """Return how far the processes of a role are."""
        ledger = self.memory.ledger.read()
        return {"server": ledger.version, "evaluator": self.memory.evaluated.read().number}.get(role, ledger.units_done)

    def _kill_unresponsive(self) -> None:
        """Kill processes without heartbeats or progress; the next turn replaces them."""
        now = time.monotonic()
        absent = time.monotonic() - self._looked > ABSENT_SECONDS
        self._looked = now
        for record in self._records.values():
            if record.child is None or record.child.poll() is not None:
                continue
            record.record_counters(LivenessCounters.read(self.memory, record.role, record.rank), now)
            # SIGSTOP, a debugger or a laptop's lid: the others may have been stopped as well.
            if absent:
                record.reset_deadlines(now)
            if record.is_unresponsive(now, interrupted=self._interrupts > 0):
                logger.warning("%s is unresponsive; killing it", record.name)
                record.child.kill()

    def _interrupt(self) -> None:
        """Make the first Ctrl-C end the run in order, and the second at once."""
        # The next turn logs it: a signal may interrupt another message, and streams are not reentrant.
        self._interrupts += 1
        if self._interrupts == 1:
            self.memory.control.write(Control(stop=1))
            self._notify_server()

    def _notify_server(self) -> None:
        if "server" in self.wakeups:  # there is none where the processes exchange gradients among themselves
            self.wakeups["server"].notify()

    def _stop_and_checkpoint(self) -> None:
        """Stop everything where it is, and write a checkpoint of that."""
        # Moments that workers keep for themselves fit the parameters only when no work unit is in progress.
        if self.memory.shape.local:
            self.checkpoint_writer.request_state(FREEZE_SECONDS)
        self.fork_server.end()
        for child in self._children():
            for message in child.channel.waiting():
                if message["kind"] in ("evaluation", "saved"):
                    self.reporter.take(message)
        self.checkpoint_writer.write_now()
