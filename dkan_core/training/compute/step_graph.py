"""A step captured as a CUDA graph, which is launched as one."""

import logging
from collections.abc import Callable

import torch

WARMUP_STEPS = 3
"""Steps before one is captured: kernels are compiled and libraries choose theirs in the first ones."""

logger = logging.getLogger(__name__)


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
            # The threads that read rows and watch NCCL may do what they like meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step()
        except RuntimeError as error:
            self._enabled = False
            logger.warning("a step cannot be captured as a CUDA graph, and is launched kernel by kernel: %s", error)
            return
        logger.info("a step of %d rows is one CUDA graph from now on", self._rows)
        self._graph = graph
