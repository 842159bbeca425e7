"""Which backend computes an operation of a model: layers call the functions here.

The operation that takes most of the time is ``radial_linear``, a linear map of Gaussian basis functions of each
feature. Some backends also compute whole layers or steps. A backend is added in three places: its function in a file
of its own, with the signature of ``eager.radial_linear``; its selection here, or, if it is for a GPU, among the
candidates of ``choice.RADIAL_LINEAR``; and, if users may name it, in ``config.train.Kernel``.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from dkan_core.config.train import Kernel
from dkan_core.errors import ConfigError
from dkan_core.model.dropout import RowDropout
from dkan_core.model.kernels import (
    choice,
    eager,
    gpu_layers,
    native,
    native_hidden,
    recompute,
    verified_native,
)
from dkan_core.model.kernels.choice import RadialLinear
from dkan_core.native.library import MAX_CENTERS, MAX_OUTPUTS, native_library, variant_names

PLAIN: dict[str, RadialLinear] = {"eager": eager.radial_linear, "recompute": recompute.radial_linear}
"""Those made of operations of torch: where one of them is chosen, no other kernel computes any part of a model."""

NOT_BUILT = "the native extension is not built (docs/getting-started/install.md)"


class KernelModule(nn.Module):
    """A module that is computed by one of the backends."""

    kernel: Kernel = "auto"


def use_kernel(model: nn.Module, kernel: Kernel) -> None:
    """Make all layers of a model use this backend."""
    for module in model.modules():
        if isinstance(module, KernelModule):
            module.kernel = kernel


def check_kernel(kernel: Kernel, device: str) -> None:
    """Check that a backend can compute on a device.

    Raises:
        ConfigError: It cannot.
    """
    if kernel == "native" and device != "cpu":
        raise ConfigError(f"kernel native computes only on the cpu, not on {device}; choose auto")
    if kernel == "native" and native_library() is None:
        raise ConfigError(f"kernel native: {NOT_BUILT}; choose auto")


def describe_kernel(kernel: Kernel, device: str) -> str:
    """Return which backend computes on a device, and why that one.

    Args:
        kernel: What was asked for.
        device: That of each worker, separated by commas.
    """
    if kernel in PLAIN:
        return kernel
    if {*device.split(",")} != {"cpu"}:
        return "the fastest that is right on each GPU: the logs of the workers, in RUN/logs, say which"
    library = native_library()
    return f"recompute: {NOT_BUILT}" if library is None else f"native ({variant_names(library)[0]})"


def radial_linear(x_BI: Tensor, weight_OK: Tensor, centers_G: Tensor, width: float, kernel: Kernel = "auto") -> Tensor:
    """Return the same as ``eager.radial_linear``, by the best backend for the device unless one is named."""
    if kernel in PLAIN:
        return PLAIN[kernel](x_BI, weight_OK, centers_G, width)
    if weight_OK.is_cuda:
        return choice.radial_linear(x_BI, weight_OK, centers_G, width)
    if native.can_compute(x_BI, weight_OK) and verified_native.basis_is_right(len(centers_G)):
        return native.radial_linear(x_BI, weight_OK, centers_G, width)
    # 2.9 times faster than "eager" at 4,096 rows, with 0.18 of its memory.
    return recompute.radial_linear(x_BI, weight_OK, centers_G, width)


def hidden_layer(
    x_NBI: Tensor,
    weights: tuple[Tensor, ...],
    centers_G: Tensor,
    width: float,
    dropout: RowDropout | None,
    dropout_key_B: Tensor | None,
    kernel: Kernel = "auto",
) -> Tensor | None:
    """Return a whole layer with LayerNorm, from dropout to the sum with the base branch, where one pass computes it.

    Args:
        x_NBI: Outputs of the layer before.
        weights: Of LayerNorm weight and bias, spline weight, base weight and bias, as ``native_hidden.hidden_layer``
            takes them; each may have dimensions of size 1 in between.
        centers_G: Where the Gaussians lie.
        width: Their width.
        dropout: Of the inputs.
        dropout_key_B: Keys of the rows for it.
        kernel: The backend asked for.

    Shape:
        - Output: ``(N, B, O)``; None where the layer has to be computed in parts
    """
    if kernel in PLAIN:
        return None
    if not x_NBI.is_cuda and not _can_compute_hidden(x_NBI, weights[2], centers_G):
        return None
    row_key_B, unit_key_U, dropped = None, x_NBI.new_empty(0).int(), 0
    if dropout is not None and dropout.training and dropout_key_B is None:
        x_NBI = dropout(x_NBI)
    elif dropout is not None:
        row_key_B, unit_key_U, dropped = dropout.hashed(dropout_key_B)
    if x_NBI.is_cuda:
        return gpu_layers.hidden_layer(x_NBI, row_key_B, weights, centers_G, width, unit_key_U, dropped)
    return native_hidden.hidden_layer(x_NBI, weights, centers_G, width, row_key_B, unit_key_U, dropped)


def _can_compute_hidden(x_NBI: Tensor, weight_NOK: Tensor, centers_G: Tensor) -> bool:
    """Return whether the native extension computes such a layer."""
    networks, _, inputs = x_NBI.shape
    if not native_hidden.can_compute_hidden(x_NBI, weight_NOK, centers_G):
        return False
    return verified_native.hidden_layer_is_right(networks, inputs, weight_NOK.shape[-2], len(centers_G))


def byte_layer(
    stored_BI: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    centers_G: Tensor,
    width: float,
    kernel: Kernel = "auto",
) -> Tensor | None:
    """Return basis and linear map plus SiLU and linear map of the scores that bytes stand for, where one pass does it.

    Shape:
        - Output: ``(B, O)``; None where the layer has to be computed in parts
    """
    if kernel in PLAIN or not stored_BI.is_cuda:
        return None
    return gpu_layers.byte_layer(stored_BI, *weights, centers_G, width)


def can_compute_input_layer(bias_O: Tensor, kernel: Kernel) -> bool:
    """Return whether ``native_input.input_layer`` computes a layer with weights of the type of this bias."""
    takes_native = kernel not in PLAIN and native.can_compute(bias_O)
    return takes_native and verified_native.input_layer_is_right()


def can_compute_step(weight_OK: Tensor, shape: tuple[int, int, int, int], kernel: Kernel, *, bf16: bool) -> bool:
    """Return whether ``native_step.training_step`` computes a model whose first layer has these weights.

    Args:
        weight_OK: Of the first layer's basis.
        shape: Of the hidden layer: networks, inputs and outputs of each, centers.
        kernel: The backend asked for.
        bf16: Whether matrix products may be those of bfloat16 numbers.
    """
    few = shape[2] <= MAX_OUTPUTS and shape[3] <= MAX_CENTERS
    takes_native = kernel not in PLAIN and few and native.can_compute(weight_OK)
    return takes_native and verified_native.step_is_right(*shape, bf16=bf16)


def table_sum(indices_BT: Tensor, table_VH: Tensor, kernel: Kernel = "auto") -> Tensor:
    """Return for each row the sum of the table's rows at its indices.

    Shape:
        - Input: ``(B, T)`` int32, ``(V, H)``
        - Output: ``(B, H)``
    """
    if not can_sum_tables(table_VH, kernel):
        return F.embedding_bag(indices_BT, table_VH, mode="sum")
    return native.table_sum(indices_BT, table_VH)


def can_sum_tables(table_VH: Tensor, kernel: Kernel) -> bool:
    """Return whether the native extension sums the rows of such a table."""
    takes_native = kernel not in PLAIN and native.can_compute(table_VH)
    return takes_native and verified_native.table_sum_is_right()
