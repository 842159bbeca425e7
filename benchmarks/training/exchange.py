"""What a step of gradient exchange costs: the parameter server compared with other ways to synchronize workers.

The processes of every scheme are started first; then the schemes run rounds of steps one after the other, and only one
of them runs at a time. Cost is the wall time and the CPU time of all processes of a scheme together.
"""

import itertools
import multiprocessing
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.training import schemes
from benchmarks.training.schemes import Handed, Seat, process_cpu, seated
from benchmarks.training.watch import NEVER
from dkan_core import FastKAN, TrainConfig
from dkan_core.training.compute.flat_model import flatten, parameter_count
from dkan_core.training.roles.process_spec import ProcessSpec, process_names
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.state.adamw import ParameterGroups
from dkan_core.training.state.parameter_store import initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, WorkerGeneration, create_memory

FORKED = multiprocessing.get_context("forkserver")
"""Forks from a process that has imported torch once and has done nothing else."""

PRELOADED = [schemes.__name__, "torch._dynamo"]
"""torch's optimizers import the second, which takes seconds, when they are first made."""


Row = dict[str, Any]
Launch = Callable[[Sequence[Seat], int, ExitStack], list[BaseProcess]]


def measure(
    *,
    sizes: Sequence[int] = (768, 64, 1),
    workers: Sequence[int] = (2, 4),
    rounds: int = 15,
    steps: int = 50,
    optimizer: Sequence[bool] = (True, False),
) -> list[Row]:
    """Measure every scheme with so many workers, with and without an AdamW step.

    Args:
        sizes: Of the FastKAN whose gradient is exchanged.
        workers: Numbers of workers.
        rounds: Of each scheme; one more is not counted.
        steps: Of a round.
        optimizer: Whether a step of AdamW belongs to it.
    """
    rows = []
    FORKED.set_forkserver_preload(PRELOADED)
    for count in workers:
        for stepping in optimizer:
            rows += _compare(tuple(sizes), count, rounds, steps, stepping)
    return rows


def _compare(sizes: tuple[int, ...], workers: int, rounds: int, steps: int, optimizer: bool) -> list[Row]:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in SCHEMES}
    with ExitStack() as stack:
        takers = {
            name: stack.enter_context(_scheme(launch, sizes, workers, (rounds + 2) * steps, steps, optimizer))
            for name, launch in SCHEMES.items()
        }
        for turn in range(rounds + 1):
            for name, take_round in takers.items():
                seconds, cpu = take_round()
                if turn:
                    taken[name].append((1000 * seconds / steps, 1000 * cpu / steps))
    ours = taken["parameter server"]
    return [
        {
            "scheme": name,
            "workers": workers,
            "parameters": parameter_count(FastKAN(list(sizes))),
            "optimizer": "AdamW" if optimizer else "none",
            "wall_ms": statistics.median(wall for wall, _ in found),
            "wall_ratio": statistics.median(wall / own for (wall, _), (own, _) in zip(found, ours, strict=True)),
            "cpu_ms": statistics.median(cpu for _, cpu in found),
            "cpu_ratio": statistics.median(cpu / own for (_, cpu), (_, own) in zip(found, ours, strict=True)),
            "rounds": found,
        }
        for name, found in taken.items()
    ]


@contextmanager
def _scheme(
    launch: Launch, sizes: tuple[int, ...], workers: int, total: int, steps: int, optimizer: bool
) -> Iterator[Callable[[], tuple[float, float]]]:
    """Start a scheme's processes; yield what runs a round and returns its wall and CPU seconds."""
    pairs = [FORKED.Pipe() for _ in range(workers)]
    gates: list[Connection] = [ours for ours, _ in pairs]
    seats = [
        Seat(rank=rank, workers=workers, sizes=sizes, steps=steps, optimizer=optimizer, gate=theirs)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    with ExitStack() as stack:
        processes = launch(seats, total, stack)
        stack.callback(_end, processes)
        for _, theirs in pairs:
            theirs.close()
        for gate in gates:
            gate.recv()

        def take_round() -> tuple[float, float]:
            cpu, started = _cpu(processes), perf_counter()
            for gate in gates:
                gate.send(None)
            for gate in gates:
                gate.recv()
            return perf_counter() - started, _cpu(processes) - cpu

        yield take_round


def _cpu(processes: Sequence[BaseProcess]) -> float:
    return sum(process_cpu(process.pid or 0) for process in processes)


def _end(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _started(*works: tuple[Any, ...]) -> list[BaseProcess]:
    processes = [FORKED.Process(target=seated, args=work, daemon=True) for work in works]
    for process in processes:
        process.start()
    return list(processes)


def _parameter_server(seats: Sequence[Seat], total: int, stack: ExitStack) -> list[BaseProcess]:
    workers = len(seats)
    model = seats[0].model()
    shape = MemoryShape(parameters=parameter_count(model), workers=workers)
    memory = create_memory(shape)
    initialize_store(memory, flatten(model).numpy())
    for record in memory.worker_generations:
        record.write(WorkerGeneration(generation=1))
    # So many rows that there is one per worker and step; no evaluation and no restore point before the end.
    config = TrainConfig(
        device="cpu",
        workers=workers,
        batch_size=workers,
        epochs=1,
        hidden=(1,),
        checkpoint_steps=NEVER,
        checkpoint_seconds=0.0,
        patience=1,
    )
    config = resolve(config, workers * total)
    wakeups = {name: os.pipe() for name in process_names(config)}
    for handle in (memory.handle, *itertools.chain(*wakeups.values())):
        stack.callback(os.close, handle)
    spec = ProcessSpec(
        role="server",
        prepared="",
        run="",
        config=config,
        model={},
        train_rows=workers * total,
        groups=ParameterGroups(decayed=((0, shape.parameters, 1.0),)),
        shape=shape,
        memory=memory.handle,
        wakeups=wakeups,
    )
    worker_jobs = [Handed(replace(spec, role="worker", rank=seat.rank)) for seat in seats]
    return _started(
        (schemes.serve, Handed(spec), seats[0].optimizer),
        *((schemes.work, handed, seat) for handed, seat in zip(worker_jobs, seats, strict=True)),
    )


def _collective(work: Callable[[Seat, str], None]) -> Launch:
    def launch(seats: Sequence[Seat], _: int, stack: ExitStack) -> list[BaseProcess]:
        store = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store"
        return _started(*((work, seat, str(store)) for seat in seats))

    return launch


def _queues(seats: Sequence[Seat], _: int, stack: ExitStack) -> list[BaseProcess]:
    inbox, outboxes = FORKED.Queue(), [FORKED.Queue() for _ in seats]
    for each in (inbox, *outboxes):
        stack.callback(each.close)
    return _started(
        (schemes.queue_server, replace(seats[0], gate=None), inbox, outboxes),
        *((schemes.queue_worker, seat, inbox, outbox) for seat, outbox in zip(seats, outboxes, strict=True)),
    )


SCHEMES: dict[str, Launch] = {
    "parameter server": _parameter_server,
    "gloo all-reduce, one flat buffer": _collective(schemes.all_reduce),
    "torch DDP": _collective(schemes.ddp),
    "numpy arrays through queues": _queues,
}
