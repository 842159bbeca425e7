"""The memory that a run's processes share: small records and large arrays, each with one writer.

It is an anonymous file (memfd), so a small /dev/shm is no limit and nothing is left behind when every process dies.
There are no locks that a killed process could hold: a record is written twice in turn with a checksum, so that a
reader finds the last whole one; an array is not read before a record says that it may be.

Shape suffixes: P trainable parameters, W workers, N numbers of a push, R processes that count heartbeats, S snapshot
slots, K arrays of the state.
"""

import mmap
import os
import struct
import tempfile
import zlib
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import numpy as np

from dkan_core.config.resolved import ResolvedTrainConfig
from dkan_core.errors import ConfigError
from dkan_core.training.state.ledger import Ledger, TrainingFigures
from dkan_core.utils.arrays import Float32, Int64

# Size of all slots, beyond the minimum: the evaluator may fall behind by that much before snapshots are skipped.
SNAPSHOT_BYTES = 256 << 20
# Size of the slots in use while the evaluator keeps up: a checkpoint may need what was scored a moment ago.
ROTATED_BYTES = 64 << 20
# One is kept for the final snapshot and one is being scored. A slot holds the whole state, three times the parameters
# or more, so that there are no more of them than needed where the state is large.
MIN_SLOTS, MAX_SLOTS = 4, 64

# Size of both copies of a record; the largest, the ledger, takes less than half of it (asserted in ``Record``).
RECORD_BYTES = 512
# In a lease, instead of a work unit: there is nothing to do yet, or nothing any more.
WAIT = -1
SHUTDOWN = -2
# A reader finds two half-written copies only while both are being written; that never happens so often in a row.
READ_TRIES = 100

# Roles that have one process; of the others there is one per rank.
SINGLE_ROLES = ("server", "evaluator")

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, kw_only=True)
class Control:
    """What the launcher asks for."""

    stop: int = 0
    """Whether training is to end after this step, with a last evaluation."""


@dataclass(frozen=True, kw_only=True)
class CheckpointRequest:
    """The launcher's request for a copy of the committed state, and in another record the answer."""

    number: int = 0
    """Counted from 1. Equal in both records: the copy is there, and the launcher may use it until it asks again."""


@dataclass(frozen=True, kw_only=True)
class WorkerGeneration:
    """A worker process, as the launcher knows it."""

    generation: int = 0
    """1 for the first process of a rank, 2 for the one that replaced it, and so on; 0 while there is none."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A work unit that the server has handed to a worker."""

    id: int = 0
    """Grows with every lease of the run."""

    unit: int = WAIT
    """The work unit, or ``WAIT`` to wait, or ``SHUTDOWN`` when nothing is left to do."""

    units_done: int = 0
    """Done when it was handed out."""

    active_buffer: int = 0
    """Where the parameters to begin with stand."""

    lr_scale: float = 1.0
    """Factor of the learning rate."""


@dataclass(frozen=True, kw_only=True)
class Push:
    """What a worker has to say about the update in its push buffer."""

    generation: int = 0
    """Generation of the process that is ready to work, or has pushed."""

    lease: int = 0
    loss: float = 0.0
    """Mean over the measured labels."""

    weight: float = 0.0
    """Sum of their weights."""

    rows: int = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot(TrainingFigures):
    """What the evaluator needs to know about a snapshot."""

    number: int = 0
    """Counted from 1."""

    final: int = 0
    time_is_up: int = 0
    checksum: int = 0

    def figures(self) -> TrainingFigures:
        """Return the figures of the snapshot's step."""
        return TrainingFigures(**{field.name: getattr(self, field.name) for field in fields(TrainingFigures)})


@dataclass(frozen=True, kw_only=True)
class EvaluatorProgress:
    """How far the evaluator is."""

    number: int = 0
    """Snapshots up to this one are dealt with; their slots are free."""

    exhausted: int = 0
    """Whether patience is used up."""


@dataclass(frozen=True, kw_only=True)
class TimeSpent:
    """Seconds of a process and of those before it in its place, by part: see ``dkan_core.training.breakdown``."""

    feed: float = 0.0
    compute: float = 0.0
    exchange: float = 0.0
    wait: float = 0.0
    update: float = 0.0
    score: float = 0.0
    save: float = 0.0
    other: float = 0.0

    peak_memory: int = 0
    """Peak memory in bytes of such a process: allocated on a CUDA device, elsewhere resident."""


class Record(Generic[ValueT]):
    """A frozen dataclass of numbers in shared memory, with one writer; readers never see half of it."""

    def __init__(self, view: memoryview, empty: ValueT) -> None:
        self._view = view
        self._empty = empty
        self._names = [field.name for field in fields(empty)]  # type: ignore[arg-type]
        kinds = "".join("d" if isinstance(getattr(empty, name), float) else "q" for name in self._names)
        self._format = struct.Struct(f"<q{kinds}")
        self._half = len(view) // 2
        self._seen = b""
        self._value = empty
        """What ``_seen``, the bytes of both copies, held."""

        assert self._format.size + 4 <= self._half, f"{type(empty).__name__} is too large for a record"

    def read(self) -> ValueT:
        """Return the last value that was written whole, or an empty one where none was."""
        # Most records are looked at more often than they change.
        seen = bytes(self._view)
        if seen == self._seen:
            return self._value
        for _ in range(READ_TRIES):
            # Both halves may be written while they are read.
            if (found := self._newest(seen)) is not None or not any(seen):
                break
            seen = bytes(self._view)
        if found is None:
            return self._empty
        self._value = type(self._empty)(**dict(zip(self._names, found[1:], strict=True)))
        self._seen = seen
        return self._value

    def write(self, value: ValueT) -> None:
        """Write a value."""
        newest = self._newest(bytes(self._view))
        count = 1 + (newest[0] if newest else 0)
        payload = self._format.pack(count, *(getattr(value, name) for name in self._names))
        # Over the older half: the newer one stays whole until this one is.
        start = count % 2 * self._half
        self._view[start : start + len(payload) + 4] = payload + zlib.crc32(payload).to_bytes(4, "little")

    def _newest(self, copies: bytes) -> tuple[Any, ...] | None:
        """Return the count and the values of the newer copy that is whole; None where neither is."""
        return max((part for part in (self._unpack(copies, half) for half in range(2)) if part), default=None)

    def _unpack(self, copies: bytes, half: int) -> tuple[Any, ...] | None:
        start = half * self._half
        payload = copies[start : start + self._format.size]
        checksum = int.from_bytes(copies[start + len(payload) : start + len(payload) + 4], "little")
        values = self._format.unpack(payload)
        return values if values[0] and zlib.crc32(payload) == checksum else None


@dataclass(frozen=True, kw_only=True)
class MemoryShape:
    """How large the arrays are."""

    parameters: int
    """P."""

    workers: int
    """W."""

    average: bool = False
    """Whether the state holds a moving average of the parameters: K is 4, else 3."""

    local: bool = False
    """Whether each worker has moments of its own."""

    pushed: int = 1
    """Arrays of P numbers in a push: parameters and two moments where the server averages them, else one."""

    @classmethod
    def from_config(cls, config: ResolvedTrainConfig, parameters: int) -> Self:
        """Return the shape of a run with a resolved config."""
        return cls(
            parameters=parameters,
            workers=config.workers,
            average=config.ema_decay > 0,
            local=config.mode == "async",
            pushed=3 if config.mode == "average" else 1,
        )

    @property
    def state(self) -> int:
        """K: parameters, two moments, and the moving average where there is one."""
        return 3 + self.average

    @property
    def whole_state(self) -> int:
        """Arrays of a state to resume from: with the workers' own moments, where they have some."""
        return self.state + 2 * (self.workers if self.local else 0)

    @property
    def snapshot_slots(self) -> int:
        """Snapshots that may wait for the evaluator; beyond ``rotated_slots``, memory is taken only by those that do.

        >>> [MemoryShape(parameters=10**size, workers=1).snapshot_slots for size in (3, 6, 9)]
        [64, 22, 4]
        """
        return self._slots_within(SNAPSHOT_BYTES)

    @property
    def rotated_slots(self) -> int:
        """Slots that snapshots take in turn while the evaluator keeps up.

        >>> [MemoryShape(parameters=10**size, workers=1).rotated_slots for size in (3, 6, 9)]
        [64, 5, 4]
        """
        return self._slots_within(ROTATED_BYTES)

    def _slots_within(self, limit: int) -> int:
        return max(MIN_SLOTS, min(MAX_SLOTS, limit // (4 * self.whole_state * self.parameters)))

    @property
    def needed_bytes(self) -> int:
        """Least bytes of it that a run uses; waiting snapshots use more."""
        sizes = self.sizes() | {"snapshots": (self.rotated_slots, self.whole_state)}
        return 4 * self.parameters * sum(int(np.prod(lead)) for lead in sizes.values())

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array, without P."""
        return {
            "buffers": (2, self.state),
            "pushes": (self.workers, self.pushed),
            "moments": (self.workers if self.local else 0, 2),
            "restore_points": (2, self.whole_state),
            "checkpoint": (self.whole_state,),
            "snapshots": (self.snapshot_slots, self.whole_state),
        }


class SharedMemory:
    """Views of the shared file.

    Args:
        handle: File descriptor, from ``create_memory`` or inherited.
        shape: How large the arrays are.
    """

    def __init__(self, handle: int, shape: MemoryShape) -> None:
        self.handle = handle
        self.shape = shape
        self._map = mmap.mmap(handle, _size(shape))
        self._used = 0
        workers = range(shape.workers)
        self.ledger = self._record(Ledger())
        self.control = self._record(Control())
        self.worker_generations = [self._record(WorkerGeneration()) for _ in workers]
        self.leases = [self._record(Lease()) for _ in workers]
        self.pushes = [self._record(Push()) for _ in workers]
        self.restore_points = [self._record(Ledger(version=-1)) for _ in range(2)]
        self.checkpoint_request = self._record(CheckpointRequest())
        self.checkpoint_answer = self._record(CheckpointRequest())
        self.checkpoint_ledger = self._record(Ledger())
        self.snapshots = [self._record(Snapshot()) for _ in range(shape.snapshot_slots)]
        self.snapshot_ledgers = [self._record(Ledger()) for _ in range(shape.snapshot_slots)]
        self.evaluated = self._record(EvaluatorProgress())
        self.worker_times = [self._record(TimeSpent()) for _ in workers]
        self.server_time = self._record(TimeSpent())
        self.evaluator_time = self._record(TimeSpent())
        count = shape.workers + len(SINGLE_ROLES)
        self.heartbeats_R: Int64 = np.frombuffer(self._map, np.int64, count, self._used)
        self.activity_R: Int64 = np.frombuffer(self._map, np.int64, count, self._used + 8 * count)
        assert self._used + 16 * count <= _control_bytes(shape), "_control_bytes counts every record"
        arrays = self._arrays()
        self.buffers_2KP = arrays["buffers"]
        self.pushes_WN = arrays["pushes"]
        self.moments_W2P = arrays["moments"]
        self.restore_points_2KP = arrays["restore_points"]
        self.checkpoint_KP = arrays["checkpoint"]
        self.snapshots_SKP = arrays["snapshots"]

    def liveness_index(self, role: str, rank: int) -> int:
        """Return where in ``heartbeats_R`` and ``activity_R`` a process counts."""
        return self.shape.workers + SINGLE_ROLES.index(role) if role in SINGLE_ROLES else rank

    def _record(self, empty: ValueT) -> Record[ValueT]:
        start = self._used
        self._used += RECORD_BYTES
        return Record(memoryview(self._map)[start : start + RECORD_BYTES], empty)

    def _arrays(self) -> dict[str, Float32]:
        offset = _control_bytes(self.shape)
        padded = _padded(self.shape.parameters)
        views = {}
        for name, lead in self.shape.sizes().items():
            count = int(np.prod(lead)) * padded
            flat = np.frombuffer(self._map, np.float32, count, offset)
            # What a push holds lies in one piece, as the strategies without a server aggregate it.
            rows = (self.shape.workers, -1) if name == "pushes" else (*lead, padded)
            numbers = self.shape.parameters * (self.shape.pushed if name == "pushes" else 1)
            views[name] = flat.reshape(rows)[..., :numbers]
            offset += 4 * count
        return views


def create_memory(shape: MemoryShape) -> SharedMemory:
    """Create the shared file, all zeros.

    Raises:
        ConfigError: A limit of the process is lower than what the file takes.
    """
    handle = anonymous_file("dkan-memory")
    try:
        os.ftruncate(handle, _size(shape))
        return SharedMemory(handle, shape)
    except OSError as error:
        os.close(handle)
        raise ConfigError(
            f"{_size(shape) / 1e9:.2f} GB of shared memory cannot be allocated ({error.strerror}); raise the limits on "
            "the size of files (ulimit -f) and on memory (ulimit -v), or lower members, hidden or workers"
        ) from error


def anonymous_file(name: str) -> int:
    """Return the descriptor of a file in no folder: in memory on Linux, elsewhere in the folder for temporary files."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _control_bytes(shape: MemoryShape) -> int:
    records = 10 + 4 * shape.workers + 2 * shape.snapshot_slots
    return _whole_pages(RECORD_BYTES * records + 2 * 8 * (shape.workers + len(SINGLE_ROLES)))


def _size(shape: MemoryShape) -> int:
    arrays = sum(int(np.prod(lead)) for lead in shape.sizes().values())
    return _control_bytes(shape) + 4 * arrays * _padded(shape.parameters)


def _padded(parameters: int) -> int:
    # Whole pages: arrays that are never written to, such as unused slots, take no memory and share no page with others.
    return _whole_pages(4 * parameters) // 4


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
