"""Steps taken on a GPU without the host: parameters, moments and rows lie there, and a step is one CUDA graph.

The host tells the device some steps' learning rates and positions in the stream of rows, replays the graph once per
step, and reads the losses at the end. A step's numbers are those of ``HostSteps``, but for the order of sums.

Shape suffixes: P trainable parameters, S steps that the device is told of at once.
"""

import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dkan_core.data.loading.loader import SliceBatches, slice_of_rank
from dkan_core.data.loading.tiers import place_on_host
from dkan_core.training.compute.device_adamw import DeviceAdamW
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.local_steps import HostSteps, LocalSteps
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.training.compute.resident_rows import rows_on_device
from dkan_core.training.compute.step_compilation import compile_step
from dkan_core.training.compute.step_exchange import NoExchange, StepExchange
from dkan_core.training.compute.step_graph import StepGraph
from dkan_core.training.state.aggregation import LossTotals
from dkan_core.training.state.parameter_store import UpdateRules
from dkan_core.utils.arrays import Float32

PLANNED_STEPS = 256
"""Steps that are sent to the device at once: their learning rates and positions are a few kilobytes."""

MAX_STEPS_IN_FLIGHT = 16
"""Steps that the host may be ahead: enough to keep the device busy, few enough for heartbeats to tell of progress."""

logger = logging.getLogger(__name__)


class DeviceSteps(LocalSteps):
    """Steps with everything on the device of the model."""

    def __init__(
        self,
        replica: Replica,
        batches: SliceBatches,
        rules: UpdateRules,
        on_step: Callable[[], None] = lambda: None,
        exchange: StepExchange | None = None,
    ) -> None:
        super().__init__(replica, batches, rules, on_step)
        self.device = replica.device
        self.exchange = exchange or NoExchange(replica, rules.config)
        self.resident = rows_on_device(batches.reader, rules.config, self.device, on_step)
        if self.resident is None:
            place_on_host(batches.reader, rules.config)
        parameters = replica.values_P.numel()
        # One contiguous buffer, so that a single exchange averages all of it over processes.
        self.state_3P = torch.zeros(3, parameters, device=self.device)
        replica.bind_values(self.state_3P[0])
        self.optimizer = DeviceAdamW(rules.groups, replica.values_P, PLANNED_STEPS)
        self.positions_S = torch.zeros(PLANNED_STEPS, dtype=torch.int64, device=self.device)
        self.epoch = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.totals_2 = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._graph = StepGraph(self.device, self.exchange.all_agree)
        # With peers, all processes decide this together before the first step.
        self._takes_graph = not self.exchange.has_peers and self.resident is not None
        self._in_flight: deque[torch.cuda.Event] = deque()
        self._compiled = False
        self._rehearsed = not self.exchange.has_peers

    def take(self, state_3P: Float32, steps: range, slice_index: int, lr_scale: float) -> LossTotals:
        return self.take_rounds(state_3P, [steps], slice_index, lr_scale)

    def take_rounds(self, state_3P: Float32, rounds: Sequence[range], slice_index: int, lr_scale: float) -> LossTotals:
        """Take the steps of some rounds of an epoch on one slice; the exchange has its turn after each round."""
        if not self.exchange.ends_rounds:
            rounds = [range(rounds[0].start, rounds[-1].stop)]
        # Graphs are captured, and events recorded, on the current device: the caller may have another.
        with torch.cuda.device_of(self.replica.values_P):
            if not self._compiled:
                self._compile(rounds[0].start, slice_index)
            if not self._rehearsed:
                self._rehearse(rounds[0].start, slice_index)
            try:
                return self._take(state_3P, rounds, slice_index, lr_scale)
            except torch.cuda.OutOfMemoryError:
                # The peers are in the middle of these steps, and would take part in none of them again.
                if self.resident is None or self.exchange.has_peers:
                    raise
            # Only after the error is gone, as it holds the step's memory. The state is unchanged: a step writes it
            # last.
            self._release_rows()
            return self._take(state_3P, rounds, slice_index, lr_scale)

    def _compile(self, step: int, slice_index: int) -> None:
        """Compile the kernels of a step, unless its rows would have to be read twice for that."""
        self._compiled = True
        first, stop = self._slice_of(step, slice_index)
        on_gpu = self.device.type == "cuda" and self.resident is not None
        if on_gpu and self.rules.config.kernel == "auto" and stop > first:
            self._plan(range(step, step + 1), [first], 0.0)
            rows = functools.partial(self._rows, step, slice_index, stop - first)
            compile_step(self.replica.model, rows, self.rules.config)

    def _rehearse(self, step: int, slice_index: int) -> None:
        """Compute a gradient without other processes: kernels are compiled, and it shows whether memory suffices."""
        first, stop = self._slice_of(step, slice_index)
        self._plan(range(step, step + 1), [first], 0.0)
        try:
            self.exchange.own_gradient(self._rows(step, slice_index, stop - first))
        except torch.cuda.OutOfMemoryError:
            if self.resident is None:
                raise
            self._release_rows()
        self._rehearsed = True
        why_not = self.exchange.why_not_captured
        if not why_not and self.resident is None:
            why_not = "batches are sent to the device"
        # Peers may read from slower disks, or compile kernels that this process found in a cache.
        self.exchange.wait_for_peers(self.on_step)
        self._takes_graph = self.exchange.all_agree(not why_not)
        if not self._takes_graph:
            reason = why_not or "another rank's cannot be"
            logger.info("steps cannot be captured as a CUDA graph and are launched kernel by kernel: %s", reason)

    def _release_rows(self) -> None:
        logger.warning("a step and all rows do not fit on %s: batches are sent there from now on", self.device)
        self.resident = None
        self._takes_graph = False
        place_on_host(self.batches.reader, self.rules.config)
        self._graph.release()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _take(self, state_3P: Float32, rounds: Sequence[range], slice_index: int, lr_scale: float) -> LossTotals:
        host_3P = torch.from_numpy(state_3P)
        self.state_3P.copy_(host_3P)
        self.totals_2.zero_()
        rows = 0
        for steps in rounds:
            taken = self._take_round(steps, slice_index, lr_scale)
            self.exchange.end_round(self.state_3P, taken)
            rows += taken
        # Reading the losses waits without a limit, and nothing else watches the exchanges of a graph.
        self._wait_for_steps(0)
        host_3P.copy_(self.state_3P)
        loss, weight = self.totals_2.tolist()
        return LossTotals(loss / (weight or 1.0), weight, rows)

    def _take_round(self, steps: range, slice_index: int, lr_scale: float) -> int:
        """Take steps; return the rows of their slices."""
        positions = [self._slice_of(step, slice_index) for step in steps]
        for start in range(0, len(steps), PLANNED_STEPS):
            planned = slice(start, start + PLANNED_STEPS)
            self._plan(steps[planned], [first for first, _ in positions[planned]], lr_scale)
            for step, (first, stop) in zip(steps[planned], positions[planned], strict=True):
                self._take_one(step, slice_index, stop - first)
        return sum(stop - first for first, stop in positions)

    def _slice_of(self, step: int, slice_index: int) -> tuple[int, int]:
        """Return the positions of a slice in its epoch's stream of rows."""
        in_epoch = step % self.rules.work_plan.steps_per_epoch
        return slice_of_rank(self.batches.reader.rows, in_epoch, self.rules.config, slice_index)

    def _plan(self, steps: range, positions: list[int], lr_scale: float) -> None:
        """Send the learning rates and positions of the next steps to the device."""
        schedule = self.rules.schedule
        epoch = steps.start // self.rules.work_plan.steps_per_epoch
        if self.resident is not None:
            self.resident.begin_epoch(epoch)
        lrs = [schedule.learning_rate(step) * lr_scale for step in steps]
        self.optimizer.plan(lrs, [self.rules.optimizer_count(step) for step in steps])
        self.positions_S[: len(steps)].copy_(torch.tensor(positions))
        self.epoch.fill_(epoch)
        self.cursor.zero_()

    def _take_one(self, step: int, slice_index: int, rows: int) -> None:
        if rows == 0 and not self.exchange.has_peers:
            self.cursor.add_(1)
        elif self._takes_graph:
            # With peers, a process takes the same slice of every step; alone, it may be given slices of any size.
            counted = self._global_rows(step) if self.exchange.has_peers else rows
            self._graph.run(lambda: self._step(self._rows(step, slice_index, rows)), counted)
        else:
            self._step(self._rows(step, slice_index, rows))
        self._wait_for_steps(MAX_STEPS_IN_FLIGHT)
        self.on_step()

    def _global_rows(self, step: int) -> int:
        """Return the rows of a step over all workers: they decide how many of them are each one's."""
        size = self.rules.config.batch_size
        return min(size, self.batches.reader.rows - step % self.rules.work_plan.steps_per_epoch * size)

    def _rows(self, step: int, slice_index: int, rows: int) -> dict[str, Tensor]:
        """Return the rows of a slice: those on the device at the cursor, or those of the loader."""
        if self.resident is None:
            return to_tensors(self.batches.get(step, slice_index), self.device)
        return self.resident.gather(self.positions_S[self.cursor], self.epoch, rows)

    def _step(self, batch: dict[str, Tensor]) -> None:
        """Take a step as the host has set it; nothing here waits for the device."""
        loss, weight, total = self.exchange.gradient(batch)
        share, limit = (total > 0).float(), self.rules.config.clip_norm
        self.optimizer.step(self.cursor, self.state_3P, self.replica.gradients_P, share, limit)
        self.totals_2 += torch.stack([loss * weight, weight])
        self.cursor.add_(1)

    def _wait_for_steps(self, most: int) -> None:
        """Wait until at most ``most`` of the steps that the device was given are in flight."""
        if self.device.type != "cuda":
            return
        event = torch.cuda.Event()
        event.record()
        self._in_flight.append(event)
        while len(self._in_flight) > most:
            self.exchange.wait_for(self._in_flight.popleft())

    def release_graph(self) -> None:
        """Give up the graph of a step: a connection of NCCL closes only once no graph holds one of its exchanges."""
        self._graph.release()


def make_local_steps(
    replica: Replica, batches: SliceBatches, rules: UpdateRules, on_step: Callable[[], None] = lambda: None
) -> LocalSteps:
    """Return the local steps for the replica's device; on the CPU they work in the arrays of the state itself."""
    return (DeviceSteps if replica.device.type == "cuda" else HostSteps)(replica, batches, rules, on_step)
