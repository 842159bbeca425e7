"""CUDA graphs that are not captured but recorded, so that what a replay does can be looked at on any machine.

As on a GPU, nothing is computed while a step is captured, and a replay does what was captured with the memory that it
was captured with: whatever the host has decided, made or put elsewhere since does not count.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dkan_core.training.compute import step_graph
from dkan_core.utils import gpu


class RecordedGraph:
    """Stands for ``torch.cuda.CUDAGraph``."""

    made: ClassVar[list["RecordedGraph"]]
    """All of a test."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, Any]] = []
        self.own: set[int] = set()
        """Addresses of the memory that the step takes for itself: the pool of a real graph."""

        self.outside: dict[int, tuple[Tensor, UntypedStorage]] = {}
        """What else the step reads and writes, by address, and what it found there."""

        self.replays = 0
        self.made.append(self)

    @torch.no_grad()
    def replay(self) -> None:
        """Do everything again in its order; exchanges that follow one another, as in a ring, at the same time."""
        self.replays += 1
        exchanges: list[Any] = []
        for func, args, kwargs, results in self.operations:
            if func.namespace != "c10d":
                _wait_for(exchanges)
            for old, new in zip(tree_leaves(results), tree_leaves(func(*args, **kwargs)), strict=True):
                # Views and what is changed in place lie there already.
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
                elif func.namespace == "c10d" and isinstance(new, torch.ScriptObject):
                    exchanges.append(new)
        _wait_for(exchanges)

    def reset(self) -> None:
        """Give up what was captured."""
        self.operations.clear()
        self.outside.clear()

    def note_operands(self, args: Any, kwargs: Any) -> None:
        """Keep what the step finds in memory that is not its own."""
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.own and storage.data_ptr() not in self.outside:
                    self.outside[storage.data_ptr()] = (tensor, storage.clone())

    def note_results(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Take note of an operation and of the memory that it has taken."""
        storages = {each.untyped_storage().data_ptr() for each in tree_leaves(results) if isinstance(each, Tensor)}
        self.own |= storages - self.outside.keys()
        # With its tensors: their memory must not become another's before the last replay.
        self.operations.append((func, args, kwargs, results))


def _wait_for(exchanges: list[Any]) -> None:
    while exchanges:
        dist.Work.unbox(exchanges.pop(0)).wait()


class Recording(TorchDispatchMode):
    """Notes what is computed, and computes it."""

    def __init__(self, graph: RecordedGraph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.graph.note_operands(args, kwargs)
        results = func(*args, **kwargs)
        self.graph.note_results(func, args, kwargs, results)
        return results


class Streams:
    """Stand for what torch knows of streams."""

    current = "default"

    @contextmanager
    def use(self, stream: str) -> Iterator[None]:
        """Stand for ``torch.cuda.stream``."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


STREAMS = Streams()


@contextmanager
def recording(graph: RecordedGraph, stream: str, capture_error_mode: str) -> Iterator[None]:
    """Stand for ``torch.cuda.graph``: what was computed is undone at the end, as if it had only been captured."""
    with Recording(graph), STREAMS.use(stream):
        yield
    for tensor, content in graph.outside.values():
        tensor.untyped_storage().copy_(content)


@contextmanager
def failing(graph: RecordedGraph, stream: str, capture_error_mode: str) -> Iterator[None]:
    """Stand for ``torch.cuda.graph`` where a step does what cannot be captured, as in versions of torch up to 2.14."""
    with recording(graph, stream, capture_error_mode):
        yield
    STREAMS.current = stream
    try:
        raise RuntimeError("operation not permitted when stream is capturing")
    finally:
        raise RuntimeError("operation failed due to a previous error during capture")


def record_graphs(patch: pytest.MonkeyPatch, capture: Any = recording) -> list[RecordedGraph]:
    """Let steps on the CPU be captured in such a way; return the list of the graphs that are made."""
    made: list[RecordedGraph] = []
    patch.setattr(RecordedGraph, "made", made, raising=False)
    patch.setattr(torch.cuda, "CUDAGraph", RecordedGraph)
    patch.setattr(torch.cuda, "graph", capture)
    patch.setattr(torch.cuda, "device", nullcontext)
    patch.setattr(torch.cuda, "current_device", lambda: 0)
    patch.setattr(torch.cuda, "current_stream", lambda: STREAMS.current)
    patch.setattr(torch.cuda, "stream", STREAMS.use)
    patch.setattr(gpu, "_capture_stream", lambda device: "of captures")
    patch.setattr(step_graph, "can_capture", lambda device: True)
    return made
