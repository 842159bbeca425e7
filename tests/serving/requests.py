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
