"""Builder of an ONNX graph: nodes and constants in order, every value with a unique name."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from dkan_core.utils.arrays import Array

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

# The oldest opset with LayerNormalization, supported by onnxruntime since 1.12, and the format version for it.
OPSET, IR_VERSION = 17, 8
# The oldest version whose LabelEncoder maps strings to integers.
ML_OPSET = 2
ML_DOMAIN = "ai.onnx.ml"
# At the beginning of a file, to recognize our files.
PRODUCER = "dkan"


class Graph:
    """A graph under construction; each method returns the name of a value for later nodes.

    Args:
        reserved: Names of inputs and outputs, which no value inside may have.
    """

    def __init__(self, reserved: Collection[str]) -> None:
        self.inputs: list[ValueInfoProto] = []
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.constant_bytes = 0
        self._taken = {*reserved}
        self._indexes: dict[tuple[int, ...], str] = {}

    def input(self, name: str, kind: type) -> str:
        """Add an input ``(N, 1)`` of numbers (``float``) or texts (``str``)."""
        from onnx import TensorProto, helper

        element = TensorProto.STRING if kind is str else TensorProto.DOUBLE
        self.inputs.append(helper.make_tensor_value_info(name, element, ["N", 1]))
        return name

    def constant(self, values: Array, name: str) -> str:
        """Add a tensor, called ``name`` or, where that is taken, something like it."""
        from onnx import numpy_helper

        name = self._free(name)
        self.constants.append(numpy_helper.from_array(np.array(values, order="C"), name))
        self.constant_bytes += values.nbytes
        return name

    def indexes(self, *values: int) -> str:
        """Return a vector of integers, such as axes or a shape; equal ones are stored once."""
        if values not in self._indexes:
            self._indexes[values] = self.constant(np.array(values, dtype=np.int64), "indexes")
        return self._indexes[values]

    def number(self, value: float, dtype: type = np.float32) -> str:
        """Return a constant without dimensions."""
        return self.constant(np.array(value, dtype=dtype), "number")

    def node(self, kind: str, *inputs: str, domain: str = "", output: str = "", **attributes: Any) -> str:
        """Add a node.

        Args:
            kind: Its operator.
            inputs: Values that it reads.
            domain: Of the operator; empty for the standard ones.
            output: Name of the value that it gives. Default: one of the operator and a number.
            attributes: Of the operator.
        """
        from onnx import helper

        output = output or self._free(kind)
        self.nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def cast(self, value: str, dtype: type, output: str = "") -> str:
        """Add a conversion to another type of numbers."""
        from onnx import helper

        return self.node("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), output=output)

    def model(self, output: "ValueInfoProto", metadata: dict[str, str], version: str) -> "ModelProto":
        """Return the graph as a model.

        Args:
            output: What it gives.
            metadata: What is to be known of it, by key.
            version: Of dkan.
        """
        from onnx import helper

        graph = helper.make_graph(self.nodes, "dkan", self.inputs, [output], self.constants)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(ML_DOMAIN, ML_OPSET)],
            ir_version=IR_VERSION,
            producer_name=PRODUCER,
            producer_version=version,
        )
        helper.set_model_props(model, metadata)
        return model

    def _free(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._taken.add(name)
        return name
