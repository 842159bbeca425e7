"""The launcher's watch over a run's processes: it starts them, replaces one that dies, and stops them all.

No other process decides who lives; what each of them needs to go on stands in shared memory. What can take long is
never waited for: a process starts when it is due and the fork server is ready.
"""

import logging
import selectors
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from dkan_core import errors
from dkan_core.config import TrainConfig
from dkan_core.errors import DkanError, TrainingError
from dkan_core.training.communication.rendezvous import LOST_PARTNER
from dkan_core.training.communication.wakeup import Wakeup
from dkan_core.training.launcher.checkpoint_writer import Saver
from dkan_core.training.launcher.child_processes import Child, ForkServer
from dkan_core.training.launcher.liveness import Life, Progress, Signs
from dkan_core.training.launcher.reporting import Reporter
from dkan_core.training.setup.defaults import Placement
from dkan_core.training.state.process_spec import COMPUTING, Job, process_name
from dkan_core.training.state.shared_memory import Control, Member, SharedMemory
from dkan_core.training.state.snapshots import newest_snapshot

LOOK_SECONDS = 0.1

ABSENT_SECONDS = 5.0
"""A launcher that has not looked for so long was stopped itself, and blames nobody for silence."""

FREEZE_SECONDS = 1.0
"""How long workers with a state of their own have to reach the end of their round when the run is stopped, and killed
processes to be gone."""

CAUSE_SECONDS = 2.0
"""How long to wait, when a member ends because it has lost another, for that one's end."""

logger = logging.getLogger(__name__)


class Supervisor:
    """The processes of one run.

    Args:
        memory: Shared memory with the state to begin with.
        template: The job of every child, but for what differs.
        placement: Devices and threads.
        folder: For logs.
        fork_server: Where the processes come from.
        reporter: Told of everything.
        saver: Writes checkpoints.
    """

    def __init__(
        self,
        memory: SharedMemory,
        template: Job,
        placement: Placement,
        folder: Path,
        fork_server: ForkServer,
        reporter: Reporter,
        saver: Saver,
    ) -> None:
        self.memory, self.template, self.placement, self.folder = memory, template, placement, folder
        self.fork_server, self.reporter, self.saver = fork_server, reporter, saver
        self.wakeups = {name: Wakeup(pair) for name, pair in template.wakeups.items()}
        self.replaced = dict.fromkeys((name.partition("-")[0] for name in template.wakeups), 0)
        self._lives = {name: Life(self._job(name)) for name in template.wakeups}
        self._at_launch = {name: self._progress_of(life.role) for name, life in self._lives.items()}
        self._selector = selectors.DefaultSelector()
        self._looked = time.monotonic()
        self._interrupts = 0

    def run(self) -> None:
        """Run to the end.

        Raises:
            UserError: A process found the data wrong.
            TrainingError: A process cannot start, or the run does not get on for what dies.
            KeyboardInterrupt: Ctrl-C was pressed a second time; after the first the run ends in order.
        """
        try:
            with self._interruptible():
                for life in self._lives.values():
                    self._announce(life)
                while not self._is_over():
                    self._turn()
                self._hear(self._children("evaluator")[0])
        except (SystemExit, DkanError, OSError):
            self._freeze()
            raise
        finally:
            for child in self._children():
                child.end()
            self._selector.close()
            self.saver.wait()

    def _children(self, role: str = "") -> list[Child]:
        """Return the newest process of every name, of one role or of all."""
        return [life.child for life in self._lives.values() if life.child and life.role in (role or life.role)]

    def _is_over(self) -> bool:
        return any(child.exit_code == 0 for child in self._children("evaluator"))

    def _turn(self) -> None:
        """Start what is due, take what the children say, heal those that died, show progress."""
        self._start_due()
        for key, _ in self._selector.select(LOOK_SECONDS):
            self._listen(key.data)
        self._kill_silent()
        self.reporter.progress(self.memory.ledger.read())
        self.saver.look()

    def _start_due(self) -> None:
        for life in self._lives.values():
            if not self.fork_server.is_ready():
                return
            if life.due is not None and life.due <= time.monotonic():
                self._start(life)

    def _start(self, life: Life) -> None:
        child = self.fork_server.try_spawn(self._job(life.name, life.incarnation), self.folder / f"{life.name}.log")
        if child is None:
            return
        if life.child is not None:
            life.child.end()
        life.begin(child, Signs.read(self.memory, life.role, life.rank), time.monotonic())
        self._selector.register(child.channel, selectors.EVENT_READ, child)

    def _job(self, name: str, incarnation: int = 1) -> Job:
        role, _, rank = name.partition("-")
        number = int(rank or 0)
        return replace(
            self.template,
            role=role,
            rank=number,
            incarnation=incarnation,
            device=self.placement.device_of(role, number),
            threads=self.placement.threads if role in COMPUTING else 1,
            meeting=self.template.meeting and self.template.meeting.number(incarnation),
            history=tuple(self.reporter.confirmed) if role == "evaluator" else (),
        )

    def _announce(self, life: Life) -> None:
        """Tell the server which process of a worker's rank counts from now on, also before it has started."""
        if life.role == "worker":
            self.memory.members[life.rank].write(Member(incarnation=life.incarnation))
            self._notify("server")

    def _listen(self, child: Child) -> None:
        if self._lives[child.name].child is not child:
            return
        self._hear(child)
        if child.channel.lost:
            self._selector.unregister(child.channel)
            if child.wait() != 0:
                self._heal(child)

    def _hear(self, child: Child) -> None:
        for message in child.channel.waiting():
            if message["kind"] == "error":
                raise getattr(errors, message["error"])(message["text"])
            self.reporter.take(message)

    def _heal(self, child: Child) -> None:
        """Have another process take the place of one that died, unless that would lead nowhere."""
        if child.role == "worker" and self.memory.ledger.read().ended:
            return
        lives = [self._lives[child.name]]
        if child.role == "member":
            # Members live and die together.
            child, lives = self._end_members(child), [life for life in self._lives.values() if life.role == "member"]
        now, progress = time.monotonic(), self._progress()
        for life in lives:
            life.observe(Signs.read(self.memory, life.role, life.rank), now)
            life.bury(child, progress, now)
        if self._cannot_work(child) or self._lives[child.name].is_hopeless(now):
            raise TrainingError(self._lives[child.name].first_death)
        logger.warning("%s; a new one takes its place", child.describe_death().split(". The end of")[0])
        self.replaced[child.role] += 1
        for life in lives:
            self._announce(life)

    def _cannot_work(self, child: Child) -> bool:
        """Tell whether a process has failed by itself before one of its role had done anything, or is no launcher's."""
        alone = self.template.meeting is None or self.template.meeting.one_node
        if child.role == "member" and not alone:
            return True
        failed = child.wait() > 0 and child.wait() != LOST_PARTNER
        return failed and self._progress_of(child.role) == self._at_launch[child.name]

    def _end_members(self, child: Child) -> Child:
        """End all members; return the one whose death was the cause, not that of another."""
        # What waits to be started has died before.
        lives = (life for life in self._lives.values() if life.role == child.role and life.due is None)
        children = [life.child for life in lives if life.child]
        deadline = time.monotonic() + CAUSE_SECONDS
        while not (causes := [each for each in children if each.exit_code not in (None, 0, LOST_PARTNER)]):
            if time.monotonic() > deadline:
                break
            time.sleep(0.01)
        for each in children:
            each.kill()
            each.wait()
            if each.channel in self._selector.get_map():
                self._hear(each)
                self._selector.unregister(each.channel)
        return causes[0] if causes else child

    def _progress(self) -> Progress:
        """Return how far the run is: what no process does that dies before it has done its work."""
        ledger = self.memory.ledger.read()
        return ledger.units_done, ledger.ended, newest_snapshot(self.memory).number, self.memory.evaluated.read().number

    def _progress_of(self, role: str) -> int:
        """Return how far the processes of a role are."""
        ledger = self.memory.ledger.read()
        return {"server": ledger.version, "evaluator": self.memory.evaluated.read().number}.get(role, ledger.units_done)

    def _kill_silent(self) -> None:
        """Kill processes that do not live or do not get on; the next turn replaces them."""
        now, absent = time.monotonic(), time.monotonic() - self._looked > ABSENT_SECONDS
        self._looked = now
        for life in self._lives.values():
            if life.child is None or life.child.exit_code is not None:
                continue
            life.observe(Signs.read(self.memory, life.role, life.rank), now)
            if absent:
                life.forgive(now)
            if life.is_silent(now, interrupted=self._interrupts > 0):
                logger.warning("%s does not move and is killed", life.name)
                life.child.kill()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Have the first Ctrl-C end the run in order, and the second at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, lambda *_: self._interrupt())
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        logger.warning("interrupted: one last evaluation, then the run ends; press Ctrl-C again to stop at once")
        self.memory.control.write(Control(stop=1))
        self._notify("server")

    def _notify(self, name: str) -> None:
        if name in self.wakeups:
            self.wakeups[name].notify()

    def _freeze(self) -> None:
        """Stop everything where it is, and write a checkpoint of that."""
        if self.memory.shape.local:
            self._ask_for_restore_point()
        self.fork_server.end()
        for child in self._children():
            for message in child.channel.waiting():
                if message["kind"] == "evaluation":
                    self.reporter.take(message)
        self.saver.save_now()

    def _ask_for_restore_point(self) -> None:
        before = max(record.read().version for record in self.memory.kept)
        self.memory.control.write(Control(save=1))
        self._notify("server")
        deadline = time.monotonic() + FREEZE_SECONDS
        while max(record.read().version for record in self.memory.kept) == before and time.monotonic() < deadline:
            time.sleep(0.01)


def process_names(config: TrainConfig, *, members: int | None = None) -> list[str]:
    """Return the processes of one launcher: with ``members``, so many of the first members alone."""
    assert config.workers is not None
    first, role = (["server"], "worker") if config.strategy == "parameter-server" else ([], "member")
    return [*first, "evaluator", *(process_name(role, rank) for rank in range(members or config.workers))]
