"""A step captured as a CUDA graph, which is launched as one.

NCCL takes a sum either from the graphs of all ranks or from none, so all ranks must capture the same step and replay it
for the same batches. They do so only if every rank was able to capture it.
"""

import logging
from collections import Counter
from collections.abc import Callable

import torch

from dkan_core.utils import gpu

WARMUP_STEPS = 3
"""Steps before one is captured: kernels are compiled and libraries choose theirs in the first ones."""

logger = logging.getLogger(__name__)


def can_capture(device: torch.device) -> bool:
    """Return whether what a device does can be captured as a graph."""
    return device.type == "cuda"


class StepGraph:
    """Runs a step: at first as it is, then, for batches of the usual number of rows, as a captured CUDA graph.

    Args:
        device: Where the step computes.
        all_agree: Returns whether all processes that take part in the steps agree.
    """

    def __init__(self, device: torch.device, all_agree: Callable[[bool], bool] = bool) -> None:
        self._device = device
        self._enabled = can_capture(device)
        self._all_agree = all_agree
        self._graph: torch.cuda.CUDAGraph | None = None
        self._rows = 0
        """Rows of the captured step."""

        self._launches: Counter[int] = Counter()
        """Steps launched so far, by their rows: a process may be given slices of two sizes in turn."""

    def run(self, step: Callable[[], None], rows: int) -> None:
        """Run a step of ``rows`` rows.

        Args:
            step: Always the same one but for the rows; it reads and writes the same tensors each time.
            rows: Rows of the step; with several processes those of the global batch, so that all decide alike.
        """
        if self._graph is not None and rows == self._rows:
            self._graph.replay()
            return
        step()
        if self._enabled and self._graph is None:
            self._launches[rows] += 1
            if self._launches[rows] == WARMUP_STEPS:
                self._rows = rows
                self._capture(step)

    def release(self) -> None:
        """Give the graph up; steps are launched from now on."""
        self._enabled = False
        if self._graph is not None:
            self._graph.reset()
            self._graph = None

    def _capture(self, step: Callable[[], None]) -> None:
        graph, reason = None, "another rank cannot capture it"
        try:
            graph = gpu.capture(step, self._device)
        except gpu.CaptureError as error:
            reason = str(error)
        if self._all_agree(graph is not None):
            logger.info("a step of %d rows is one CUDA graph from now on", self._rows)
            self._graph = graph
            return
        self._enabled = False
        if graph is not None:
            graph.reset()
        logger.warning("a step cannot be captured as a CUDA graph, and is launched kernel by kernel: %s", reason)
