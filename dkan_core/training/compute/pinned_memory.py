"""Copies between host and GPU through pinned memory, which the GPU reads and writes without the processor."""

import logging
from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from dkan_core.data.loading.loader import DeviceCopies
from dkan_core.utils.arrays import Arrays, Float32

PORTABLE = 1
"""Flag of ``cudaHostRegister``: pinned for all contexts."""

logger = logging.getLogger(__name__)


def pin(arrays: list[Float32], device: torch.device) -> bool:
    """Keep the pages of arrays in memory for a device to copy from and to, until this process ends.

    Copies work without it, too, but go through a buffer of the driver, for which the host waits.

    Args:
        arrays: Each in one piece; shared memory or not.
        device: Nothing is done for the CPU.

    Returns:
        Whether all are pinned.
    """
    if device.type != "cuda":
        return False
    for array in arrays:
        code = int(torch.cuda.cudart().cudaHostRegister(array.ctypes.data, array.nbytes, PORTABLE))
        if code:
            # For example, because of a limit on locked memory: this costs only speed.
            logger.warning("%.1f MB cannot be pinned (CUDA error %d): copies take longer", array.nbytes / 1e6, code)
            _forget_error(device)
            return False
    return True


def _forget_error(device: torch.device) -> None:
    """Clear the error that CUDA keeps for this thread, which torch would find after its next kernel, and raise."""
    with suppress(RuntimeError):
        torch.ones(1, device=device)


def copies_to(device: torch.device) -> DeviceCopies | None:
    """Return how the loader's buffers are copied to a device; None for the CPU, which reads them itself."""
    if device.type != "cuda":
        return None

    def begun() -> Callable[[], object]:
        # The event follows the copies in the same stream, so they have ended once it is reached.
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(device))

        def wait() -> None:
            # The loader's thread has a current device of its own: on the first GPU, a call would open a context there.
            with torch.cuda.device(device):
                event.synchronize()

        return wait

    return DeviceCopies(pin=pinned, begun=begun)


def pinned(arrays: Arrays) -> Arrays:
    """Return arrays like these in memory that is never swapped out: a GPU copies from it without the processor."""
    return {name: torch.from_numpy(array).pin_memory().numpy() for name, array in arrays.items()}


def to_tensors(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """Move a batch to a device; through pinned memory and without waiting when that is CUDA."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device.type != "cuda":
        return tensors
    # A copy from pageable memory takes two steps, which the host waits for. The loader's buffers are pinned already.
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}
