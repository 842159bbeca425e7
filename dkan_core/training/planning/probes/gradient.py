"""A process that measures one worker: its gradients, the optimizer's step, its rows, and the memory that it takes.

Shape suffixes: P trainable parameters.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor

from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.shard_reader import ShardReader
from dkan_core.data.loading.loader import row_bytes_in_batch, run_batches
from dkan_core.data.loading.prefetching import PREFETCH
from dkan_core.model.kernels.choice import captured
from dkan_core.training.communication.messages import inherited
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import add_gradient, add_part_gradient, parts_of
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.planning.probes.processes import MEASURED
from dkan_core.training.roles.process_spec import ProcessSpec
from dkan_core.training.roles.startup import open_train_split, use_device
from dkan_core.training.state.aggregation import WorkerUpdate
from dkan_core.training.state.parameter_store import ParameterStore, UpdateRules, initialize_store
from dkan_core.training.state.shared_memory import MemoryShape, create_memory
from dkan_core.utils.arrays import Arrays

# Longer where there is more noise: gradients of two sizes are compared with each other, the rest are simple medians.
# A plan measures each number of workers twice, and should not take minutes.
SECONDS, FEED_SECONDS, UPDATE_SECONDS, PRECISION_SECONDS = 0.6, 0.15, 0.15, 0.3

# One gradient of a large model on a slow device may take longer than that: two count after the warm-up.
MIN_TURNS = 4
# The median does not change with more.
MAX_TURNS = 500
# The first gradient allocates memory, the second still finds cold caches.
WARM_UP = 2
# Different rows in turns, so that they do not all come from the cache; with one batch a gradient was too fast.
KEPT_BATCHES = 4


@dataclass(frozen=True, kw_only=True)
class WorkerMeasurement:
    """What one worker costs. Times are medians in seconds, sizes in bytes."""

    small: tuple[int, float]
    """Rows of the smaller slice, and the time of its gradient."""

    large: tuple[int, float]
    update: float
    """The optimizer's step with one gradient, as server or rank take it."""

    feed: float
    """Rows per second, read as training reads them, from files that the system has in memory."""

    row_bytes: int
    memory: int
    """Parameters, gradients, what is kept for the backward pass of the larger slice, and rows read ahead."""

    small_memory: int
    """The same with the smaller slice."""

    copy_bandwidth: float | None
    """Bytes per second between a GPU and the host; None on the CPU."""

    bf16_speed: float | None
    """How many times as fast as in float32 the larger slice's gradient is in bfloat16; None where not measured."""

    graphs: tuple[float, float] | None = None
    """Times of both slices' gradients on rows that lie on the GPU, as a CUDA graph; None on the CPU."""

    def seconds(self) -> float:
        """Return the time of the larger slice's gradient, by which measurements are compared."""
        return self.large[1]


def main(spec: ProcessSpec) -> None:
    """Measure what one worker costs, and report it to the launcher."""
    device = use_device(spec)
    with open_train_split(spec) as reader:
        probed = Probe(spec, reader, device).measure()
    inherited(spec.launcher).send(kind=MEASURED, **asdict(probed))


class Probe:
    """The measurements of one process.

    Args:
        spec: Its config's batch is the larger slice; its memory holds the parameters.
        reader: The train split.
        device: Where to compute.
    """

    def __init__(self, spec: ProcessSpec, reader: ShardReader, device: torch.device) -> None:
        self.config = spec.config
        self.reader = reader
        self.device = device
        self.values_P = spec.open_memory().buffers_2KP[0, 0]
        self.memory = create_memory(MemoryShape(parameters=len(self.values_P), workers=1))
        os.close(self.memory.handle)
        initialize_store(self.memory, self.values_P)
        self.store = ParameterStore(self.memory, UpdateRules.from_config(spec.config, spec.train_rows, spec.groups))
        self.replica = Replica.from_architecture(spec.model, device, spec.config.kernel)
        self.replica.bind_gradient_array(self.memory.pushes_WN[0])
        self.replica.load(self.values_P)
        self.large = spec.config.batch_size
        # An eighth, so that the difference of both times stands out from the noise.
        self.small = max(1, self.large // 8)

    def measure(self) -> WorkerMeasurement:
        """Return all measurements of this process."""
        small, large = self._gradients()
        return WorkerMeasurement(
            small=(self.small, small),
            large=(self.large, large),
            update=median_seconds(self._update, UPDATE_SECONDS),
            feed=self._feed(),
            row_bytes=self.reader.row_bytes,
            memory=self._memory(self.large),
            small_memory=self._memory(self.small),
            bf16_speed=self._bf16_speed(),
            copy_bandwidth=self._copy_bandwidth() if self.device.type == "cuda" else None,
            graphs=self._graphs() if self.device.type == "cuda" else None,
        )

    def _batches(self, size: int) -> list[Arrays]:
        """Return some slices of ``size`` rows."""
        batches = run_batches(self.reader, replace(self.config, batch_size=size, workers=1))
        return [batch for batch in islice(batches, KEPT_BATCHES) if len(batch["labels"]) == size]

    def _gradients(self) -> tuple[float, float]:
        """Return the times of a gradient on few rows and on many, measured in turns."""
        batches = [cycle(self._batches(size)) for size in (self.small, self.large)]
        times: list[list[float]] = [[], []]
        for turn in turns(SECONDS):
            for stream, found in zip(batches, times, strict=True):
                seconds = timed(partial(self._gradient, next(stream)))
                if turn >= WARM_UP:
                    found.append(seconds)
        return float(np.median(times[0])), float(np.median(times[1]))

    def _gradient(self, arrays: Arrays, config: ResolvedTrainConfig | None = None) -> None:
        """Compute a gradient, as a worker does after its parameters have changed; on CUDA, they are there already."""
        if self.device.type == "cpu":
            self.replica.load(self.values_P)
        self.replica.compute_gradient(arrays, config or self.config)

    def _graphs(self) -> tuple[float, float]:
        """Return the times of a gradient as part of a step that a GPU takes by itself, on few rows and on many."""
        return self._graph_seconds(self.small), self._graph_seconds(self.large)

    def _graph_seconds(self, rows: int) -> float:
        batch = to_tensors(self._batches(rows)[0], self.device)

        def add() -> None:
            self.replica.gradients_P.zero_()
            add_gradient(self.replica.model, batch, self.config)

        launch = captured(add, self.device)

        def run() -> None:
            launch()
            torch.cuda.synchronize(self.device)

        return median_seconds(run, SECONDS / 2)

    def _update(self) -> None:
        step = self.store.ledger.units_done
        gradient_P = self.memory.pushes_WN[0]
        self.store.apply_updates([WorkerUpdate(unit=step, array_P=gradient_P, loss=0, weight=1, rows=1)])

    def _feed(self) -> float:
        """Return rows per second after a first look at them, which may have come from the disk."""
        batches = run_batches(self.reader, replace(self.config, epochs=1_000_000, workers=1))
        for _ in turns(FEED_SECONDS):
            next(batches)
        began = time.perf_counter()
        rows = 0
        for _ in turns(FEED_SECONDS):
            rows += len(next(batches)["labels"])
        return rows / (time.perf_counter() - began)

    def _memory(self, rows: int) -> int:
        """Return the bytes that a step on ``rows`` rows needs."""
        (batch, *_) = self._batches(rows)
        ahead = (1 + PREFETCH) * rows * row_bytes_in_batch(self.reader)
        if self.device.type == "cuda":
            # The allocator counts everything; on the CPU nothing does, so what a graph would keep is added up below.
            torch.cuda.reset_peak_memory_stats(self.device)
            self._gradient(batch)
            return int(torch.cuda.max_memory_allocated(self.device)) + ahead
        part, *_ = parts_of(to_tensors(batch, self.device), self.config)
        # By autograd, as on a GPU: what the native extension keeps in its one call per step is not seen.
        add = partial(add_part_gradient, self.replica.model.member_logits, part, self.config, torch.ones(()))
        # The first call of a kernel also checks it, which must not be measured.
        add()
        return kept_bytes(add, self.replica.values_P) + 2 * int(self.values_P.nbytes) + ahead

    def _bf16_speed(self) -> float | None:
        """Return how much faster bfloat16 computes a gradient, measured in turns with float32."""
        if self.config.precision != "fp32" or (self.device.type == "cuda" and not torch.cuda.is_bf16_supported()):
            return None
        batch = self._batches(self.large)[0]
        reduced = replace(self.config, precision="bf16")
        ratios = []
        for turn in turns(PRECISION_SECONDS):
            full = timed(lambda: self._gradient(batch))
            half = timed(lambda: self._gradient(batch, reduced))
            if turn >= WARM_UP:
                ratios.append(full / half)
        return float(np.median(ratios))

    def _copy_bandwidth(self) -> float:
        """Return the bytes per second of a copy from the GPU into the memory that processes share."""
        seconds = median_seconds(
            lambda: self.replica.copy_buffer(self.replica.gradients_P, self.memory.pushes_WN[0]), UPDATE_SECONDS
        )
        return float(self.values_P.nbytes / seconds)


def turns(seconds: float) -> Iterator[int]:
    """Count until the time is over, but at least ``MIN_TURNS`` and at most ``MAX_TURNS`` times."""
    began = time.perf_counter()
    for turn in range(MAX_TURNS):
        if turn >= MIN_TURNS and time.perf_counter() - began > seconds:
            return
        yield turn


def timed(action: Callable[[], None]) -> float:
    """Return how long something takes, in seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def median_seconds(action: Callable[[], None], seconds: float) -> float:
    """Return the median time of an action that is repeated for ``seconds`` seconds."""
    return float(np.median([timed(action) for _ in turns(seconds)]))


def kept_bytes(action: Callable[[], object], parameters: Tensor) -> int:
    """Return the bytes of what a computation keeps for its backward pass, not the parameters; no storage twice."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        action()
    sizes.pop(parameters.untyped_storage().data_ptr(), None)
    return sum(sizes.values())
