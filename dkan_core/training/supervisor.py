"""The launcher's watch over a run's processes: it starts them, replaces one that dies, and stops them all.

No other process decides who lives; what each of them needs to go on stands in shared memory.
"""

import logging
import selectors
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dkan_core import errors
from dkan_core.config import TrainConfig
from dkan_core.errors import DkanError, TrainingError
from dkan_core.training.doorbell import Doorbell
from dkan_core.training.job import COMPUTING, Job, process_name
from dkan_core.training.meeting import LOST_PARTNER
from dkan_core.training.memory import Control, Lease, Member, SharedMemory
from dkan_core.training.processes import Child, Nursery
from dkan_core.training.recipe import Placement
from dkan_core.training.reporting import Reporter
from dkan_core.training.saver import Saver

LOOK_SECONDS = 0.1
HUNG_SECONDS = 30.0
"""A worker whose heart has not beaten for so long is killed and replaced."""

STUCK_SECONDS, STUCK_FACTOR = 60.0, 20
"""A worker that has had a range for so long, and so many times longer than the longest before, is killed as well."""

MAX_DEATHS = 5
"""Deaths of a process in a row, the run not getting on between them, after which the run ends."""

FREEZE_SECONDS = 1.0
"""How long workers with a state of their own have to reach the end of their round when the run is stopped, and killed
processes to be gone."""

CAUSE_SECONDS = 2.0
"""How long to wait, when a member ends because it has lost another, for that one's end."""

logger = logging.getLogger(__name__)


@dataclass
class _Life:
    """What is remembered of a process and those before it."""

    child: Child
    incarnation: int = 1
    deaths: int = 0
    """In a row, without the run getting on between them."""

    progress: int = 0
    """How far the run was at the last one."""

    first_death: str = ""
    beat: int = 0
    heard: float = 0.0
    """When its heart beat last."""

    lease: Lease = field(default_factory=Lease)
    taken: float = 0.0
    """When it was handed that range."""

    longest: float = 0.0
    """The longest that it has had one."""


class Supervisor:
    """The processes of one run.

    Args:
        memory: Shared memory with the state to begin with.
        template: The job of every child, but for what differs.
        placement: Devices and threads.
        folder: For logs.
        nursery: Where the processes come from.
        reporter: Told of everything.
        saver: Writes checkpoints.
    """

    def __init__(
        self,
        memory: SharedMemory,
        template: Job,
        placement: Placement,
        folder: Path,
        nursery: Nursery,
        reporter: Reporter,
        saver: Saver,
    ) -> None:
        self.memory, self.template, self.placement, self.folder = memory, template, placement, folder
        self.nursery, self.reporter, self.saver = nursery, reporter, saver
        self.bells = {name: Doorbell(pair) for name, pair in template.bells.items()}
        self.replaced = dict.fromkeys((name.partition("-")[0] for name in template.bells), 0)
        self._lives: dict[str, _Life] = {}
        self._selector = selectors.DefaultSelector()
        self._interrupts = 0

    def run(self) -> None:
        """Run to the end.

        Raises:
            UserError: A process found the data wrong.
            TrainingError: A process died again and again.
            KeyboardInterrupt: Ctrl-C was pressed a second time; after the first the run ends in order.
        """
        try:
            with self._interruptible():
                for name in self.template.bells:
                    self._start(name)
                while not self._is_over():
                    self._turn()
                self._hear(self._lives["evaluator"].child)
        except (SystemExit, DkanError, OSError):
            self._freeze()
            raise
        finally:
            for life in self._lives.values():
                life.child.end()
            self._selector.close()
            self.saver.wait()

    def _is_over(self) -> bool:
        return self._lives["evaluator"].child.exit_code == 0

    def _turn(self) -> None:
        """Take what the children say, heal those that died, show progress."""
        for key, _ in self._selector.select(LOOK_SECONDS):
            self._listen(key.data)
        self._replace_hung()
        self.reporter.progress(self.memory.ledger.read())
        self.saver.look()

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

    def _start(self, name: str, incarnation: int = 1) -> None:
        role, _, rank = name.partition("-")
        number = int(rank or 0)
        job = replace(
            self.template,
            role=role,
            rank=number,
            incarnation=incarnation,
            device=self.placement.device_of(role, number),
            threads=self.placement.threads if role in COMPUTING else 1,
            meeting=self.template.meeting and self.template.meeting.number(incarnation),
            evaluations=tuple((entry["step"], entry["average_precision"]) for entry in self.reporter.confirmed),
        )
        if role == "worker":
            self.memory.members[number].write(Member(incarnation=incarnation))
            self._ring("server")
        child = self.nursery.spawn(job, self.folder / f"{name}.log")
        if name in self._lives:
            life = self._lives[name]
            life.child, life.incarnation, life.heard, life.lease = child, incarnation, 0.0, Lease()
        else:
            self._lives[name] = _Life(child)
        self._selector.register(child.channel, 1, child)

    def _heal(self, child: Child) -> None:
        """Put another process in the place of one that died, unless that would lead nowhere."""
        if child.role == "worker" and self.memory.ledger.read().ended:
            return
        if child.role == "member":
            child = self._end_members(child)
        # Members live and die together.
        life = self._lives[self._members()[0] if child.role == "member" else child.name]
        progress = self._progress(child.role)
        if life.deaths == 0 or progress > life.progress:
            life.deaths, life.first_death = 0, child.describe_death()
        life.deaths, life.progress = life.deaths + 1, progress
        failed_at_start = child.wait() > 0 and progress == 0
        if self.template.meeting and not self.template.meeting.one_node and child.role == "member":
            raise TrainingError(child.describe_death())
        if failed_at_start or life.deaths > MAX_DEATHS:
            raise TrainingError(life.first_death)
        logger.warning("%s; a new one takes its place", child.describe_death().split(". The end of")[0])
        self.replaced[child.role] += 1
        for name in [child.name] if child.role != "member" else self._members():
            self._lives[name].child.end()
            self._start(name, self._lives[name].incarnation + 1)

    def _members(self) -> list[str]:
        return [name for name, life in self._lives.items() if life.child.role == "member"]

    def _end_members(self, child: Child) -> Child:
        """End all members; return the one whose death was the cause, not that of another."""
        children = [self._lives[name].child for name in self._members()]
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

    def _progress(self, role: str) -> int:
        ledger = self.memory.ledger.read()
        return {
            "worker": ledger.ranges,
            "member": ledger.ranges,
            "server": ledger.version,
            "evaluator": self.memory.evaluated.read().number,
        }[role]

    def _replace_hung(self) -> None:
        """Kill workers that do not move; the next turn replaces them."""
        now = time.monotonic()
        for life in self._lives.values():
            if life.child.role in COMPUTING and life.child.exit_code is None and self._is_hung(life, now):
                logger.warning("%s does not move and is killed", life.child.name)
                life.child.kill()
                life.heard = life.taken = now

    def _is_hung(self, life: _Life, now: float) -> bool:
        """Tell whether a worker's heart has stopped for long, or it has had a range for far longer than ever before."""
        rank = life.child.rank
        beat = int(self.memory.beats_W[rank])
        if beat != life.beat or not life.heard:
            life.beat, life.heard = beat, now
        lease, pushed = self.memory.leases[rank].read(), self.memory.pushes[rank].read().lease
        if lease.id != life.lease.id or lease.index < 0 or pushed == lease.id:
            if life.taken and life.lease.index >= 0:
                life.longest = max(life.longest, now - life.taken)
            life.lease, life.taken = lease, now
        stuck = now - life.taken > max(STUCK_SECONDS, STUCK_FACTOR * life.longest)
        return (beat > 0 and now - life.heard > HUNG_SECONDS) or stuck

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
        self._ring("server")

    def _ring(self, name: str) -> None:
        if name in self.bells:
            self.bells[name].ring()

    def _freeze(self) -> None:
        """Stop everything where it is, and write a checkpoint of that."""
        if self.memory.shape.local:
            self._ask_for_restore_point()
        for life in self._lives.values():
            life.child.kill()
        deadline = time.monotonic() + FREEZE_SECONDS
        while any(life.child.exit_code is None for life in self._lives.values()) and time.monotonic() < deadline:
            time.sleep(0.005)
        # Also one that was being started, and is in no list.
        self.nursery.end()
        for life in self._lives.values():
            for message in life.child.channel.waiting():
                if message["kind"] == "evaluation":
                    self.reporter.take(message)
        self.saver.save_now()

    def _ask_for_restore_point(self) -> None:
        before = max(record.read().version for record in self.memory.kept)
        self.memory.control.write(Control(save=1))
        self._ring("server")
        deadline = time.monotonic() + FREEZE_SECONDS
        while max(record.read().version for record in self.memory.kept) == before and time.monotonic() < deadline:
            time.sleep(0.01)


def process_names(config: TrainConfig, *, members: int | None = None) -> list[str]:
    """Return the processes of one launcher: with ``members``, so many of the first members alone."""
    assert config.workers is not None
    first, role = (["server"], "worker") if config.strategy == "parameter-server" else ([], "member")
    return [*first, "evaluator", *(process_name(role, rank) for rank in range(members or config.workers))]
