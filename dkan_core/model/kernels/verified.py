"""Whether a kernel is right where it is used: it is compiled on the user's device, by the user's Triton.

What it computes is compared with the formula. If it differs, or does not compile, a warning says so, and another one is
used: a wrong kernel costs a second, never a result.
"""

import functools
import logging
import subprocess
from collections.abc import Callable

import torch
from torch import Tensor

from dkan_core.utils import gpu
from dkan_core.utils.messages import first_line

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Norm of the error over that of the result. On an H100, 3e-7 was measured in float32 and 3e-3 in bfloat16."""

logger = logging.getLogger(__name__)


def is_right(what: str, device: torch.device, errors: Callable[[], list[float]], tolerance: float) -> bool:
    """Return whether a kernel can be used on a device; a warning says so where it cannot.

    Args:
        what: What it is, for the warning.
        device: Where it computes.
        errors: Returns the relative errors of what it computes.
        tolerance: What these may be at most.
    """
    try:
        found = errors()
    except kernel_errors() as error:
        gpu.check_works(device)
        logger.warning("%s does not run on %s (%s); it is not used", what, device, first_line(error))
        return False
    # One by one: the largest of numbers with a NaN among them may be any.
    if all(error <= tolerance for error in found):
        return True
    differences = ", ".join(f"{error:.1e}" for error in found)
    logger.warning("%s differs by %s on %s; it is not used", what, differences, device)
    return False


@torch.no_grad()
def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the norm of the error over that of the expected numbers."""
    return float((found.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30))


@functools.cache
def kernel_errors() -> tuple[type[Exception], ...]:
    """Return what the compiler of a kernel, the driver and a missing Triton raise."""
    try:
        from triton.errors import TritonError
    except ImportError:
        return RuntimeError, ImportError
    # Triton calls a C compiler, which may lack Python's headers, and writes to a cache, which may be read-only.
    outside = (OSError, subprocess.CalledProcessError)
    return RuntimeError, ImportError, AttributeError, TypeError, ValueError, AssertionError, TritonError, *outside
