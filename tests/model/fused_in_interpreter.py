"""Compares the fused kernels with the formula in Triton's interpreter, and prints the relative errors as JSON.

Triton decides when a kernel is defined whether it is interpreted, so this is a process of its own.
"""

import json
import os
import sys

import torch

from dkan_core.model.kernels import eager

SHAPES = {
    "one of each": ((), 1, 1, 1, 2),
    "tiles not full": ((), 130, 40, 70, 8),
    "centers no power of two": ((), 33, 2, 3, 5),
    "many centers": ((), 20, 3, 2, 32),
    "more outputs than a tile": ((), 17, 3, 200, 8),
    "networks side by side": ((3,), 65, 20, 1, 8),
    "no rows": ((), 0, 3, 2, 8),
}


def relative_errors(
    networks: tuple[int, ...], rows: int, inputs: int, outputs: int, centers: int, *, half: bool
) -> list[float]:
    """Return those of the result and of both gradients, against float64."""
    from dkan_core.model.kernels import fused

    generator = torch.Generator().manual_seed(rows)
    operands = [
        torch.randn(*networks, *size, generator=generator) for size in ((rows, inputs), (outputs, inputs * centers))
    ]
    grad = torch.randn(*networks, rows, outputs, generator=generator)
    grid = torch.linspace(-2, 2, centers)
    results = []
    for kernel, dtype in ((fused.radial_linear, torch.float32), (eager.radial_linear, torch.float64)):
        leaves = [each.to(dtype).requires_grad_() for each in operands]
        with torch.autocast("cpu", torch.float16, enabled=half and dtype == torch.float32):
            out = kernel(leaves[0], leaves[1], grid.to(dtype), 0.6)
        results.append((out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))))
    return [
        float((found.double() - expected).norm() / expected.norm().clamp(min=1e-30))
        for found, expected in zip(*results, strict=True)
    ]


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    from dkan_core.model.kernels import fused

    errors = {name: relative_errors(*shape, half=False) for name, shape in SHAPES.items()}
    # Not bfloat16, which numpy, and so the interpreter, lacks.
    errors |= {"half precision": relative_errors(*SHAPES["tiles not full"], half=True)}
    fused.compute_capability = lambda device: (8, 0)
    errors |= {"tiles of an A100": relative_errors(*SHAPES["tiles not full"], half=False)}
    sys.stdout.write(json.dumps(errors))
