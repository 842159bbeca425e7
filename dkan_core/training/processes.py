"""The child processes of a run as their launcher sees them: started, watched, and diagnosed when one dies."""

import logging
import os
import selectors
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import dkan_core
from dkan_core import errors
from dkan_core.errors import TrainingError
from dkan_core.training.channel import Channel
from dkan_core.training.job import PEER_LOST_EXIT_CODE, Job
from dkan_core.training.reporting import Reporter

LOG_LINES_SHOWN = 40

KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""Settings of glibc: arrays are freed and wanted again every step, and fresh pages are slow. The first is the largest
that every version takes."""

logger = logging.getLogger(__name__)


class Child:
    """A running process of ours."""

    def __init__(self, job: Job, channel: Channel, log: Path) -> None:
        self.name, self.channel, self.log = job.name, channel, log
        text = job.to_json()
        package = str(Path(dkan_core.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"dkan_core.training.{job.role}"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=job.handles(),
                env={
                    "OMP_WAIT_POLICY": "passive",
                    **KEEP_MEMORY,
                    **os.environ,
                    "PYTHONPATH": path,
                    "OMP_NUM_THREADS": str(job.threads),
                },
            )
        stdin: IO[bytes] | None = self.process.stdin
        assert stdin is not None
        try:
            stdin.write(text.encode())
            stdin.close()
        except BrokenPipeError:
            logger.debug("%s ended before it read its job", self.name)

    def end(self) -> None:
        """Kill the process if it still runs, and let go of everything."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.channel.close()


def watch(children: Sequence[Child], reporter: Reporter) -> None:
    """Pass messages to the reporter until all children have ended.

    Raises:
        UserError: One found the data or the disk wrong.
        TrainingError: One died; of several, the one that did not just follow another.
    """
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.channel, selectors.EVENT_READ, child)
        while selector.get_map():
            for key, _ in selector.select():
                child = key.data
                _take_messages(child, reporter)
                if child.channel.lost:
                    selector.unregister(child.channel)
                    if child.process.wait() != 0:
                        _let_follow(children, reporter)
                        raise TrainingError(_describe_death(children))


def _take_messages(child: Child, reporter: Reporter) -> None:
    for message in child.channel.waiting():
        if message["kind"] == "user_error":
            raise getattr(errors, message["error"])(message["text"])
        reporter.take(message)


def _let_follow(children: Sequence[Child], reporter: Reporter) -> None:
    """Wait a moment for the processes that end because one has, and hear what each says last."""
    for child in children:
        try:
            child.process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            logger.debug("%s still runs", child.name)
        _take_messages(child, reporter)


def _describe_death(children: Sequence[Child]) -> str:
    """Name the process that died of itself, with the end of its log."""
    dead = [child for child in children if child.process.poll() not in (None, 0)]
    first = min(dead, key=lambda child: child.process.returncode == PEER_LOST_EXIT_CODE)
    code = first.process.returncode
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    lines = first.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    tail = "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
    hint = "; out of memory is the usual cause" if code == -9 else ""
    return f"{first.name} died ({how}{hint}). The end of {first.log.parent.name}/{first.log.name}:\n{tail}"
