"""A model as KServe's library serves it: what it takes, what it gives, and its answers to both protocols."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.errors import InvalidInput

from dkan_core.errors import DataError
from dkan_core.serving.batching import MicroBatcher, Probabilities
from dkan_core.serving.facts import current_request
from dkan_core.serving.rows import REQUEST, Tensor, rows_of_instances, rows_of_tensors
from dkan_core.serving.scorer import Scorer
from dkan_core.utils.schemas import parse_json


class ServedModel(Model):  # type: ignore[misc]
    """A model that answers requests of the Open Inference Protocol, and of KServe's first protocol.

    Args:
        name: In URLs.
        scorer: Its columns and labels.
        batcher: What scores the rows.
    """

    def __init__(self, name: str, scorer: Scorer, batcher: MicroBatcher) -> None:
        super().__init__(name)
        self._scorer = scorer
        self._batcher = batcher
        self.ready = True

    def get_input_types(self) -> list[dict[str, Any]]:
        """Return the columns that are read, as tensors of any number of rows."""
        numeric = {feature.name for feature in self._scorer.preprocessor.numeric}
        return [
            {"name": name, "datatype": "FP64" if name in numeric else "BYTES", "shape": [-1]}
            for name in self._scorer.preprocessor.columns
        ]

    def get_output_types(self) -> list[dict[str, Any]]:
        """Return the probabilities, one tensor per label."""
        return [{"name": name, "datatype": "FP32", "shape": [-1]} for name in self._scorer.outputs]

    def validate(self, payload: Any) -> Any:
        # KServe looks at the protocol of a server behind this one; the rows are checked when they are read.
        return payload

    async def predict(
        self,
        payload: Any,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - KServe passes them
        response_headers: Mapping[str, str] | None = None,  # noqa: ARG002
    ) -> Any:
        """Return the answer to a request, in its protocol."""
        if isinstance(payload, InferRequest):
            tensors = [Tensor(each.name, each.datatype, each.shape, _data_of(each)) for each in payload.inputs]
            rows = rows_of_tensors(tensors, self._scorer.preprocessor)
            return self._infer_response(payload, await self._scored(rows))
        rows = rows_of_instances(_instances_of(payload), self._scorer.preprocessor)
        names = self._scorer.outputs
        found = (await self._scored(rows)).tolist()
        return {"predictions": [dict(zip(names, row, strict=True)) for row in found]}

    async def _scored(self, rows: pa.RecordBatch) -> Probabilities:
        current_request().rows = len(rows)
        if not len(rows):
            return np.empty((0, len(self._scorer.outputs)), dtype=np.float32)
        return await self._batcher.score(rows)

    def _infer_response(self, request: InferRequest, found_NL: Probabilities) -> InferResponse:
        names = self._scorer.outputs
        wanted = [output.name for output in request.request_outputs or ()] or names
        if unknown := [name for name in wanted if name not in names]:
            raise DataError(f"{REQUEST}: output {unknown[0]!r} does not exist; outputs are {', '.join(names)}")
        # KServe sends arrays as bytes, lists as text.
        columns = np.ascontiguousarray(found_NL.T) if request.use_binary_outputs else found_NL.T.tolist()
        outputs = [InferOutput(name, [len(found_NL)], "FP32", columns[names.index(name)]) for name in wanted]
        return InferResponse(
            response_id=request.id or "",
            model_name=self.name,
            infer_outputs=outputs,
            use_binary_outputs=request.use_binary_outputs,
            requested_outputs=request.request_outputs,
        )


def _data_of(tensor: Any) -> Any:
    """Return a tensor's values: those in the message, or those that were sent as bytes beside it."""
    if tensor._raw_data is None:
        return tensor.data
    try:
        return tensor.as_numpy()
    except (ValueError, InvalidInput) as error:
        raise DataError(f"{REQUEST}: column {tensor.name!r} cannot be read ({error})") from None


def _instances_of(payload: Any) -> Any:
    # Bytes: the data of a CloudEvent, which are no JSON.
    found = parse_json(payload, REQUEST) if isinstance(payload, bytes) else payload
    if not isinstance(found, dict) or "instances" not in found:
        raise DataError(f'{REQUEST}: expected a JSON object with a list "instances"')
    return found["instances"]
