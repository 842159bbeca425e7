"""A run of ``dkan train`` seen from outside: its processes, their CPU time, and the ledger in its shared memory."""

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.training.schemes import process_cpu
from dkan_core import TrainConfig, TrainingError
from dkan_core.training.state.ledger import Ledger
from dkan_core.training.state.shared_memory import RECORD_BYTES, Record

ROOT = Path(__file__).parents[2]
MEMORY_NAME = "/memfd:dkan"
START_SECONDS = 300.0
POLL_SECONDS = 0.005
NEVER = 10**12
ENDLESS = TrainConfig(epochs=10**6, patience=10**6, device="cpu", workers=1)
ONE_THREAD = {"OMP_THREAD_LIMIT": "1"}
"""Environment of processes that compute with one thread each, however many cores there are."""

LAUNCHER = "launcher"


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment with the repository on the path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


class Watched:
    """A run in processes of its own, killed at the end of a ``with`` block.

    Args:
        prepared: Prepared data.
        folder: For the run and its settings.
        config: Settings.
        env: Environment variables beside this process's.
    """

    def __init__(self, prepared: Path, folder: Path, config: TrainConfig, **env: str) -> None:
        folder.mkdir(parents=True)
        settings, self.run = folder / "settings.json", folder / "run"
        settings.write_text(json.dumps({key: value for key, value in asdict(config).items() if value is not None}))
        command = [sys.executable, "-m", "dkan_core", "train", str(prepared), "--out", str(self.run)]
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--config", str(settings)], stdout=output, stderr=output, env=environment(**env)
            )
        self._output = folder / "output"
        self._ledger: Record[Ledger] | None = None

    def __enter__(self) -> Self:
        self.wait_until(self._attach, START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def _attach(self) -> bool:
        """Map the record of the ledger, the first one in the run's shared memory, once there is one."""
        handles = Path(f"/proc/{self.process.pid}/fd")
        with suppress(OSError):
            for link in handles.iterdir():
                # The spec of a child goes through such a file, too, but a much smaller one.
                if str(link.readlink()).startswith(MEMORY_NAME) and link.stat().st_size > 64 * RECORD_BYTES:
                    with link.open("rb") as file:
                        view = memoryview(mmap.mmap(file.fileno(), RECORD_BYTES, access=mmap.ACCESS_READ))
                    self._ledger = Record(view, Ledger())
                    return self.ledger().version > 0
        return False

    def ledger(self) -> Ledger:
        """Return how far the run is."""
        assert self._ledger is not None
        return self._ledger.read()

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait for something.

        Raises:
            TrainingError: It did not come in so many seconds, or the run has ended.
        """
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TrainingError(f"the run ended, or took too long: {self._output.read_text()[-2000:]}")
            time.sleep(POLL_SECONDS)

    def wait_for_step(self, step: int) -> None:
        """Wait until so many steps are done."""
        self.wait_until(lambda: self.ledger().step >= step, START_SECONDS)

    def processes(self) -> dict[str, int]:
        """Return the number of each process, by its name as in the run's log files; the launcher's, too."""
        parents, names = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    name, rest = (entry / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
                    state, parent = rest.split()[:2]
                    if state != "Z":
                        parents[int(entry.name)], names[int(entry.name)] = int(parent), name
        launcher = self.process.pid
        children = {
            name.removeprefix("dkan "): number
            for number, name in names.items()
            if name.startswith("dkan ") and parents.get(parents[number]) == launcher
        }
        return {LAUNCHER: launcher, **children}

    def signal(self, number: int, names: Iterable[str] | None = None) -> None:
        """Send a signal to some of the run's processes, or to all."""
        processes = self.processes()
        for name in processes if names is None else names:
            os.kill(processes[name], number)


def cpu_seconds(processes: Iterable[int]) -> float:
    """Return the CPU seconds that processes have used."""
    return sum(map(process_cpu, processes))
