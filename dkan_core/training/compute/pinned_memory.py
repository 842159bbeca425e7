"""Memory of the host that a GPU may read and write by itself, at the speed of the link and beside the host's work."""

import logging
from contextlib import suppress

import torch

from dkan_core.training.state.adamw import Float32

PORTABLE = 1
"""Of the flags of ``cudaHostRegister``: for all contexts."""

logger = logging.getLogger(__name__)


def pin(arrays: list[Float32], device: torch.device) -> bool:
    """Keep the pages of arrays in memory for a device to copy from and to, until this process ends.

    Copies work without it too, but in two: through a buffer of the driver, which the host waits for.

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
            # Such as by a limit on locked memory: it costs speed alone.
            logger.warning("%.1f MB cannot be pinned (CUDA error %d): copies take longer", array.nbytes / 1e6, code)
            _forget_error(device)
            return False
    return True


def _forget_error(device: torch.device) -> None:
    """Clear the error that CUDA keeps for this thread, which torch would find after its next kernel, and raise."""
    with suppress(RuntimeError):
        torch.ones(1, device=device)
