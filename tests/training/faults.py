"""What is done to the processes of a run: signals, and code that they execute when they begin."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dkan_core.training.roles.own_updates import OwnSteps
from dkan_core.training.roles.rank_updates import DeviceRounds, ReducedUpdates
from dkan_core.training.roles.work_assignment import WorkAssignment
from dkan_core.training.state.parameter_store import ParameterStore
from tests.training.processes import Background


@dataclass
class Fault:
    """Something that is done to a process of a run."""

    name: str
    signal: int = signal.SIGKILL
    resume_after: float = 0.0
    """Seconds after which a stopped process goes on."""

    def strike(self, background: Background) -> bool:
        """Do it, if the process is there."""
        pid = background.children().get(self.name)
        if pid is None:
            return False
        try:
            os.kill(pid, self.signal)
            if self.signal == signal.SIGSTOP:
                time.sleep(self.resume_after)
                os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True


def random_fault(rng: random.Random, workers: int) -> Fault:
    """Draw a fault."""
    worker = f"worker-{rng.randrange(workers)}"
    if rng.random() < 0.3:
        return Fault(worker, signal.SIGSTOP, resume_after=rng.uniform(0.2, 2.5))
    return Fault(rng.choice([worker, worker, "server", "evaluator"]))


INJECTION = """
import os, signal, sys

def after_fork():
    {body}

os.register_at_fork(after_in_child=after_fork)
"""


def inject(folder: Path, body: str) -> dict[str, str]:
    """Return the environment in which every process of a run executes ``body`` when it begins."""
    (folder / "sitecustomize.py").write_text(INJECTION.format(body=body.replace("\n", "\n    ")))
    return {"PYTHONPATH": str(folder)}


WAIT_BEFORE = """
import functools, importlib, time
def waiting(function):
    @functools.wraps(function)
    def wait(*arguments, **keywords):
        if not os.path.exists(DONE):
            time.sleep(SECONDS)
        return function(*arguments, **keywords)
    return wait
for module, kind, name in FUNCTIONS:
    place = getattr(importlib.import_module(module), kind)
    # A process is forked from one in between, which has executed this as well.
    if not hasattr(getattr(place, name), "__wrapped__"):
        setattr(place, name, waiting(getattr(place, name)))
"""
ROUNDS = (WorkAssignment.next_updates, ReducedUpdates.next_updates, DeviceRounds.next_updates, OwnSteps.next_updates)
"""What the steps of a run begin with, whatever its strategy."""


def slow_steps(
    folder: Path,
    until: Path,
    seconds: float = 0.05,
    *,
    within: Sequence[Callable[..., object]] = (ParameterStore.apply_updates,),
    also: str = "",
) -> dict[str, str]:
    """Return the environment in which every step takes its time until a file is there.

    Steps are quicker than a process starts: a run would be over before its last fault.

    Args:
        folder: For the code that does it.
        until: The file.
        seconds: Of a step.
        within: The methods that take the time: of the server's, or of a worker's.
        also: Further code that every process executes when it begins.
    """
    functions = [(each.__module__, *each.__qualname__.split(".")) for each in within]
    body = WAIT_BEFORE
    for name, value in {"DONE": str(until), "SECONDS": seconds, "FUNCTIONS": functions}.items():
        body = body.replace(name, repr(value))
    return inject(folder, body + also)
