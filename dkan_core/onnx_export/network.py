"""Models as nodes of a graph.

Shape suffixes: N rows, I inputs, G centers, O outputs, M members, L labels.
"""

import functools
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from torch import Tensor, nn

from dkan_core.data.encoding.preprocessor import FIRST_CODE, MISSING, UNSEEN
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.base import TabularModel
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.encoder import BINARY_SCALE, InputEncoder, OneHotWeights
from dkan_core.model.ensemble import FastKANEnsemble, MemberLayer
from dkan_core.model.fastkan import FastKAN, FastKANLayer, RadialBasis
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.onnx_export.additive import add_terms
from dkan_core.onnx_export.encoding import EncodedColumns
from dkan_core.onnx_export.graph import Graph
from dkan_core.utils.arrays import Array


def add_probabilities(graph: Graph, model: TabularModel, columns: EncodedColumns, output: str) -> None:
    """Add the whole model.

    Args:
        graph: Where the nodes go.
        model: Its parameters, on the CPU.
        columns: Its inputs.
        output: What the probabilities ``(N, L)`` float32 are to be called.
    """
    log_odds = _add_log_odds(graph, model, columns)
    scaled = graph.node("Mul", log_odds, graph.constant(_array(model.calibration_scale), "calibration_scale"))
    calibrated = graph.node("Add", scaled, graph.constant(_array(model.calibration_shift), "calibration_shift"))
    # In float64, because onnxruntime's float32 rounds probabilities below 1e-8 to 0, which would lose their ranking.
    graph.cast(graph.node("Sigmoid", graph.cast(calibrated, np.float64)), np.float32, output=output)


def _add_log_odds(graph: Graph, model: TabularModel, columns: EncodedColumns) -> str:
    """Add a model up to its log-odds before calibration, ``(N, L)``."""
    if isinstance(model, AdditiveFastKAN):
        return add_terms(graph, model, columns)
    assert isinstance(model, TabularFastKAN), "there is no other model"
    of_network = _add_network(graph, model, columns)
    if not isinstance(model, BlendedFastKAN):
        return of_network
    weight, of_terms = model.additive_weight, add_terms(graph, model.additive, columns)
    network_part = graph.node("Mul", of_network, graph.number(1 - weight))
    return graph.node("Add", network_part, graph.node("Mul", of_terms, graph.number(weight)))


def _add_network(graph: Graph, model: TabularFastKAN, columns: EncodedColumns) -> str:
    """Add the encoder and the network up to its log-odds ``(N, L)``."""
    inputs, shifts = _add_encoder(graph, model.encoder, columns)
    bias = graph.constant(_array(model.bias), "bias")
    if isinstance(model.network, FastKAN):
        return graph.node("Add", _add_fastkan(graph, model.network, inputs), bias)
    logits_MNL = graph.node("Add", _add_ensemble(graph, model.network, model.config.widths[0], inputs, shifts), bias)
    return _add_mean_log_odds(graph, logits_MNL, model.network.members)


def _add_encoder(graph: Graph, encoder: InputEncoder, columns: EncodedColumns) -> tuple[str | None, list[str]]:
    """Add ``InputEncoder``; return what goes through the basis, if anything, and what shifts the first layer."""
    inputs, shifts = [], []
    if columns.scores is not None:
        if encoder.binary_linear is not None:
            binary = graph.node("Gather", columns.scores, graph.indexes(*encoder.binary.tolist()), axis=1)
            weight_FO = graph.constant(BINARY_SCALE * _array(encoder.binary_linear.weight).T, "binary_weight")
            shifts.append(graph.node("MatMul", binary, weight_FO))
        if len(encoder.curved):
            inputs.append(graph.node("Gather", columns.scores, graph.indexes(*encoder.curved.tolist()), axis=1))
    for index, embedding in zip(encoder.embedded, encoder.embeddings, strict=True):
        assert isinstance(embedding, nn.Embedding)
        vectors = graph.constant(_array(embedding.weight), "embedding")
        inputs.append(graph.node("Gather", vectors, columns.codes[index]))
    if encoder.indicators is not None:
        shifts += _add_one_hots(graph, encoder.indicators, columns.codes)
    return graph.node("Concat", *inputs, axis=1) if inputs else None, shifts


def _add_one_hots(graph: Graph, one_hots: OneHotWeights, codes: dict[int, str]) -> list[str]:
    """Add ``OneHotWeights``: a table for each group, whose rows are what is to be summed."""
    tables = np.split(_array(one_hots.weight), [*accumulate(one_hots.sizes)][:-1])
    features, caps = one_hots.features, one_hots.caps
    terms, of_missing = [], []
    for index, cap, table in zip(features, caps, tables, strict=False):
        if len(table) == FIRST_CODE:
            of_missing.append((codes[index], table))
        else:
            rare = graph.node("GreaterOrEqual", codes[index], graph.number(cap, np.int64))
            indices = graph.node("Where", rare, graph.number(UNSEEN, np.int64), codes[index])
            terms.append(graph.node("Gather", graph.constant(table, "one_hot_weight"), indices))
    for cross, table in zip(one_hots.crosses, tables[len(features) :], strict=True):
        strides = [graph.node("Mul", codes[index], graph.number(stride, np.int64)) for index, stride in cross]
        indices = functools.reduce(lambda left, right: graph.node("Add", left, right), strides)
        terms.append(graph.node("Gather", graph.constant(table, "one_hot_weight"), indices))
    return [*terms, *_add_missing(graph, of_missing)]


def _add_missing(graph: Graph, tables: Sequence[tuple[str, Array]]) -> list[str]:
    """Add lookups in tables whose rows are all equal except that for missing values, as one matrix product.

    Args:
        graph: Where the nodes go.
        tables: Codes ``(N,)`` and weights ``(2, O)`` of each feature.
    """
    if not tables:
        return []
    stacked_T2O = np.stack([table for _, table in tables])
    columns = [graph.node("Unsqueeze", codes, graph.indexes(1)) for codes, _ in tables]
    codes_NT = graph.node("Concat", *columns, axis=1)
    missing_NT = graph.cast(graph.node("Equal", codes_NT, graph.number(MISSING, np.int64)), np.float32)
    difference_TO = graph.constant(stacked_T2O[:, MISSING] - stacked_T2O[:, UNSEEN], "missing_weight")
    unseen_O = graph.constant(stacked_T2O[:, UNSEEN].sum(axis=0), "unseen_weight")
    return [graph.node("MatMul", missing_NT, difference_TO), unseen_O]


def _add_fastkan(graph: Graph, network: FastKAN, inputs: str | None) -> str:
    assert inputs is not None, "without the linear path of binary columns, every column goes through the basis"
    hidden = inputs
    for layer in network.layers:
        assert isinstance(layer, FastKANLayer)
        hidden = _add_layer(graph, layer, hidden)
    return hidden


def _add_ensemble(graph: Graph, network: FastKANEnsemble, width: int, inputs: str | None, shifts: Sequence[str]) -> str:
    """Add ``FastKANEnsemble``, whose first layer has ``width`` outputs a member; return logits ``(M, N, O)``."""
    terms = [*shifts]
    if network.first is not None and inputs is not None:
        terms.insert(0, _add_layer(graph, network.first, inputs))
    summed = graph.node("Sum", *terms)
    split = graph.node("Reshape", summed, graph.indexes(-1, network.members, width))
    hidden_MNO = graph.node("Transpose", split, perm=(1, 0, 2))
    for layer in network.rest:
        assert isinstance(layer, MemberLayer)
        hidden_MNO = _add_member_layer(graph, layer, hidden_MNO)
    return hidden_MNO


def _add_layer(graph: Graph, layer: FastKANLayer, x_NI: str) -> str:
    """Add ``FastKANLayer``."""
    normed_NI = x_NI
    if layer.layernorm is not None:
        weight, bias = (_array(parameter) for parameter in (layer.layernorm.weight, layer.layernorm.bias))
        normed_NI = _add_layer_norm(graph, x_NI, weight, bias, layer.layernorm.eps)
    spline_NO = _add_radial_linear(graph, normed_NI, layer.rbf, _array(layer.spline_linear.weight))
    base_NO = graph.node(
        "MatMul", _add_silu(graph, x_NI), graph.constant(_array(layer.base_linear.weight).T, "base_weight")
    )
    return graph.node("Sum", spline_NO, base_NO, graph.constant(_array(layer.base_linear.bias), "base_bias"))


def _add_member_layer(graph: Graph, layer: MemberLayer, x_MNI: str) -> str:
    """Add ``MemberLayer``."""
    ones = np.ones(layer.norm_weight.shape[-1], dtype=np.float32)
    normed_MNI = _add_layer_norm(graph, x_MNI, ones, np.zeros_like(ones))
    scaled_MNI = graph.node("Mul", normed_MNI, graph.constant(_array(layer.norm_weight), "norm_weight"))
    moved_MNI = graph.node("Add", scaled_MNI, graph.constant(_array(layer.norm_bias), "norm_bias"))
    spline_MNO = _add_radial_linear(graph, moved_MNI, layer.rbf, _array(layer.spline_weight))
    weight_MIO = graph.constant(_array(layer.base_weight).swapaxes(-1, -2), "base_weight")
    base_MNO = graph.node("MatMul", _add_silu(graph, x_MNI), weight_MIO)
    return graph.node("Sum", spline_MNO, base_MNO, graph.constant(_array(layer.base_bias), "base_bias"))


def _add_radial_linear(graph: Graph, x_NI: str, basis: RadialBasis, weight_OK: Array) -> str:
    """Add ``radial_linear``; the centers come before the inputs, as long rows are computed three times faster."""
    *rest, outputs, inputs = *weight_OK.shape[:-1], weight_OK.shape[-1] // len(basis.grid)
    weight_GIO = np.moveaxis(weight_OK.reshape(*rest, outputs, inputs, -1), (-3, -2, -1), (-1, -2, -3))
    weight_KO = graph.constant(weight_GIO.reshape(*rest, -1, outputs), "spline_weight")
    centers_G1 = graph.constant(_array(basis.grid)[:, None], "centers")
    offset_NGI = graph.node("Sub", graph.node("Unsqueeze", x_NI, graph.indexes(-2)), centers_G1)
    scaled_NGI = graph.node("Mul", offset_NGI, graph.number(1 / basis.width))
    basis_NGI = graph.node("Exp", graph.node("Neg", graph.node("Mul", scaled_NGI, scaled_NGI)))
    # 0 keeps a dimension unchanged.
    shape = graph.indexes(*[0] * (len(rest) + 1), inputs * len(basis.grid))
    return graph.node("MatMul", graph.node("Reshape", basis_NGI, shape), weight_KO)


def _add_layer_norm(graph: Graph, x_NI: str, weight: Array, bias: Array, epsilon: float = 1e-5) -> str:
    scale, shift = (graph.constant(values, name) for values, name in ((weight, "norm_weight"), (bias, "norm_bias")))
    return graph.node("LayerNormalization", x_NI, scale, shift, axis=-1, epsilon=epsilon)


def _add_silu(graph: Graph, x_NI: str) -> str:
    return graph.node("Mul", x_NI, graph.node("Sigmoid", x_NI))


def _add_mean_log_odds(graph: Graph, logits_MNL: str, members: int) -> str:
    """Add ``mean_log_odds``."""
    if members == 1:
        return graph.node("Squeeze", logits_MNL, graph.indexes(0))
    # log sigmoid(x) = -softplus(-x), and log(1 - sigmoid(x)) = -softplus(x)
    positive, negative = (
        graph.node("ReduceLogSumExp", graph.node("Neg", graph.node("Softplus", logits)), axes=[0], keepdims=0)
        for logits in (graph.node("Neg", logits_MNL), logits_MNL)
    )
    return graph.node("Sub", positive, negative)


def _array(tensor: Tensor) -> Array:
    return tensor.detach().numpy()
