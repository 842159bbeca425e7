"""Handling of CUDA graphs and of GPU failures that torch leaves to its callers."""

import functools
from collections.abc import Callable

import torch


class CaptureError(Exception):
    """Work cannot be captured as a CUDA graph, but may be launched directly."""


def capture(run: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Return the CUDA graph of a function's launches on a GPU; nothing is computed.

    Raises:
        CaptureError: That cannot be. The current stream is the one that it was.
        torch.AcceleratorError: The GPU computes nothing any more.
    """
    # Restores the stream: up to torch 2.14, the stream of a failed capture stays the current one.
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream()):
        graph = torch.cuda.CUDAGraph()
        stream = _capture_stream(torch.cuda.current_device())
        try:
            # Thread-local, so that the threads that read rows and watch NCCL may call CUDA meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                run()
        except RuntimeError as error:
            # Ending a failed capture fails as well, with a less helpful error; its context has the first one.
            reason = str(error.__context__ or error)
        else:
            return graph
    check_works(device)
    raise CaptureError(reason)


@functools.cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return a GPU's stream for captures, always the same one, as libraries keep memory per stream."""
    return torch.cuda.Stream(device)


def check_works(device: torch.device) -> None:
    """Check, after an error, that a device still computes: some kernel errors make it unusable for the process.

    Raises:
        torch.AcceleratorError: What the kernel has done.
    """
    if device.type == "cuda":
        # Without waiting, because a pending sum may involve ranks that are gone.
        torch.cuda.current_stream(device).query()
