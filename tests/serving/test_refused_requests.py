"""``dkan serve`` refuses what ``dkan predict`` does, in its words, and requests that are none."""

import gzip
import json
import re
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, TrainResult, predict
from tests.serving.requests import INFER, PREDICT, TYPES, tensors
from tests.serving.server import Answer, Server


@pytest.mark.parametrize("count", [-1, 1.5, "3", True, None])
def test_counts_of_reasons_that_are_none_are_refused(server: Server, table: pa.Table, count: Any) -> None:
    asked = {"instances": table.to_pylist()[:1], "parameters": {"reasons": count}}
    message = f'request: parameter "reasons" must be a whole number, 0 or more, got {count!r}'
    assert server.ask(PREDICT, asked) == (400, {"error": message})


def column_of(kind: pa.DataType, value: Any) -> Any:
    def change(table: pa.Table, name: str) -> pa.Table:
        return table.set_column(table.schema.get_field_index(name), name, pa.array([value] * len(table), kind))

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("mean_radius", pa.Table.drop_columns),
        ("mean_radius", column_of(pa.string(), "wide")),
        ("mean_radius", column_of(pa.bool_(), True)),
        ("site", column_of(pa.int64(), 1)),
        ("site", column_of(pa.float64(), 0.5)),
        ("site", column_of(pa.list_(pa.int64()), [1])),
    ],
)
def test_columns_are_refused_with_the_words_of_predict(
    server: Server, trained: TrainResult, table: pa.Table, tmp_path: Path, name: str, change: Any
) -> None:
    wrong = change(table, name)
    pq.write_table(wrong, tmp_path / "rows.parquet")
    with pytest.raises(DataError) as refused:
        predict(trained.model, tmp_path / "rows.parquet", tmp_path / "out.parquet")
    message = str(refused.value).replace(str(tmp_path / "rows.parquet"), "request")
    message = message.replace("large_list<item", "list<element")
    by_rows = server.ask(PREDICT, {"instances": wrong.to_pylist()})
    assert by_rows.status == 400
    # A column that is missing is missing in a row, and lists have no name in JSON for what they hold.
    assert re.sub(r": row 0(?=:)", "", by_rows.content["error"]).replace("item", "element") == message
    if (
        str(table[name].type) in TYPES
        and str(wrong.schema.field(name).type if name in wrong.schema.names else "") in TYPES
    ):
        assert server.ask(INFER, {"inputs": tensors(wrong)}).content == {"error": message}


@pytest.mark.parametrize(
    ("path", "content", "status", "message"),
    [
        (PREDICT, b"{", 400, r"^request: is not valid JSON \("),
        (PREDICT, b"", 400, r"^request: is not valid JSON \("),
        (PREDICT, b"[" * 100_000, 400, "^request: is nested too deeply to be read"),
        (PREDICT, b'{"instances": "\xff"}', 400, r"^request: is not valid JSON \('utf-8' codec"),
        (PREDICT, [1], 400, r'^request: expected a JSON object with a list "instances"'),
        (PREDICT, {"rows": []}, 400, r'^request: expected a JSON object with a list "instances"'),
        (PREDICT, {"instances": {"site": "left"}}, 400, r'^request: "instances" must be a list of rows'),
        (PREDICT, {"instances": [[1, 2]]}, 400, r"^request: row 0: expected an object of column and value, found \[1"),
        (INFER, b"[", 400, "^request: "),
        (INFER, {}, 400, "^request: inputs: Field required"),
        (INFER, {"inputs": []}, 400, "^request: column 'mean_radius' is missing; the model was trained with it"),
        ("/v1/models/early:predict", {"instances": []}, 404, "early"),
        ("/v2/models/early/infer", {"inputs": []}, 404, "early"),
        (
            "/v2/repository/models/late/unload",
            {},
            404,
            "^request: POST /v2/repository/models/late/unload: no such route; available: GET /, .*, "
            "POST /v2/models/{model_name}/infer$",
        ),
        ("/v2", {}, 405, "^request: POST /v2: no such route; available: .*, GET /v2,"),
        (PREDICT, {"instances": ["x" * (1 << 20)]}, 413, "^request: is larger than 1 MB; send fewer rows at a time"),
        # More than the system keeps for a server that has stopped reading.
        (PREDICT, {"instances": ["x" * (40 << 20)]}, 413, "^request: is larger than 1 MB; send fewer rows at a time"),
    ],
)
def test_malformed_requests_are_refused_with_a_message(
    server: Server, path: str, content: Any, status: int, message: str
) -> None:
    answer = server.ask(path, content)
    assert answer.status == status
    assert re.search(message, str(answer.content.get("error", ""))), answer
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("path", [PREDICT, INFER])
def test_compressed_bodies_are_refused(server: Server, table: pa.Table, path: str) -> None:
    content = {"instances": table.to_pylist()} if path == PREDICT else {"inputs": tensors(table)}
    body = gzip.compress(json.dumps(content).encode())
    message = "request: Content-Encoding 'gzip' is not supported; send the body uncompressed"
    assert server.ask(path, body, {"Content-Encoding": "gzip"}) == Answer(415, {"error": message})
    assert server.ask(path, content, {"Content-Encoding": "identity"}).status == 200


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"datatype": "FP128"}, "column 'mean_radius': datatype must be one of BOOL, .*, got 'FP128'"),
        ({"shape": [20, 2]}, r"column 'mean_radius' has shape \[20, 2\]; expected \[rows\] or \[rows, 1\]"),
        ({"shape": [41]}, r"column 'mean_radius' has shape \[41\] and 40 values"),
        ({"shape": [1], "data": [1.0]}, "column 'mean_texture' has 40 rows; column 'mean_radius' has 1"),
        ({"data": [1.0] * 39 + ["x"]}, "row 39: column 'mean_radius' is declared FP64, found 'x'"),
        ({"datatype": "INT64", "data": [1.5] * 40}, "row 0: column 'mean_radius' is declared INT64, found 1.5"),
        ({"name": "site"}, "column 'site' occurs 2 times; expected each name once"),
    ],
)
def test_tensors_that_are_not_what_they_say_are_refused(
    server: Server, table: pa.Table, tensor: dict[str, Any], message: str
) -> None:
    first, *others = tensors(table)
    answer = server.ask(INFER, {"inputs": [{**first, **tensor}, *others]})
    assert answer.status == 400
    assert re.match(f"request: {message}", answer.content["error"]), answer


@pytest.mark.parametrize(
    "raw",
    [struct.pack("<I", 1) + b"\xff", struct.pack("<I", 10**8) + b"left", b"ab", struct.pack("<I", 9) + b"left"],
    ids=["not UTF-8", "too long", "no length", "truncated"],
)
def test_bytes_that_are_no_texts_are_refused(server: Server, table: pa.Table, raw: bytes) -> None:
    inputs = [each for each in tensors(table.slice(0, 1)) if each["name"] != "site"]
    site = {"name": "site", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(raw)}}
    header = json.dumps({"inputs": [*inputs, site]}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(header))}
    answer = server.ask(INFER, header + raw, headers)
    message = "request: the bytes of a BYTES tensor are not texts in UTF-8, each after its length in 4 bytes"
    assert answer == (400, {"error": message})


def test_calls_of_grpc_that_are_not_answered_say_so(server: Server, table: pa.Table) -> None:
    import grpc
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        for call, request in (
            (stub.RepositoryModelLoad, messages.RepositoryModelLoadRequest(model_name="late")),
            (stub.RepositoryModelUnload, messages.RepositoryModelUnloadRequest(model_name="late")),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call(request)
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert stub.ServerReady(messages.ServerReadyRequest()).ready
        names = [tensor["name"] for tensor in tensors(table)]
        inputs = [{"name": name, "datatype": "BYTES", "shape": [1]} for name in names]
        for raw in (b"ab", struct.pack("<I", 10**8)):
            request = messages.ModelInferRequest(
                model_name="late", inputs=inputs, raw_input_contents=[raw] * len(names)
            )
            with pytest.raises(grpc.RpcError) as refused:
                stub.ModelInfer(request)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
