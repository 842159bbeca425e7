"""The cost of summing a buffer over the workers: dkan's ring compared with torch's all-reduce, by message size."""

from collections.abc import Sequence
from typing import Any

import torch

from dkan_core.training.planning.exchanges import exchange_seconds
from dkan_core.training.planning.probes.processes import open_probes

SUMS = {"ring": "ring", "allreduce": "torch"}
REPEATS = 20


def measure(sizes: Sequence[int], workers: Sequence[int]) -> list[dict[str, Any]]:
    """Return the median seconds of a sum for each size and number of workers, on the CPU and, where there are, GPUs.

    Args:
        sizes: Bytes of the buffer.
        workers: How many processes; on GPUs, each has one of its own.
    """
    table = []
    gpus = torch.cuda.device_count()
    with open_probes() as new_processes:
        for count in workers:
            places = {"gloo": ["cpu"] * count}
            if 1 < count <= gpus:
                places["nccl"] = [f"cuda:{rank}" for rank in range(count)]
            for backend, devices in places.items():
                for size in sizes:
                    seconds = {
                        column: exchange_seconds(new_processes, name, size, devices, REPEATS)
                        for name, column in SUMS.items()
                    }
                    row = {"workers": count, "backend": backend, "bytes": size}
                    row |= {f"{name}_ms": 1e3 * value for name, value in seconds.items()}
                    table.append({**row, "ratio": seconds["ring"] / seconds["torch"]})
    return table
