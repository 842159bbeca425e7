"""Steps taken on a GPU without the host: parameters, moments and rows lie there, and a step is one CUDA graph.

The host tells the device some steps' learning rates and places in the stream of rows, replays the graph once per step,
and reads the losses at the end. A step's numbers are those of ``HostSteps``, but for the order of sums.

Shape suffixes: P trainable parameters, S steps that the device is told of at once.
"""

import logging
import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from dkan_core.data.loading.loader import SliceBatches
from dkan_core.data.loading.order import slice_of
from dkan_core.data.loading.tiers import place_on_host
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import add_gradient, to_tensors
from dkan_core.training.compute.local_steps import HostSteps, LocalSteps
from dkan_core.training.compute.resident_rows import rows_on_device
from dkan_core.training.state.adamw import BETA1, BETA2, EPSILON, AdamState
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.training.state.parameter_store import Rules

PLANNED_STEPS = 256
"""Steps that the device is told of at once: their learning rates and places are a few kilobytes."""

WARMUP_STEPS = 3
"""Steps before one is captured: kernels are compiled and libraries choose theirs in the first ones."""

MAX_STEPS_IN_FLIGHT = 16
"""Steps that the host may be ahead: enough to keep the device busy, few enough for heartbeats to tell of progress."""

logger = logging.getLogger(__name__)


class DeviceSteps(LocalSteps):
    """Steps with everything on the device of the model."""

    def __init__(
        self, replica: Replica, batches: SliceBatches, rules: Rules, on_step: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(replica, batches, rules, on_step)
        self.device = replica.device
        self.resident = rows_on_device(batches.reader, rules.config, self.device)
        if self.resident is None:
            place_on_host(batches.reader, rules.config)
        self.moments_2P = torch.zeros(2, replica.values_P.numel(), device=self.device)
        self.decay_P = torch.zeros_like(replica.values_P)
        for start, stop, decay in rules.decayed:
            self.decay_P[start:stop] = decay
        self.factors_S3 = torch.zeros(PLANNED_STEPS, 3, device=self.device)
        self.places_S = torch.zeros(PLANNED_STEPS, dtype=torch.int64, device=self.device)
        self.epoch = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.totals_2 = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._graph = StepGraph(self.device)
        self._in_flight: deque[torch.cuda.Event] = deque()

    def take(self, state: AdamState, steps: range, slice_index: int, lr_scale: float) -> LossTotals:
        """Take steps on one slice of their batches."""
        # Graphs are captured, and events recorded, on the current device: the caller may have another.
        with torch.cuda.device_of(self.replica.values_P):
            try:
                return self._take(state, steps, slice_index, lr_scale)
            except torch.cuda.OutOfMemoryError:
                if self.resident is None:
                    raise
                logger.warning("a step and all rows do not fit on %s: batches are sent there from now on", self.device)
            # After the error, which holds what the step had allocated. The state is as it was: it is changed last.
            self._release_rows()
            return self._take(state, steps, slice_index, lr_scale)

    def _release_rows(self) -> None:
        self.resident = None
        place_on_host(self.batches.reader, self.rules.config)
        self._graph = StepGraph(self.device)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _take(self, state: AdamState, steps: range, slice_index: int, lr_scale: float) -> LossTotals:
        host = [torch.from_numpy(array) for array in (state.values_P, state.exp_avg_P, state.exp_avg_sq_P)]
        device = [self.replica.values_P, *self.moments_2P]
        for target, source in zip(device, host, strict=True):
            target.copy_(source)
        places = [self._slice_of(step, slice_index) for step in steps]
        self.totals_2.zero_()
        for index, (step, (first, stop)) in enumerate(zip(steps, places, strict=True)):
            if index % PLANNED_STEPS == 0:
                planned = slice(index, index + PLANNED_STEPS)
                self._plan(steps[planned], [begin for begin, _ in places[planned]], lr_scale)
            self._take_one(step, slice_index, stop - first)
        for target, source in zip(host, device, strict=True):
            target.copy_(source)
        loss, weight = self.totals_2.tolist()
        return LossTotals(loss / (weight or 1.0), weight, sum(stop - first for first, stop in places))

    def _slice_of(self, step: int, slice_index: int) -> tuple[int, int]:
        """Return the places of a slice in its epoch's stream of rows."""
        config = self.rules.config
        return slice_of(
            self.batches.reader.rows,
            step % self.rules.work_plan.steps_per_epoch,
            batch_size=config.batch_size,
            rank=slice_index,
            workers=config.workers,
            weights=config.slice_weights,
        )

    def _plan(self, steps: range, places: list[int], lr_scale: float) -> None:
        """Give the device what it needs to know of the steps to come."""
        schedule = self.rules.schedule
        epoch = steps.start // self.rules.work_plan.steps_per_epoch
        if self.resident is not None:
            self.resident.begin_epoch(epoch)
        factors = [
            (schedule.learning_rate(step) * lr_scale, 1 - BETA1 ** (step + 1), math.sqrt(1 - BETA2 ** (step + 1)))
            for step in steps
        ]
        self.factors_S3[: len(steps)].copy_(torch.tensor(factors))
        self.places_S[: len(steps)].copy_(torch.tensor(places))
        self.epoch.fill_(epoch)
        self.cursor.zero_()

    def _take_one(self, step: int, slice_index: int, rows: int) -> None:
        if rows == 0:
            self.cursor.add_(1)
        elif self.resident is None:
            self._step(to_tensors(self.batches.get(step, slice_index), self.device))
        else:
            self._graph.run(lambda: self._step_on_resident_rows(rows), rows)
        self._wait_for_earlier_steps()
        self.on_step()

    def _step_on_resident_rows(self, rows: int) -> None:
        assert self.resident is not None
        self._step(self.resident.gather(self.places_S[self.cursor], self.epoch, rows))

    def _step(self, batch: dict[str, Tensor]) -> None:
        """Take a step as the host has set it; nothing here waits for the device."""
        self.replica.gradients_P.zero_()
        loss, weight = add_gradient(self.replica.model, batch, self.rules.config)
        lr, first_rise, second_rise = self.factors_S3[self.cursor].unbind(1)
        self._update(lr, first_rise, second_rise, (weight > 0).float())
        self.totals_2 += torch.stack([loss * weight, weight])
        self.cursor.add_(1)

    def _update(self, lr: Tensor, first_rise: Tensor, second_rise: Tensor, share: Tensor) -> None:
        """Take a step of AdamW; a share of 0, that of a batch without a measured label, changes nothing."""
        values_P = self.replica.values_P
        gradient_P = self.replica.gradients_P
        limit = self.rules.config.clip_norm
        if limit is not None:
            gradient_P *= (limit / torch.linalg.vector_norm(gradient_P)).clamp(max=1.0)
        exp_avg_P, exp_avg_sq_P = self.moments_2P
        exp_avg_P.lerp_(gradient_P, (1 - BETA1) * share)
        exp_avg_sq_P.lerp_(gradient_P.square(), (1 - BETA2) * share)
        values_P.mul_(1 - lr * share * self.decay_P)
        scale_P = exp_avg_sq_P.sqrt().div_(second_rise).add_(EPSILON)
        values_P.sub_(lr * share / first_rise * exp_avg_P / scale_P)

    def _wait_for_earlier_steps(self) -> None:
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event()
        event.record()
        self._in_flight.append(event)
        if len(self._in_flight) > MAX_STEPS_IN_FLIGHT:
            self._in_flight.popleft().synchronize()


def make_local_steps(
    replica: Replica, batches: SliceBatches, rules: Rules, on_step: Callable[[], None] = lambda: None
) -> LocalSteps:
    """Return what takes steps where the replica is: on the CPU in the arrays of the state itself."""
    return (DeviceSteps if replica.device.type == "cuda" else HostSteps)(replica, batches, rules, on_step)


def can_capture(device: torch.device) -> bool:
    """Tell whether what a device does can be captured as a graph."""
    return device.type == "cuda"


class StepGraph:
    """Runs a step: at first as it is, then, for batches of the usual number of rows, as a captured CUDA graph.

    Args:
        device: Where the step computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._enabled = can_capture(device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rows = 0
        self._warmed_up = 0

    def run(self, step: Callable[[], None], rows: int) -> None:
        """Run a step of so many rows.

        Args:
            step: Always the same one but for the rows; it reads and writes the same tensors each time.
            rows: Rows of the batch.
        """
        if self._graph is not None and rows == self._rows:
            self._graph.replay()
            return
        step()
        if self._enabled and self._graph is None:
            self._warmed_up = self._warmed_up + 1 if rows == self._rows else 1
            self._rows = rows
            if self._warmed_up == WARMUP_STEPS:
                self._capture(step)

    def _capture(self, step: Callable[[], None]) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                step()
        except RuntimeError as error:
            self._enabled = False
            logger.warning("a step cannot be captured as a CUDA graph, and is launched kernel by kernel: %s", error)
            return
        logger.info("a step of %d rows is one CUDA graph from now on", self._rows)
        self._graph = graph
