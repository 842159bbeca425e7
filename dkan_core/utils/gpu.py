"""CUDA graphs and failures of a GPU, where torch leaves these to its caller."""

import functools
from collections.abc import Callable

import torch


class CaptureError(Exception):
    """Something cannot be captured as a CUDA graph, and may be launched instead."""


def capture(run: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """Return what a function launches on a GPU as a CUDA graph; none of it is computed.

    Raises:
        CaptureError: That cannot be. The current stream is the one that it was.
        torch.AcceleratorError: The GPU computes nothing any more.
    """
    # Up to torch 2.14, the stream of a capture that has failed stays the current one.
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream()):
        graph = torch.cuda.CUDAGraph()
        stream = _capture_stream(torch.cuda.current_device())
        try:
            # The threads that read rows and watch NCCL may do what they like meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                run()
        except RuntimeError as error:
            # The end of such a capture fails too, and says less.
            reason = str(error.__context__ or error)
        else:
            return graph
    check_works(device)
    raise CaptureError(reason)


@functools.cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return a stream of a GPU; always the same one, as libraries keep memory for each."""
    return torch.cuda.Stream(device)


def check_works(device: torch.device) -> None:
    """Check, after an error, that a device still computes: after some errors of a kernel, a process's GPU does not.

    Raises:
        torch.AcceleratorError: What the kernel has done.
    """
    if device.type == "cuda":
        # Without waiting, as for a sum with ranks that may be gone.
        torch.cuda.current_stream(device).query()
