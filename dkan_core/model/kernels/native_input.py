"""A model's first layer by the native extension, from prepared rows to its outputs.

What a column adds to the outputs is a function of its value alone, a stored byte or a code. It is computed once for
each value that occurs in a batch, a table, and each row takes the sum of its values' entries and of its one-hot
weights. The gradients go the same way back. It is the same sum in another order.

Shape suffixes: B rows, F numeric features, C coded features, O outputs, G centers, I inputs, K = I * G, V rows of the
table of one-hot weights.
"""

import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dkan_core.data.encoding.preprocessor import UNSEEN
from dkan_core.model.kernels.native import OPERATIONS, BelowAutograd, register
from dkan_core.native.library import InputLayerArguments, require_library


class EmbeddedColumn(NamedTuple):
    """A coded feature whose embedding is an input."""

    feature: int
    codes: int
    width: int


class OneHotGroup(NamedTuple):
    """Coded features whose joint value has weights of its own."""

    first: int
    """Row of the table of weights."""

    rows: int
    cap: int
    """Codes from here on count as unseen; 0 where there is no limit."""

    columns: Sequence[tuple[int, int]]
    """Features, and what their code is multiplied by."""

    def indices(self, codes_of: Callable[[int], npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the rows of the table that rows of data have, given their codes of each feature."""
        joint = functools.reduce(np.add, (codes_of(feature) * np.int64(stride) for feature, stride in self.columns))
        return self.first + (np.where(joint < self.cap, joint, UNSEEN) if self.cap else joint)


@dataclass(frozen=True)
class InputLayout:
    """Where the inputs of a first layer come from, in the order of its weights: scores, then embeddings."""

    scores: Sequence[int]
    """Numeric features."""

    embedded: Sequence[EmbeddedColumn]
    groups: Sequence[OneHotGroup]

    def to_tensor(self) -> Tensor:
        """Return the numbers that ``native/src/input_layer.h`` describes."""
        codes = {column.feature: column.codes for column in self.embedded}
        # Those of every code of one column: the entries of its values hold them, too, and a row takes one, not two.
        own = {
            columns[0][0]: first
            for first, rows, cap, columns in self.groups
            if cap and codes.get(columns[0][0]) == rows
        }
        groups = [group for group in self.groups if own.get(group.columns[0][0]) != group.first]
        return torch.tensor([*self._inputs(own), len(groups), *(n for group in groups for n in _numbers(group))])

    def _inputs(self, own: dict[int, int]) -> Iterator[int]:
        yield from (len(self.scores), *self.scores, len(self.embedded))
        first = len(self.scores)
        for feature, codes, width in self.embedded:
            yield from (feature, codes, width, first, own.get(feature, -1))
            first += width


def _numbers(group: OneHotGroup) -> list[int]:
    flat = [number for column in group.columns for number in column]
    return [group.first, group.rows, group.cap, len(group.columns), *flat]


class InputWeights(NamedTuple):
    """What a first layer learns."""

    spline_OK: Tensor
    base_OI: Tensor
    bias_O: Tensor
    one_hot_VO: Tensor | None
    embeddings: Sequence[Tensor]


def input_layer(
    scores_BF: Tensor | None,
    byte_scores: Tensor,
    codes_BC: Tensor | None,
    weights: InputWeights,
    grid: tuple[Tensor, float],
    layout: Tensor,
) -> Tensor:
    """Return basis and linear map plus SiLU and linear map of scores and embeddings, plus one-hot weights.

    Args:
        scores_BF: Float32, or uint8 as stored.
        byte_scores: The score ``(256,)`` that each byte stands for.
        codes_BC: Int32.
        weights: Of the layer, of one-hots and of embeddings.
        grid: Centers ``(G,)`` and width of the Gaussians.
        layout: ``InputLayout`` as a tensor.

    Shape:
        - Output: ``(B, O)``

    Raises:
        IndexError: A code has no row in a table.
    """
    out_BO: Tensor = torch.ops.dkan.input_layer(scores_BF, byte_scores, codes_BC, *weights, *grid, layout)
    return out_BO


class InputCall:
    """The arguments of both passes, and the tensors that their pointers point into."""

    def __init__(self, *arguments: Any) -> None:
        *tensors, embeddings, centers_G, width, layout = arguments
        kept: list[Any] = [each if each is None else each.contiguous() for each in tensors]
        scores_BF, byte_scores, codes_BC, spline_OK, base_OI, bias_O, one_hot_VO = kept
        embeddings = [each.contiguous() for each in embeddings]
        self._kept = (kept, embeddings)
        self._pointers: list[Any] = []
        is_bytes = scores_BF is not None and scores_BF.dtype == torch.uint8
        given = codes_BC if scores_BF is None else scores_BF
        self.rows, self.outputs = len(given), len(bias_O)
        self.arguments = InputLayerArguments(
            bytes=_pointer(scores_BF) if is_bytes else None,
            byte_scores=byte_scores.data_ptr(),
            scores=None if is_bytes else _pointer(scores_BF),
            codes=_pointer(codes_BC),
            spline=spline_OK.data_ptr(),
            base=base_OI.data_ptr(),
            bias=bias_O.data_ptr(),
            one_hot=_pointer(one_hot_VO),
            centers=centers_G.data_ptr(),
            embeddings=self._list(embeddings),
            layout=layout.data_ptr(),
            rows=self.rows,
            features=0 if scores_BF is None else scores_BF.shape[1],
            coded=0 if codes_BC is None else codes_BC.shape[1],
            inputs=base_OI.shape[1],
            outputs=self.outputs,
            num_centers=len(centers_G),
            inverse_width=1 / width,
        )

    def run(self, out_BO: Tensor) -> None:
        """Compute the layer's outputs."""
        self.arguments.out = out_BO.data_ptr()
        self._run(backward=False)

    def add_gradients(
        self, grad_BO: Tensor, grad_scores_BF: Tensor | None, weights: Sequence[Tensor | None], tables: Sequence[Tensor]
    ) -> None:
        """Add the gradients of weights and embeddings to tensors, and that of the scores where it is wanted."""
        self.arguments.grad_out = grad_BO.data_ptr()
        self.point_to_gradients(grad_scores_BF, weights, tables)
        self._run(backward=True)

    def point_to_gradients(
        self, grad_scores_BF: Tensor | None, weights: Sequence[Tensor | None], tables: Sequence[Tensor]
    ) -> None:
        """Add the gradients of scores (where wanted), weights and embeddings to these."""
        arguments = self.arguments
        arguments.grad_scores = _pointer(grad_scores_BF)
        arguments.grad_spline, arguments.grad_base, arguments.grad_bias, arguments.grad_one_hot = map(_pointer, weights)
        arguments.grad_embeddings = self._list(tables)

    def _list(self, tensors: Sequence[Tensor]) -> int:
        pointers = np.array([each.data_ptr() for each in tensors], np.uintp)
        self._pointers.append(pointers)
        return int(pointers.ctypes.data)

    def _run(self, *, backward: bool) -> None:
        wrong = require_library().dkan_input_layer(ctypes.byref(self.arguments), backward, torch.get_num_threads())
        if wrong >= 0:
            raise IndexError(f"row {wrong} has a code that is no row of its table")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _forward(*arguments: Any) -> Tensor:
    call = InputCall(*arguments)
    out_BO: Tensor = arguments[3].new_empty(call.rows, call.outputs)
    call.run(out_BO)
    return out_BO


def _backward(grad_BO: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    *arguments_of_call, needs_scores = arguments
    gradients = _empty_gradients(*arguments)
    scores_BF, *weights, tables = gradients
    for each in (scores_BF, *weights, *tables):
        each.zero_()
    call = InputCall(*arguments_of_call)
    call.add_gradients(grad_BO.contiguous(), scores_BF if needs_scores else None, weights, tables)
    return gradients


def _empty_gradients(
    scores_BF: Tensor | None,
    byte_scores: Tensor,
    codes_BC: Tensor | None,
    spline_OK: Tensor,
    base_OI: Tensor,
    bias_O: Tensor,
    one_hot_VO: Tensor | None,
    embeddings: Sequence[Tensor],
    centers_G: Tensor,
    width: float,
    layout: Tensor,
    needs_scores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    nothing = spline_OK.new_empty(0)
    return (
        nothing if scores_BF is None or not needs_scores else torch.empty_like(scores_BF),
        torch.empty_like(spline_OK, memory_format=torch.contiguous_format),
        torch.empty_like(base_OI, memory_format=torch.contiguous_format),
        torch.empty_like(bias_O),
        spline_OK.new_empty(0) if one_hot_VO is None else torch.empty_like(one_hot_VO),
        [torch.empty_like(each, memory_format=torch.contiguous_format) for each in embeddings],
    )


INPUT_ARGUMENTS = (
    "Tensor? scores, Tensor byte_scores, Tensor? codes, Tensor spline, Tensor base, Tensor bias, Tensor? one_hot, "
    "Tensor[] embeddings, Tensor centers, float width, Tensor layout"
)


def _fake_forward(scores_BF: Tensor | None, _: Tensor, codes_BC: Tensor | None, *weights: Any) -> Tensor:
    given = codes_BC if scores_BF is None else scores_BF
    assert given is not None
    out_BO: Tensor = weights[0].new_empty(len(given), len(weights[0]))
    return out_BO


register(f"input_layer({INPUT_ARGUMENTS}) -> Tensor", _forward, _fake_forward)
register(
    f"input_layer_backward(Tensor grad, {INPUT_ARGUMENTS}, bool needs_scores)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor[])",
    _backward,
    lambda _, *arguments: _empty_gradients(*arguments),
)


def _add_gradients(grad_BO: Tensor, *arguments: Any) -> None:
    *arguments_of_call, grad_spline, grad_base, grad_bias, grad_one_hot, tables = arguments
    weights = (grad_spline, grad_base, grad_bias, grad_one_hot)
    InputCall(*arguments_of_call).add_gradients(grad_BO.contiguous(), None, weights, tables)


register(
    f"add_input_layer_gradients(Tensor grad, {INPUT_ARGUMENTS}, Tensor(a!) grad_spline, Tensor(b!) grad_base, "
    "Tensor(c!) grad_bias, Tensor(d!)? grad_one_hot, Tensor(e!)[] grad_embeddings) -> ()",
    _add_gradients,
    lambda *_: None,
)


class _Accumulation(threading.local):
    in_place = False


_accumulation = _Accumulation()


@contextmanager
def gradients_in_place() -> Iterator[None]:
    """Make a backward pass inside it add the gradients of a layer's parameters where they are kept.

    Autograd makes a copy of each first, which is most of the memory that a step moves where tables are large.
    """
    _accumulation.in_place = True
    try:
        yield
    finally:
        _accumulation.in_place = False


def adds_in_place() -> bool:
    """Return whether this thread is in a backward pass that adds gradients where they are kept."""
    return bool(_accumulation.in_place)


def kept_gradients(parameters: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """Return where the gradients of some parameters are kept; None unless all of them are."""
    kept = [None if each is None or not each.is_leaf else each.grad for each in parameters]
    usual = [
        each is None or (grad is not None and grad.is_contiguous()) for each, grad in zip(parameters, kept, strict=True)
    ]
    return kept if all(usual) else None


class _InputLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, width: float, *tensors: Any) -> Tensor:
        ctx.save_for_backward(*tensors)
        ctx.width = width
        with BelowAutograd():
            out_BO: Tensor = torch.ops.dkan.input_layer(*_InputLayer._arguments(width, tensors))
        return out_BO

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needs_scores = ctx.needs_input_grad[1]
        arguments = _InputLayer._arguments(ctx.width, ctx.saved_tensors)
        *weights, embeddings = arguments[3:8]
        kept = kept_gradients([*weights, *embeddings]) if _accumulation.in_place and not needs_scores else None
        if kept is not None:
            torch.ops.dkan.add_input_layer_gradients(grads[0], *arguments, *kept[:4], kept[4:])
            return (None,) * len(ctx.needs_input_grad)
        gradients = torch.ops.dkan.input_layer_backward(grads[0], *arguments, needs_scores)
        scores_BF, *weights, one_hot_VO, tables = gradients
        has_one_hot = arguments[6] is not None
        # In the order of the tensors: centers and layout have none.
        return (
            *(None, scores_BF if needs_scores else None, None, None),
            *weights,
            one_hot_VO if has_one_hot else None,
            *(None, None),
            *tables,
        )

    @staticmethod
    def _arguments(width: float, tensors: Sequence[Any]) -> tuple[Any, ...]:
        *first, one_hot_VO, centers_G, layout = tensors[:9]
        return (*first, one_hot_VO, [*tensors[9:]], centers_G, width, layout)


def _differentiable(*arguments: Any) -> Tensor:
    *first, embeddings, centers_G, width, layout = arguments
    out_BO: Tensor = _InputLayer.apply(width, *first, centers_G, layout, *embeddings)
    return out_BO


OPERATIONS.impl("input_layer", _differentiable, "Autograd")
