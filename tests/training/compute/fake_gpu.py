"""A GPU that is not there: tensors of ``cuda`` without numbers, and a check of what is done with them.

Torch knows the shape, type and device of everything that is computed (``FakeTensorMode``), refuses what mixes devices,
and what would need a number. ``NoHost`` refuses the rest: whatever the host would wait for, or a CUDA graph could not
repeat.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dkan_core.model.kernels import choice
from dkan_core.training.compute import device_adamw, loss, row_lookup

CUDA = torch.device("cuda", 0)


class HostInvolvedError(AssertionError):
    """The host takes part in what a GPU is to do alone."""


class NoHost(TorchDispatchMode):
    """Refuses operations with a tensor of the host, be it that they read or that they make one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, result)):
            if isinstance(tensor, Tensor) and tensor.device != CUDA:
                raise HostInvolvedError(f"{func} has a tensor on {tensor.device}")
        return result


@contextmanager
def fake_gpu(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let tensors be made on ``CUDA``."""
    patch.setattr(torch.autograd, "backward", backward)
    # Of a model that is there already; torch would try to swap its parameters, which such tensors do not let it.
    patch.setattr(nn.Module, "to", lambda module, device: module)
    # Which would look for a GPU before it is of use.
    patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    patch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield
    loss.constants.cache_clear()


@contextmanager
def fused_kernels(patch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the fused kernels pass for right on ``CUDA``, and yield the list of those that were launched."""
    pytest.importorskip("triton")
    from triton.runtime.jit import JITFunction

    from dkan_core.model.kernels import fused

    launched = []

    def launch(kernel: Any, *arguments: Any, grid: Any, **constants: Any) -> None:
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        assert {each.device for each in tensors} == {CUDA}, kernel
        launched.append(kernel.__name__)

    patch.setattr(choice, "name_of_best", lambda *_: "fused")
    for module in (device_adamw, row_lookup):
        patch.setattr(module, "fused_is_right", lambda device: True)
    patch.setattr(JITFunction, "run", launch)
    patch.setattr(fused, "has_large_tiles", lambda device: True)
    patch.setattr(fused, "_aligned", Tensor.contiguous)
    patch.setattr(torch.cuda, "device_of", nullcontext)
    yield launched


def backward(loss: Tensor) -> None:
    """Do what ``torch.autograd.backward`` does for one loss: its threads would look for a real GPU."""
    assert loss.grad_fn is not None
    waiting = _users(loss.grad_fn)
    grads: defaultdict[Node, dict[int, Tensor]] = defaultdict(dict)
    grads[loss.grad_fn][0] = torch.ones_like(loss)
    ready = [loss.grad_fn]
    with torch.no_grad():
        while ready:
            node = ready.pop()
            found = _apply(node, grads.pop(node, {}))
            for (after, input_index), grad in zip(node.next_functions, found, strict=False):
                if after is None:
                    continue
                if grad is not None:
                    # As the engine does: some operations leave it to that to undo what they have repeated and cast.
                    expected = after._input_metadata[input_index]
                    grad = grad.sum_to_size(expected.shape).to(expected.dtype)
                    earlier = grads[after].get(input_index)
                    grads[after][input_index] = grad if earlier is None else earlier + grad
                waiting[after] -= 1
                if waiting[after] == 0:
                    ready.append(after)


def _users(root: Node) -> dict[Node, int]:
    """Return how many nodes of the graph each node waits for."""
    counts: dict[Node, int] = {root: 0}
    found = [root]
    while found:
        for after, _ in found.pop().next_functions:
            if after is None:
                continue
            if after not in counts:
                found.append(after)
            counts[after] = counts.get(after, 0) + 1
    return counts


def _apply(node: Any, grads: dict[int, Tensor]) -> tuple[Tensor | None, ...]:
    """Return the gradients of a node's inputs, given those of its outputs; a leaf keeps its own."""
    if not grads:
        return (None,) * len(node.next_functions)
    if hasattr(node, "variable"):
        leaf = node.variable
        if leaf.grad is None:
            leaf.grad = grads[0]
        else:
            leaf.grad += grads[0]
        return ()
    given = [grads.get(input_index) for input_index in range(max(grads) + 1)]
    found = node.apply(*given) if hasattr(node, "apply") else node(*given)
    return found if isinstance(found, tuple) else (found,)
