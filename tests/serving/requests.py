"""Requests to a served model ``late``."""

from typing import Any

import pyarrow as pa

PREDICT = "/v1/models/late:predict"
INFER = "/v2/models/late/infer"
TYPES = {"double": "FP64", "string": "BYTES", "int64": "INT64", "bool": "BOOL", "float": "FP32"}


def tensors(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": TYPES[str(table[name].type)], "shape": [len(table)], "data": table[name].to_pylist()}
        for name in table.column_names
    ]


def grpc_request(table: pa.Table) -> Any:
    """Return a request over gRPC, of rows without missing values."""
    from kserve.protocol.grpc.grpc_predict_v2_pb2 import ModelInferRequest

    fields = {"FP64": "fp64_contents", "BYTES": "bytes_contents"}
    inputs = [
        {**tensor, "contents": {fields[tensor["datatype"]]: [getattr(v, "encode", lambda v=v: v)() for v in data]}}
        for tensor in tensors(table)
        for data in [tensor.pop("data")]
    ]
    return ModelInferRequest(model_name="late", inputs=inputs)
