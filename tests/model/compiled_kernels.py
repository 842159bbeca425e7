"""Compiles the fused kernels for GPUs that are not here, and reports what the compiler says of them.

Triton takes the target of its driver: this one names a GPU, and has no way to launch anything on it.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from dkan_core.model.kernels import fused

WARP_SIZE = 32


@dataclass(frozen=True)
class CompiledKernel:
    """What one kernel takes of a multiprocessor."""

    name: str
    registers: int
    """Of a thread."""

    stack: int
    """Bytes of a thread's memory for what registers had no room for."""

    shared: int
    """Bytes of a program."""


class AbsentGpu:
    """What Triton asks of a driver before it launches, for a GPU of some compute capability, such as (9, 0)."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self.number = 10 * capability[0] + capability[1]

    def get_current_target(self) -> GPUTarget:
        """Return the GPU to compile for."""
        return GPUTarget("cuda", self.number, WARP_SIZE)

    def get_current_device(self) -> int:
        """Return a number of its own, by which Triton keeps what it has compiled."""
        return self.number

    def get_current_stream(self, device: int) -> int:
        """Return any: nothing is launched."""
        return device


def compile_instead(capability: tuple[int, int], shared_memory: int, patch: pytest.MonkeyPatch) -> list[CompiledKernel]:
    """Have every launch compile its kernel for another GPU instead; return the list of what is compiled.

    Tensors may lie anywhere, and come back as they were.

    Args:
        capability: The GPU's compute capability.
        shared_memory: Bytes that a program may have there.
        patch: Undoes all this.
    """
    compiled: list[CompiledKernel] = []
    run = JITFunction.run

    def compile_only(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        del warmup
        compiled.append(report(run(kernel, *arguments, grid=grid, warmup=True, **constants)))

    patch.setattr(driver, "_active", AbsentGpu(capability))
    patch.setattr(JITFunction, "run", compile_only)
    properties = SimpleNamespace(shared_memory_per_block_optin=shared_memory)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    choose = fused.has_large_tiles
    patch.setattr(fused, "has_large_tiles", lambda device: choose(torch.device("cuda", 0)))
    return compiled


def report(kernel: Any) -> CompiledKernel:
    """Return what cuobjdump says of a compiled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    numbers = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    return CompiledKernel(kernel.name, numbers["REG"], numbers["STACK"] + numbers["LOCAL"], kernel.metadata.shared)
