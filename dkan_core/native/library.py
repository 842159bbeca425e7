"""Loads the native extension and declares its functions; the C++ sources have the same structures."""

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path

from dkan_core.native.build import LIBRARY, fingerprint

MAX_OUTPUTS = 16
"""Of the hidden layer's pass: the sums of so many are kept in registers and the nearest cache."""

MAX_PRODUCT_WEIGHTS = 1 << 15
"""Inputs times outputs of a hidden layer with more outputs: beyond, torch's products take less time and memory."""

MAX_CENTERS = 32


def _pointers(names: str) -> list[tuple[str, type]]:
    return [(name, c_void_p) for name in names.split()]


def _sizes(names: str) -> list[tuple[str, type]]:
    return [(name, c_int64) for name in names.split()]


def _floats(names: str) -> list[tuple[str, type]]:
    return [(name, c_float) for name in names.split()]


class BasisArguments(Structure):
    """See ``Basis`` in ``arguments.h``."""

    _fields_ = (*_pointers("x gradient centers out"), *_floats("inverse_width"), *_sizes("count num_centers"))


class HiddenArguments(Structure):
    """See ``Hidden`` in ``arguments.h``."""

    _fields_ = (
        *_pointers("x row_keys unit_keys norm_weight norm_bias spline base bias centers grad_out out grad_x"),
        *_pointers("grad_norm_weight grad_norm_bias grad_spline grad_base grad_bias"),
        *_sizes("network_stride row_stride networks rows inputs outputs num_centers"),
        ("threshold", c_int32),
        *_floats("kept_factor inverse_width epsilon"),
    )


class TableArguments(Structure):
    """See ``TableSum`` in ``arguments.h``."""

    _fields_ = (*_pointers("indices table gradient out"), *_sizes("rows per_row table_rows width empty adds"))


class InputLayerArguments(Structure):
    """See ``InputLayer`` in ``arguments.h``."""

    _fields_ = (
        *_pointers("bytes byte_scores scores codes spline base bias one_hot centers embeddings layout shift"),
        *_pointers("grad_out out"),
        *_pointers("grad_scores grad_spline grad_base grad_bias grad_one_hot grad_embeddings"),
        *_sizes("rows features coded inputs outputs num_centers bf16_parts"),
        *_floats("inverse_width"),
    )


class LossArguments(Structure):
    """See ``Loss`` in ``arguments.h``."""

    _fields_ = (*_pointers("labels row_weights label_weights shift grad_shift out"), *_floats("total pos_weight"))


class StepArguments(Structure):
    """See ``TrainingStep`` in ``arguments.h``."""

    _fields_ = (("input", InputLayerArguments), ("hidden", HiddenArguments), ("loss", LossArguments))


class AdamWArguments(Structure):
    """See ``AdamW`` in ``arguments.h``."""

    _fields_ = (
        *_pointers("old_values old_exp_avg old_exp_avg_sq new_values new_exp_avg new_exp_avg_sq gradient"),
        *_pointers("starts stops factors"),
        *_sizes("ranges count clears"),
        *_floats("beta1 beta2 one_minus_beta1 one_minus_beta2 root_scale epsilon step_size scale"),
    )


class GatherArguments(Structure):
    """See ``Gather`` in ``gather.cpp``."""

    _fields_ = (
        *_pointers("pieces starts handles memory offsets row_bytes out"),
        *_sizes("count shards arrays"),
    )


class ColumnArguments(Structure):
    """See ``Column`` in ``arguments.h``."""

    _fields_ = (*_pointers("values valid edges codes out"), *_sizes("valid_offset edge_count is_double"))


class LikelihoodArguments(Structure):
    """See ``Likelihood`` in ``arguments.h``."""

    _fields_ = (*_pointers("codes log_odds target weight table sums"), *_sizes("rows size"))


class ScatterArguments(Structure):
    """See ``Scatter`` in ``arguments.h``."""

    _fields_ = (*_pointers("codes indices out"), *_sizes("row_bytes stride rows count"))


class DistinctArguments(Structure):
    """See ``Distinct`` in ``sorting.cpp``."""

    _fields_ = (*_pointers("values distinct up_to"), *_sizes("rows is_double finite most"))


@functools.cache
def native_library(path: Path = LIBRARY) -> ctypes.CDLL | None:
    """Return the extension; None where it is not built, or was built for another machine or of other sources."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.dkan_fingerprint.restype = c_char_p
    if library.dkan_fingerprint().decode() != fingerprint():
        return None
    library.dkan_variant_name.restype = library.dkan_variant.restype = c_char_p
    library.dkan_basis.argtypes = (POINTER(BasisArguments), c_int, c_int)
    library.dkan_hidden_forward.argtypes = (POINTER(HiddenArguments), c_int)
    library.dkan_hidden_backward.argtypes = (POINTER(HiddenArguments), c_int)
    library.dkan_table_sum.argtypes = (POINTER(TableArguments), c_int, c_int)
    library.dkan_table_sum.restype = c_int64
    library.dkan_input_layer.argtypes = (POINTER(InputLayerArguments), c_int, c_int)
    library.dkan_input_layer.restype = c_int64
    library.dkan_training_step.argtypes = (POINTER(StepArguments), c_int)
    library.dkan_training_step.restype = c_int64
    library.dkan_adamw.argtypes = (POINTER(AdamWArguments), c_int)
    library.dkan_adamw.restype = c_float
    library.dkan_gather.argtypes = (POINTER(GatherArguments), c_int)
    library.dkan_gather.restype = c_int64
    library.dkan_mix_rows.argtypes = (c_uint64, c_int64, c_uint64, c_void_p)
    library.dkan_mix_rows.restype = None
    library.dkan_encode.argtypes = (c_void_p, c_int64, c_int64, c_int)
    library.dkan_distinct.argtypes = (POINTER(DistinctArguments),)
    library.dkan_distinct.restype = c_int64
    library.dkan_order_keys.argtypes = (c_void_p, c_int64, c_int64, c_void_p)
    library.dkan_order_keys.restype = None
    library.dkan_likelihood.argtypes = (POINTER(LikelihoodArguments), c_int)
    library.dkan_likelihood.restype = c_int64
    library.dkan_scatter.argtypes = (POINTER(ScatterArguments), c_int)
    return library


def require_library() -> ctypes.CDLL:
    """Return the extension where it is known to be there."""
    library = native_library()
    assert library is not None, "the native extension is not built"
    return library


def variant_names(library: ctypes.CDLL) -> list[str]:
    """Return the kinds of processor that this one is among, the fastest first: that is the one in use."""
    return [library.dkan_variant_name(index).decode() for index in range(library.dkan_variants())]


def has_matrix_unit(library: ctypes.CDLL) -> bool:
    """Return whether the kind of processor in use multiplies tiles of bfloat16 numbers."""
    variant: bytes = library.dkan_variant()
    return variant == b"amx_bf16"
