"""Use the fused kernels only where they are right: they are compiled on the user's device, by the user's Triton.

What they compute is compared with the formula once for each shape and type, on random numbers. If it differs, or if
they do not compile, a warning says so and ``recompute`` is used: a wrong kernel costs a second, never a result.
"""

import functools
import logging
import subprocess
from collections.abc import Callable

import torch
from torch import Tensor

from dkan_core.model.kernels import eager, recompute
from dkan_core.utils import gpu
from dkan_core.utils.messages import first_line

CHECK_ROWS = 300
"""Several tiles of rows, the last one not full."""

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Norm of the error over that of the result. On an H100, 3e-7 was measured in float32 and 3e-3 in bfloat16."""

logger = logging.getLogger(__name__)


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float) -> Tensor:
    """Return the same as ``eager.radial_linear``, by the fused kernels where they are right."""
    product = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else weight_OK.dtype
    shape = (*weight_OK.shape[:-2], x_BI.shape[-1], weight_OK.shape[-2], len(centers_G))
    if not weight_OK.is_cuda or not is_verified(shape, product, weight_OK.device, torch.is_grad_enabled()):
        return recompute.radial_linear(x_BI, weight_OK, centers_G, width)
    from dkan_core.model.kernels import fused

    return fused.radial_linear(x_BI, weight_OK, centers_G, width)


@functools.cache
def is_verified(shape: tuple[int, ...], product: torch.dtype, device: torch.device, gradients: bool) -> bool:
    """Return whether the fused kernels give what the formula says.

    Args:
        shape: Networks side by side, inputs, outputs and centers.
        product: Type of the operands of matrix products.
        device: Where to compute.
        gradients: Whether those are wanted too.
    """
    if product not in TOLERANCES:
        return False
    errors = functools.partial(_errors, shape, product, device, gradients)
    return is_right("the fused kernel of radial_linear", device, errors, TOLERANCES[product])


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


@torch.inference_mode(False)
def _errors(shape: tuple[int, ...], product: torch.dtype, device: torch.device, gradients: bool) -> list[float]:
    """Return the relative errors of the result, and of both gradients where they are wanted, against float64."""
    from dkan_core.model.kernels import fused

    *networks, inputs, outputs, centers = shape
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*networks, *size, generator=generator, device=device)

    grid_G = torch.linspace(-2, 2, centers, device=device)
    operands = (random(CHECK_ROWS, inputs), random(outputs, inputs * centers))
    grad_BO = random(CHECK_ROWS, outputs)
    results: list[tuple[Tensor, ...]] = []
    for kernel, exact in ((fused.radial_linear, False), (eager.radial_linear, True)):
        leaves = [each.double() if exact else each for each in operands]
        half = not exact and product != torch.float32
        with torch.set_grad_enabled(gradients), torch.autocast("cuda", product, enabled=half):
            leaves = [each.requires_grad_(gradients) for each in leaves]
            out_BO = kernel(leaves[0], leaves[1], grid_G.to(leaves[0].dtype), 0.6)
        # Of a sum, as in ``choice``: without importing SymPy.
        found = torch.autograd.grad((out_BO * grad_BO.to(out_BO.dtype)).sum(), leaves) if gradients else ()
        results.append((out_BO.detach(), *found))
    return [relative_error(*pair) for pair in zip(*results, strict=True)]
