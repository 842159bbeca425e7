"""Steps of one model on one pair of buffers: the arguments are built once, and only the rows change between batches.

Collecting them for every batch, through modules and torch's dispatcher, took as long as computing a small batch.

Shape suffixes: B rows, H the first layer's outputs over all members.
"""

import numpy as np
import torch

from dkan_core.config import TrainConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.decoding import decode_scores
from dkan_core.model.kernels.native_step import StepCall, divisor_of
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.model.training_step import Layers, find_layers, step_arguments
from dkan_core.utils.arrays import Arrays

TYPES = {
    "numeric": (np.uint8, np.float32),
    "categorical": (np.int32,),
    "labels": (np.uint8,),
    "weight": (np.float32,),
    "group": (np.uint8,),
    "dropout_key": (np.int32,),
}
"""Types of the arrays of rows that a call reads without conversion, or ignores."""


class PreparedStep:
    """Adds the gradient of the loss of prepared rows to the gradients of a model's parameters.

    It uses the buffers of parameters and gradients that are bound when it is created.

    Args:
        model: The model, in training mode.
        layers: Its layers.
        arrays: Rows like those to come, of the same arrays and types.
        config: Settings of the loss, and the precision.
    """

    def __init__(self, model: TabularFastKAN, layers: Layers, arrays: Arrays, config: TrainConfig) -> None:
        self._first_BH = torch.empty(len(arrays["labels"]), model.first_width)
        rows = {name: torch.from_numpy(array) for name, array in arrays.items()}
        bf16 = config.precision == "bf16"
        with torch.no_grad():
            first_arguments = step_arguments(model, layers, rows, config, torch.ones(()))
            self._call = StepCall(*first_arguments, layers.gradients, self._first_BH, shifted=False, bf16=bf16)

    def add_gradient(self, arrays: Arrays, total: float) -> float:
        """Add the gradient of the loss of some rows; return that loss, rounded to float32.

        Args:
            arrays: The rows, at least one.
            total: Sum of the weights of the batch that they are a part of.

        Raises:
            IndexError: A code has no row in a table.
        """
        step = self._call.arguments
        of_input, hidden, loss = step.input, step.hidden, step.loss
        rows = len(arrays["labels"])
        if rows > len(self._first_BH):
            self._first_BH = torch.empty(rows, self._first_BH.shape[1])
            address = self._first_BH.data_ptr()
            of_input.out = of_input.grad_out = hidden.x = hidden.grad_x = address
        numeric = arrays.get("numeric")
        if numeric is not None and numeric.dtype == np.uint8:
            of_input.bytes = numeric.ctypes.data
        elif numeric is not None:
            scores_BF = decode_scores(torch.from_numpy(numeric))
            of_input.scores = scores_BF.data_ptr()
        if "categorical" in arrays:
            of_input.codes = arrays["categorical"].ctypes.data
        if hidden.row_keys is not None:
            hidden.row_keys = arrays["dropout_key"].ctypes.data
        if "weight" in arrays:
            loss.row_weights = arrays["weight"].ctypes.data
        loss.labels = arrays["labels"].ctypes.data
        loss.total = divisor_of(total)
        of_input.rows = hidden.rows = rows
        return float(np.float32(self._call.run()))


def prepare_step(model: TabularModel, arrays: Arrays, config: TrainConfig) -> PreparedStep | None:
    """Return the steps of a model on its present buffers; None if one call cannot compute such rows or layers.

    Args:
        model: The model, in training mode.
        arrays: Rows like those to come, at least one.
        config: Settings of the loss, and the precision.
    """
    usual = all(array.dtype in TYPES.get(name, ()) and array.flags.c_contiguous for name, array in arrays.items())
    # The weights of binary features are multiplied by torch, beside the call.
    if not usual or not isinstance(model, TabularFastKAN) or model.encoder.binary_linear is not None:
        return None
    layers = find_layers(model, config)
    return None if layers is None else PreparedStep(model, layers, arrays, config)
