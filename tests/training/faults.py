"""What is done to the processes of a run: signals, and code that they execute when they begin."""

import os
import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

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


WAIT_IN_EVERY_STEP = """
import time
def trace(frame, event, arg):
    if event == "call" and frame.f_code.co_name == FUNCTION and not os.path.exists(DONE):
        time.sleep(SECONDS)
sys.settrace(trace)
"""


def slow_steps(
    folder: Path, until: Path, seconds: float = 0.05, *, within: str = "apply_updates", also: str = ""
) -> dict[str, str]:
    """Return the environment in which every step takes its time until a file is there.

    Steps are quicker than a process starts: a run would be over before its last fault.

    Args:
        folder: For the code that does it.
        until: The file.
        seconds: Of a step.
        within: The function that takes the time: one of the server's, or of a worker's.
        also: Further code that every process executes when it begins.
    """
    body = WAIT_IN_EVERY_STEP
    for name, value in {"DONE": str(until), "SECONDS": seconds, "FUNCTION": within}.items():
        body = body.replace(name, repr(value))
    return inject(folder, body + also)
