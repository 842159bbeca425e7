"""The parameter server: owns the parameters, averages the workers' gradients, steps the optimizer.

It waits for every worker's push, sums the gradients in rank order weighted by their measured labels, applies
AdamW and lets all workers go on: the result is that of one process with the global batch. Every so often it
hands a snapshot to the evaluator, and it never waits for one: with all slots taken, a snapshot is skipped.
"""

import contextlib
import logging
import time

import numpy as np

from dkan_core.config import TrainConfig
from dkan_core.training.channel import Channel, Message, PeerLostError, inherited
from dkan_core.training.job import Job, run_child
from dkan_core.training.memory import SharedMemory
from dkan_core.training.optimizer import FlatAdamW
from dkan_core.training.schedule import Pace, Schedule

PROGRESS_SECONDS = 0.2

logger = logging.getLogger(__name__)


def work(job: Job) -> None:
    """Serve until every epoch is done, the evaluator asks to stop, or the time is up."""
    memory = job.open_memory()
    *workers, evaluator = (inherited(handle) for handle in job.peers)
    optimizer = FlatAdamW(memory.values_P, decayed=job.decayed)
    schedule = Schedule.of(job.config, job.train_rows)
    Server(
        memory, workers, Snapshots(memory, evaluator), inherited(job.launcher), optimizer, job.config, schedule
    ).run()


class Snapshots:
    """Slots of shared memory that go to the evaluator and come back free; one is kept for the final snapshot."""

    def __init__(self, memory: SharedMemory, evaluator: Channel) -> None:
        self.memory, self.evaluator = memory, evaluator
        self.free = list(range(len(memory.snapshots_SP)))
        self.stop_requested = False

    def collect(self) -> None:
        """Take in what the evaluator has said."""
        for message in self.evaluator.waiting():
            self.free += [message["done"]] if "done" in message else []
            self.stop_requested |= message.get("stop", False)

    def publish(self, *, final: bool, time_is_up: bool, **facts: float) -> None:
        """Hand the parameters as they are now to the evaluator."""
        if len(self.free) <= (0 if final else 1):
            logger.warning("evaluation lags behind: snapshot at step %d skipped", facts["step"])
            return
        slot = self.free.pop(0)
        self.memory.snapshots_SP[slot] = self.memory.values_P
        self.evaluator.send(slot=slot, final=final, time_is_up=time_is_up, **facts)

    def outlive_evaluator(self) -> None:
        """Keep this end of the channel open until the evaluator has worked through what lies in it."""
        with contextlib.suppress(PeerLostError):
            while True:
                self.evaluator.receive()


class Server:
    """The loop over steps."""

    def __init__(
        self,
        memory: SharedMemory,
        workers: list[Channel],
        snapshots: Snapshots,
        launcher: Channel,
        optimizer: FlatAdamW,
        config: TrainConfig,
        schedule: Schedule,
    ) -> None:
        self.memory, self.workers, self.snapshots, self.launcher = memory, workers, snapshots, launcher
        self.optimizer, self.config, self.schedule = optimizer, config, schedule
        self.gradient_P, self._scratch_P = np.empty_like(memory.values_P), np.empty_like(memory.values_P)
        self.pace = Pace(schedule, config.max_seconds)
        self.reported = 0.0

    def run(self) -> None:
        """Run every step, then publish the final snapshot."""
        step = 0
        while step < self.schedule.steps:
            pushes = [worker.receive() for worker in self.workers]
            if step == 0:
                self.pace.begin()
            self._apply(step, pushes)
            for push in pushes:
                self.pace.add(loss=push["loss"], weight=push["weight"], rows=push["rows"])
            step += 1
            self.snapshots.collect()
            time_is_up = self.pace.time_is_up
            stop = step == self.schedule.steps or self.snapshots.stop_requested or time_is_up
            if stop or self.schedule.is_evaluated(step):
                self.snapshots.publish(final=stop, time_is_up=time_is_up, **self.pace.facts(step))
            self._report(step, last=stop)
            if self.schedule.is_evaluated(step):
                self.pace.restart()
            for worker in self.workers:
                worker.send(go=not stop)
            if stop:
                break
        self.snapshots.outlive_evaluator()

    def _apply(self, step: int, pushes: list[Message]) -> None:
        """Average the gradients in rank order, weighted by their measured labels, and take the optimizer step."""
        total = sum(push["weight"] for push in pushes)
        if total == 0:
            return
        first, *others = (push["weight"] / total for push in pushes)
        np.multiply(self.memory.gradients_WP[0], first, out=self.gradient_P)
        for rank, share in enumerate(others, start=1):
            np.multiply(self.memory.gradients_WP[rank], share, out=self._scratch_P)
            self.gradient_P += self._scratch_P
        self.optimizer.step(self.gradient_P, rate=self.schedule.learning_rate(step))

    def _report(self, step: int, *, last: bool) -> None:
        now = time.monotonic()
        if last or now - self.reported >= PROGRESS_SECONDS:
            self.reported = now
            self.launcher.send(kind="progress", steps=self.schedule.steps, **self.pace.facts(step))


if __name__ == "__main__":
    run_child(work)
