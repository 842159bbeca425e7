"""A model for KServe's library: its inputs, its outputs, and its answers to both protocols."""

import asyncio
import json
import struct
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

import numpy as np
import pyarrow as pa
from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.errors import InferenceError, InvalidInput
from kserve.protocol.infer_type import to_http_parameters
from starlette.requests import ClientDisconnect

from dkan_core.errors import DataError
from dkan_core.serving.batching import MicroBatcher, Probabilities
from dkan_core.serving.facts import current_request
from dkan_core.serving.rows import NO_TEXTS, REQUEST, Tensor, rows_of_instances, rows_of_tensors, tensor_types
from dkan_core.serving.scorer import RequestScorer
from dkan_core.utils.messages import shown
from dkan_core.utils.schemas import parse_json

# Rows whose reasons are found at a time; a row takes a millisecond or less.
REASON_ROWS = 256


class ServedModel(Model):  # type: ignore[misc]
    """A model that answers requests of the Open Inference Protocol, and of KServe's first protocol.

    Args:
        name: In URLs.
        scorer: Its columns and labels.
        batcher: What scores the rows.
        reasons_thread: Where reasons are found, so that nothing else waits for them.
    """

    def __init__(self, name: str, scorer: RequestScorer, batcher: MicroBatcher, reasons_thread: Executor) -> None:
        super().__init__(name)
        self._scorer = scorer
        self._batcher = batcher
        self._reasons_thread = reasons_thread
        self.ready = True

    def get_input_types(self) -> list[dict[str, Any]]:
        """Return the columns that are read, as tensors of any number of rows."""
        return [
            {"name": name, "datatype": datatype, "shape": [-1]}
            for name, datatype in tensor_types(self._scorer.preprocessor).items()
        ]

    def get_output_types(self) -> list[dict[str, Any]]:
        """Return the probabilities, one tensor per label."""
        return [{"name": name, "datatype": "FP32", "shape": [-1]} for name in self._scorer.outputs]

    def validate(self, payload: Any) -> Any:
        # Not validated here, as the rows are checked when they are read.
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
            found_NL, reasons = await self._answer(rows, to_http_parameters(payload.parameters or {}))
            return self._infer_response(payload, found_NL, reasons)
        payload = _object_of(payload)
        rows = rows_of_instances(payload["instances"], self._scorer.preprocessor)
        found_NL, reasons = await self._answer(rows, payload.get("parameters") or {})
        columns = {**dict(zip(self._scorer.outputs, found_NL.T.tolist(), strict=True)), **reasons}
        predictions = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return {"predictions": predictions, **({"baseline_log_odds": self._baseline} if reasons else {})}

    async def _answer(self, rows: pa.RecordBatch, parameters: Any) -> tuple[Probabilities, dict[str, list[Any]]]:
        """Return what the answers of both protocols hold: probabilities, and the reasons that are asked for."""
        count = _reason_count(parameters)
        found_NL, reasons = await asyncio.gather(self._scored(rows), self._reasons(rows, count))
        return found_NL, reasons

    @property
    def _baseline(self) -> dict[str, float]:
        return self._scorer.reason_finder.baseline

    async def _scored(self, rows: pa.RecordBatch) -> Probabilities:
        facts = current_request()
        facts.rows = len(rows)
        if not len(rows):
            return np.empty((0, len(self._scorer.outputs)), dtype=np.float32)
        found_NL = await self._batcher.score(rows, lambda: facts.is_gone)
        if facts.is_gone:
            raise ClientDisconnect
        return found_NL

    async def _reasons(self, rows: pa.RecordBatch, count: int) -> dict[str, list[Any]]:
        """Return each label's reasons by the name of their output; nothing where none are asked for."""
        if not count:
            return {}
        loop = asyncio.get_running_loop()
        found: list[list[Any]] = [[] for _ in self._scorer.reason_outputs]
        # In chunks, so that large requests do not block small ones, and work ends soon after the client disconnects.
        for start in range(0, len(rows), REASON_ROWS):
            if current_request().is_gone:
                raise ClientDisconnect
            piece = rows.slice(start, REASON_ROWS)
            parts = await loop.run_in_executor(self._reasons_thread, self._scorer.find_reasons, piece, count)
            for reasons, part in zip(found, parts, strict=True):
                reasons += part
        return dict(zip(self._scorer.reason_outputs, found, strict=True))

    def _infer_response(
        self, request: InferRequest, found_NL: Probabilities, reasons: Mapping[str, list[Any]]
    ) -> InferResponse:
        # KServe sends arrays as bytes, and lists as JSON.
        is_binary = request.use_binary_outputs
        columns = np.ascontiguousarray(found_NL.T) if is_binary else found_NL.T.tolist()
        outputs = {
            name: InferOutput(name, [len(found_NL)], "FP32", column)
            for name, column in zip(self._scorer.outputs, columns, strict=True)
        }
        for name, found in reasons.items():
            texts = [json.dumps(of_row, ensure_ascii=False) for of_row in found]
            outputs[name] = InferOutput(name, [len(texts)], "BYTES", np.array(texts, object) if is_binary else texts)
        for label, start in self._baseline.items() if reasons else ():
            name = f"{label}_baseline_log_odds"
            outputs[name] = InferOutput(name, [1], "FP32", np.array([start], np.float32) if is_binary else [start])
        wanted = [output.name for output in request.request_outputs or ()] or [*outputs]
        if unknown := [name for name in wanted if name not in outputs]:
            raise DataError(f"{REQUEST}: output {unknown[0]!r} does not exist; outputs are {', '.join(outputs)}")
        if is_binary and request.from_grpc:
            # Lists, because KServe takes the truth value of data, which fails for arrays.
            for output in outputs.values():
                output.set_data_from_numpy(output.data, binary_data=True)
        return InferResponse(
            response_id=request.id or "",
            model_name=self.name,
            infer_outputs=[outputs[name] for name in wanted],
            use_binary_outputs=is_binary,
            requested_outputs=request.request_outputs,
        )


def _data_of(tensor: Any) -> Any:
    """Return a tensor's values: those in the message, or those that were sent as bytes beside it."""
    if tensor._raw_data is None:
        return tensor.data
    try:
        return tensor.as_numpy()
    except (InferenceError, struct.error):
        raise DataError(f"{REQUEST}: column {tensor.name!r}: {NO_TEXTS}") from None
    except (ValueError, TypeError, InvalidInput) as error:
        raise DataError(f"{REQUEST}: column {tensor.name!r} cannot be read ({error})") from None


def _object_of(payload: Any) -> dict[str, Any]:
    """Return a request in plain JSON, with instances."""
    # Bytes are the data of a CloudEvent, still to be parsed.
    found = parse_json(payload, REQUEST) if isinstance(payload, bytes) else payload
    if not isinstance(found, dict) or "instances" not in found:
        raise DataError(f'{REQUEST}: expected a JSON object with a list "instances"')
    return found


def _reason_count(parameters: Any) -> int:
    """Return how many reasons per row a request asks for."""
    if not isinstance(parameters, dict):
        raise DataError(f'{REQUEST}: "parameters" must be an object of name and value')
    count = parameters.get("reasons", 0)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise DataError(f'{REQUEST}: parameter "reasons" must be a whole number, 0 or more, got {shown(count)}')
    return count
