"""Batches that a GPU reads by itself out of the loader's buffers, while the host goes on."""

from collections.abc import Callable

import torch

from dkan_core.data.format.shard_writer import Arrays
from dkan_core.data.loading.loader import DeviceCopies


def copies_to(device: torch.device) -> DeviceCopies | None:
    """Return what the loader's buffers need where batches go to a device; None for the CPU, which reads them itself."""
    if device.type != "cuda":
        return None

    def begun() -> Callable[[], object]:
        # Behind the copies, which are in the same stream: when it is reached they have ended.
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
