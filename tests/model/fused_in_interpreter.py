"""Compares the fused kernels with the formulas in Triton's interpreter, and prints the relative errors as JSON.

Triton decides when a kernel is defined whether it is interpreted, so this is a process of its own.
"""

import json
import os
import sys
from unittest.mock import patch

import torch
from torch import Tensor

from dkan_core.model.kernels import choice, gpu_layers
from dkan_core.model.kernels.choice import Compute, Operands, Operation, relative_errors

SHAPES = {
    "one of each": ((), 1, 1, 1, 2),
    "tiles not full": ((), 130, 40, 70, 8),
    "centers no power of two": ((), 33, 2, 3, 5),
    "many centers": ((), 20, 3, 2, 32),
    "twice the centers": ((2,), 66, 9, 20, 16),
    "more outputs than a tile": ((), 17, 3, 200, 8),
    "networks side by side": ((3,), 65, 20, 1, 8),
    "no rows": ((), 0, 3, 2, 8),
}
"""Networks side by side, rows, inputs, outputs, centers."""

BYTE_SHAPES = {
    "bytes, one of each": (1, 1, 1, 2),
    "bytes, tiles not full": (130, 40, 70, 8),
    "bytes, centers no power of two": (33, 3, 1, 5),
    "bytes, twice the centers": (70, 40, 70, 16),
    "bytes, more inputs and outputs than a tile": (33, 150, 300, 2),
}
"""Rows, inputs, outputs, centers."""

HIDDEN_SHAPES = {
    "hidden, one of each": (1, 1, 1, 2, 0.0),
    "hidden, several networks": (2, 37, 20, 8, 0.2),
    "hidden, more inputs than a tile": (1, 9, 1100, 8, 0.1),
    "hidden, nothing dropped": (2, 37, 130, 8, 0.0),
    "hidden, twice the centers": (2, 19, 130, 16, 0.0),
}
"""Networks side by side, rows, inputs, centers, share of the inputs that is dropped."""

WIDTH = 0.6


def random(*size: int) -> Tensor:
    """Return normal numbers, the same for a size."""
    return torch.randn(*size, generator=torch.Generator().manual_seed(len(size) + sum(size)))


def errors_in_interpreter(compute: Compute, operation: Operation, operands: Operands) -> list[float]:
    """Return the relative errors of the result and of all gradients."""
    for each in (*operands.rows, *operands.weights):
        if each is not None and each.is_floating_point():
            each.requires_grad_()
    return relative_errors(compute, operation, operands)


def of_radial_linear(
    networks: tuple[int, ...], rows: int, inputs: int, outputs: int, centers: int, product: torch.dtype
) -> list[float]:
    """Return the errors of ``fused.radial_linear``."""
    from dkan_core.model.kernels import fused

    x, weight = random(*networks, rows, inputs), random(*networks, outputs, inputs * centers)
    operands = Operands((x,), (weight,), (torch.linspace(-2, 2, centers), WIDTH), product)
    return errors_in_interpreter(fused.radial_linear, choice.RADIAL_LINEAR, operands)


def of_byte_layer(rows: int, inputs: int, outputs: int, centers: int, product: torch.dtype) -> list[float]:
    """Return the errors of ``fused_bytes.byte_layer``."""
    stored = torch.randint(0, 256, (rows, inputs), generator=torch.Generator().manual_seed(rows)).byte()
    stored[1:2] = 0
    weights = (0.1 * random(outputs, inputs * centers), random(outputs, inputs), random(outputs))
    operands = Operands((stored,), weights, (torch.linspace(-2, 2, centers), WIDTH), product)
    operation = gpu_layers.BYTE_LAYER
    return errors_in_interpreter(operation.candidates["fused"], operation, operands)


def of_hidden_layer(networks: int, rows: int, inputs: int, centers: int, dropped: float) -> list[float]:
    """Return the errors of ``fused_hidden.hidden_layer``."""
    units = networks * inputs
    keys = (random(rows + units) * (1 << 29)).int()
    sizes = (inputs, inputs, inputs * centers, inputs, 1)
    weights = tuple(random(networks, size) + (index == 0) for index, size in enumerate(sizes))
    constants = (torch.linspace(-2, 2, centers), WIDTH, keys[rows:], round(dropped * gpu_layers.ALL_CELLS))
    row_keys = keys[:rows] if dropped else None
    operands = Operands((random(rows, units), row_keys), weights, constants, torch.float32)
    operation = gpu_layers.HIDDEN_LAYER
    return errors_in_interpreter(operation.candidates["fused"], operation, operands)


def of_adamw(*, with_rates: bool, clipped: bool) -> list[float]:
    """Return the errors of parameters and moments after a step of ``fused_adamw``."""
    from dkan_core.training.compute import device_adamw, fused_adamw

    size = 2 * fused_adamw.BLOCK + 3
    state, gradient = random(3, size).abs(), random(size)
    rates = device_adamw.Rates(random(3).abs() + 0.1, random(size).abs(), random(size).relu() if with_rates else None)
    share, clip = torch.tensor(0.7), torch.tensor(0.3 if clipped else 1.0)
    expected = state.clone()
    device_adamw.take_plain_step(expected, gradient, rates, share, clip if clipped else None)
    fused_adamw.take_step(state, gradient, *rates, share, clip)
    return [float((a - b).norm() / b.norm()) for a, b in zip(state, expected, strict=True)]


def of_last_parameters() -> list[float]:
    """Return the errors of ``fused_adamw`` where indices need more than 32 bits: no program is run but the last one."""
    import triton
    from triton.runtime.interpreter import interpreter_builder

    from dkan_core.training.compute import device_adamw, fused_adamw

    first, rest = 1 << 31, 7
    # Arrays that overlap, but for their last numbers: of the memory, no more than these is touched.
    memory = torch.empty(first + 5 * rest)
    memory[first:] = random(5 * rest).abs()
    *_, gradient, decay = arrays = memory.as_strided((5, first + rest), (rest, 1))
    state, factors, one = arrays[:3], random(3).abs() + 0.1, torch.ones(())
    expected = state[:, first:].clone()
    rates = device_adamw.Rates(factors, decay[first:], None)
    device_adamw.take_plain_step(expected, gradient[first:], rates, one, None)

    def begin_last(*_: int) -> None:
        interpreter_builder.grid_idx = (first // fused_adamw.BLOCK, 0, 0)

    with patch.object(triton, "cdiv", lambda *_: 1), patch.object(interpreter_builder, "set_grid_idx", begin_last):
        fused_adamw.take_step(state, gradient, factors, decay, None, one, one)
    return [float((a - b).norm() / b.norm()) for a, b in zip(state[:, first:], expected, strict=True)]


def of_distant_weights() -> list[float]:
    """Return the errors of ``fused_bytes.byte_layer`` where the indices of weights need more than 32 bits."""
    from dkan_core.model.kernels import fused_bytes

    rows, inputs, centers, padded = 5, 16, 8, 1 << 28
    stored = torch.randint(0, 256, (rows, inputs), generator=torch.Generator().manual_seed(rows)).byte()
    layer = fused_bytes._Layer(stored, torch.linspace(-2, 2, centers), 1, WIDTH, torch.float32)
    near = random(2, centers + 1, 1, inputs).to(fused_bytes.SPLIT)
    # Of the memory, no more than these inputs is touched.
    distant = near.new_empty(2, centers + 1, 1, padded)
    distant[..., :inputs] = near
    with patch.object(fused_bytes, "_cut", lambda *_: (1, 1)):
        found, expected = (layer.forward(weight, random(1)) for weight in (distant, near))
    return [float((found - expected).norm())]


def of_lookup(*, of_row: bool) -> list[float]:
    """Return how many rows and keys of ``fused_lookup`` are others."""
    from dkan_core.training.compute import fused_lookup, row_keys, row_lookup

    rule = row_keys.KeyRule(12345678901234567890, of_row)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    arguments = (order, torch.tensor([17]), torch.tensor([1 << 40]), 2 * fused_lookup.BLOCK + 3, rule)
    pairs = zip(fused_lookup.look_up(*arguments), row_lookup.plain_look_up(*arguments), strict=True)
    return [float((found != expected).sum()) for found, expected in pairs]


def all_errors() -> dict[str, list[float]]:
    """Return the relative errors by what is computed."""
    from dkan_core.model.kernels import fused, fused_bytes

    # Not bfloat16, which numpy, and so the interpreter, lacks.
    half = torch.float16
    fused_bytes.SPLIT = half
    errors = {name: of_radial_linear(*shape, torch.float32) for name, shape in SHAPES.items()}
    errors |= {name: of_byte_layer(*shape, torch.float32) for name, shape in BYTE_SHAPES.items()}
    errors |= {name: of_hidden_layer(*shape) for name, shape in HIDDEN_SHAPES.items()}
    errors["half precision"] = of_radial_linear(*SHAPES["tiles not full"], half)
    errors["bytes, half precision"] = of_byte_layer(*BYTE_SHAPES["bytes, tiles not full"], half)
    errors["adamw"] = of_adamw(with_rates=False, clipped=False)
    errors["adamw, rates by parameter"] = of_adamw(with_rates=True, clipped=True)
    errors["far in memory"] = of_last_parameters() + of_distant_weights()
    errors["lookup of rows"] = of_lookup(of_row=False) + of_lookup(of_row=True)
    fused.has_large_tiles = lambda device: False
    # As on a GPU where there are enough rows: a program adds up several tiles.
    with patch.object(fused, "PROGRAMS", 1), patch.object(fused_bytes, "PROGRAMS", 1):
        errors["tiles of an A100"] = of_radial_linear(*SHAPES["tiles not full"], torch.float32)
        errors["bytes, tiles of an A100"] = of_byte_layer(65, 70, 70, 2, torch.float32)
    return errors


if __name__ == "__main__":
    os.environ["TRITON_INTERPRET"] = "1"
    sys.stdout.write(json.dumps(all_errors()))
