"""``dkan serve``: the probabilities of ``dkan predict`` over every protocol, its errors, and an end in order."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import ConfigError, TrainResult, predict
from dkan_core.config import ServeConfig
from tests import warm
from tests.command import check, dkan
from tests.serving.requests import INFER, PREDICT, grpc_request, tensors
from tests.serving.server import IMPORTED, OPTIONS, Server, serving
from tests.training.processes import wait_until


@pytest.fixture(scope="module")
def server(trained: TrainResult, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as users start it, which no process with its imports done is forked for."""
    log = tmp_path_factory.mktemp("serve") / "log"
    with serving(Path(trained.model).parent, log, *OPTIONS, cold=True) as server:
        yield server


@pytest.fixture(scope="module")
def expected(trained: TrainResult, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> npt.NDArray[Any]:
    folder = tmp_path_factory.mktemp("expected")
    pq.write_table(table, folder / "rows.parquet")
    predict(trained.model, folder / "rows.parquet", folder / "scores.parquet")
    found: npt.NDArray[Any] = pq.read_table(folder / "scores.parquet")["label_probability"].to_numpy()
    return found


def as_float32(values: list[float]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def packed(texts: Iterable[bytes]) -> bytes:
    """Return texts as the Open Inference Protocol has them in binary data."""
    return b"".join(struct.pack("<I", len(text)) + text for text in texts)


def as_bytes(request: Any) -> Any:
    """Return a gRPC request whose values are beside its tensors, as Triton's client sends them."""
    found = type(request)()
    found.CopyFrom(request)
    for tensor in found.inputs:
        values = tensor.contents
        raw = packed(values.bytes_contents) if tensor.datatype == "BYTES" else np.array(values.fp64_contents).tobytes()
        found.raw_input_contents.append(raw)
        tensor.ClearField("contents")
    return found


def test_rows_as_objects_get_the_probabilities_of_predict_to_the_bit(
    server: Server, table: pa.Table, expected: npt.NDArray[Any]
) -> None:
    together = server.probabilities(table.to_pylist())
    alone = [server.probabilities([row])[0] for row in table.to_pylist()[:5]]
    np.testing.assert_array_equal(as_float32([row["label_probability"] for row in together]), expected)
    np.testing.assert_array_equal(as_float32([row["label_probability"] for row in alone]), expected[:5])


def test_named_columns_get_the_probabilities_of_predict_to_the_bit(
    server: Server, table: pa.Table, expected: npt.NDArray[Any]
) -> None:
    answer = server.ask(INFER, {"id": "7", "inputs": tensors(table)})
    assert answer.status == 200 and answer.content["id"] == "7" and answer.content["model_name"] == "late"
    (output,) = answer.content["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("label_probability", "FP32", [40])
    np.testing.assert_array_equal(as_float32(output["data"]), expected)


def test_columns_sent_as_bytes_get_the_probabilities_of_predict_to_the_bit(
    server: Server, table: pa.Table, expected: npt.NDArray[Any]
) -> None:
    inputs, raw = [], []
    for tensor in tensors(table):
        data = tensor.pop("data")
        raw.append(
            packed((text or "").encode() for text in data)
            if tensor["datatype"] == "BYTES"
            else np.array([np.nan if value is None else value for value in data]).tobytes()
        )
        inputs.append({**tensor, "parameters": {"binary_data_size": len(raw[-1])}})
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Type": "application/octet-stream"}
    answer = server.ask(INFER, head + b"".join(raw), headers)
    assert answer.status == 200
    found = np.frombuffer(answer.content[-4 * len(table) :], dtype=np.float32)
    # Bytes have no null: a missing category was sent as an empty text, which training did not see.
    present = np.array([site is not None for site in table["site"].to_pylist()])
    np.testing.assert_array_equal(found[present], expected[present])


def test_grpc_gives_the_probabilities_of_predict_to_the_bit(
    server: Server, table: pa.Table, expected: npt.NDArray[Any]
) -> None:
    import grpc
    from kserve.protocol.grpc import grpc_predict_v2_pb2 as messages
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

    present = [row for row in range(len(table)) if None not in table.slice(row, 1).to_pylist()[0].values()]
    request = grpc_request(table.take(present))
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        stub = GRPCInferenceServiceStub(channel)
        assert stub.ServerReady(messages.ServerReadyRequest()).ready
        (output,) = stub.ModelInfer(request).outputs
        request.parameters["reasons"].int64_param = 2
        _, reasons, _ = stub.ModelInfer(request).outputs
        in_bytes = stub.ModelInfer(as_bytes(request))
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(messages.ModelInferRequest(model_name="late", inputs=request.inputs[1:]))
    np.testing.assert_array_equal(np.array(output.contents.fp32_contents, dtype=np.float32), expected[present])
    assert [len(json.loads(of_row)) for of_row in reasons.contents.bytes_contents] == [2] * len(present)
    probabilities, texts, _ = in_bytes.raw_output_contents
    np.testing.assert_array_equal(np.frombuffer(probabilities, dtype=np.float32), expected[present])
    assert texts == packed(reasons.contents.bytes_contents)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details().startswith("request: column 'mean_radius' is missing; the model was trained with it")


@pytest.fixture(scope="module")
def reasons(trained: TrainResult, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return the two strongest reasons of the first rows, as predict writes them."""
    folder = tmp_path_factory.mktemp("reasons")
    pq.write_table(table.slice(0, 4), folder / "rows.parquet")
    predict(trained.model, folder / "rows.parquet", folder / "scores.parquet", reasons=2)
    return list(pq.read_table(folder / "scores.parquet")["label_reasons"].to_pylist())


def assert_same_reasons(found: list[Any], expected: list[Any]) -> None:
    for of_row, expected_of_row in zip(found, expected, strict=True):
        assert [each["log_odds"] for each in of_row] == pytest.approx(
            [each["log_odds"] for each in expected_of_row], abs=1e-4
        )
        assert [(each["column"], each["value"]) for each in of_row] == [
            (each["column"], each["value"]) for each in expected_of_row
        ]


def test_reasons_are_given_on_request(server: Server, table: pa.Table, reasons: list[Any]) -> None:
    rows = table.to_pylist()[:4]
    plain = server.ask(PREDICT, {"instances": rows, "parameters": {"reasons": 2}}).content
    assert_same_reasons([row["label_reasons"] for row in plain["predictions"]], reasons)
    assert [row["label_probability"] for row in plain["predictions"]] == [
        row["label_probability"] for row in server.probabilities(rows)
    ]
    assert plain["baseline_log_odds"].keys() == {"label"}
    inputs = tensors(table.slice(0, 4))
    answer = server.ask(INFER, {"inputs": inputs, "parameters": {"reasons": 2}}).content
    _, found, baseline = answer["outputs"]
    assert (found["name"], found["datatype"], found["shape"]) == ("label_reasons", "BYTES", [4])
    assert_same_reasons([json.loads(of_row) for of_row in found["data"]], reasons)
    assert (baseline["name"], baseline["shape"]) == ("label_baseline_log_odds", [1])
    assert baseline["data"] == [plain["baseline_log_odds"]["label"]]
    asked = {"inputs": inputs, "parameters": {"reasons": 1}, "outputs": [{"name": "label_reasons"}]}
    (alone,) = server.ask(INFER, asked).content["outputs"]
    assert_same_reasons([json.loads(of_row) for of_row in alone["data"]], [of_row[:1] for of_row in reasons])
    assert server.ask(INFER, {**asked, "parameters": {}}).content == {
        "error": "request: output 'label_reasons' does not exist; outputs are label_probability"
    }


def test_metadata_names_the_columns_that_are_read_and_the_probabilities(server: Server, table: pa.Table) -> None:
    metadata = server.ask("/v2/models/late").content
    kinds = {"name": "late", "FP64": 10, "BYTES": 1}
    assert {each["name"] for each in metadata["inputs"]} == {*table.column_names}
    assert [each["datatype"] for each in metadata["inputs"]].count("FP64") == kinds["FP64"]
    assert metadata["outputs"] == [{"name": "label_probability", "datatype": "FP32", "shape": [-1]}]
    assert server.ask("/v2").content["name"] == "dkan"
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/late/ready", "/v1/models/late"):
        assert server.ask(path).status == 200, path


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", "text/plain"])
def test_json_is_read_alike_whatever_type_its_header_names(server: Server, table: pa.Table, kind: str) -> None:
    row = {**table.to_pylist()[1], "mean_radius": None}
    # NaN is no JSON; Python's clients write it.
    answers = [
        server.ask(PREDICT, {"instances": [{**row, "mean_radius": value}]}, {"Content-Type": kind})
        for value in (None, float("nan"))
    ]
    assert answers[0] == answers[1] and answers[0].status == 200
    assert server.ask(PREDICT, b"{", {"Content-Type": kind}).content == {
        "error": "request: is not valid JSON (Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1))"
    }


@pytest.mark.parametrize("is_binary", [True, False])
def test_events_are_answered_as_events(server: Server, table: pa.Table, is_binary: bool) -> None:
    rows = {"instances": table.to_pylist()[:2]}
    event = {"specversion": "1.0", "id": "7", "source": "a", "type": "b", "time": "2026-11-22T12:00:00Z"}
    if is_binary:
        answer = server.ask(PREDICT, rows, {f"ce-{name}": value for name, value in event.items()}).content
    else:
        kind = {"Content-Type": "application/cloudevents+json"}
        answer = server.ask(PREDICT, {**event, "data": rows}, kind).content["data"]
    assert [row["label_probability"] for row in answer["predictions"]] == [
        row["label_probability"] for row in server.probabilities(rows["instances"])
    ]


def test_requests_are_counted_and_logged_in_a_line_each(server: Server, table: pa.Table) -> None:
    def counted(name: str) -> float:
        text = server.ask("/metrics").content.decode()
        values = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
        return float(sum(map(float, values)))

    names = ("dkan_requests_total", "dkan_rows_total", "dkan_request_seconds_count", "dkan_batch_rows_sum")
    before = [counted(name) for name in names]
    server.probabilities(table.to_pylist())
    assert [counted(name) - start for name, start in zip(names, before, strict=True)] == [1, 40, 1, 40]
    server.ask("/v1/models/late%0AERROR:predict", {"instances": []})
    server.wait_for_line(r"INFO request POST /v1/models/late:predict status=200 rows=40 ms=[\d.]+\n")
    server.wait_for_line(r"WARNING request POST /v1/models/late%0AERROR:predict status=404 rows=0 ms=\S+ error='.*'\n")


def test_rows_with_unseen_values_are_counted_by_column(server: Server, table: pa.Table) -> None:
    def counted() -> float:
        lines = server.ask("/metrics").content.decode().splitlines()
        name = 'dkan_unseen_rows_total{column="site",model="late"} '
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    before = counted()
    row = table.to_pylist()[1]
    server.probabilities([{**row, "site": site} for site in ("here", "there", row["site"], None)])
    assert counted() == before + 2


def test_request_of_the_guide_is_answered(
    server: Server, table: pa.Table, expected: npt.NDArray[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Path(__file__).parents[2] / "docs/guides/serve.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", guide.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "flights").mkdir()
    pq.write_table(table, tmp_path / "flights/rows.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code.replace("localhost:8080", f"127.0.0.1:{server.port}"), names)
    np.testing.assert_array_equal(as_float32([row["label_probability"] for row in names["predictions"]]), expected[:2])


def test_no_rows_are_answered_with_none(server: Server) -> None:
    assert server.ask(PREDICT, {"instances": []}).content == {"predictions": []}


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["one process", "processes"])
def test_quiet_server_says_nothing_of_what_goes_well(
    trained: TrainResult, table: pa.Table, tmp_path: Path, options: Sequence[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path / "log"
    words = ["serve", trained.model, "--host", "127.0.0.1", "--port", str(port), "--quiet", *options]
    with log.open("w") as out:
        process = warm.server(*IMPORTED).start(words, dict(os.environ), out)

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready") as answer:
            return bool(answer.status == 200)
        return False

    try:
        wait_until(answers)
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait() == 0 and log.read_text() == ""


def test_two_processes_count_together_and_answer_what_has_begun_when_they_are_told_to_end(
    trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    body = json.dumps({"instances": table.to_pylist()}).encode()
    with serving(trained.model, tmp_path / "log", "--workers", "2", cold=True) as server:
        server.wait_for_line(r"late is ready[\s\S]*late is ready")
        for _ in range(8):
            assert len(server.probabilities(table.to_pylist())) == 40
        total = 'dkan_rows_total{model="late"} 320.0'
        # The last request is counted once its answer has been sent; then every process knows of it.
        wait_until(lambda: total in server.ask("/metrics").content.decode())
        assert all(total in server.ask("/metrics").content.decode() for _ in range(4))
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST {PREDICT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            client.sendall(head + body[:100])
            # Another request of the same process or the other one: the first has been read by then.
            server.probabilities(table.to_pylist()[:1])
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_line(r"Shutting down[\s\S]*Shutting down")
            client.sendall(body[100:])
            answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.count(b"label_probability") == 40
        assert server.stop() == 0
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 100), "is damaged or was changed"),
        (shutil.rmtree, "no config.json there; expected a model"),
    ],
)
def test_model_that_cannot_be_read_ends_the_command_with_a_message(
    trained: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: Any,
    message: str,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(trained.model, folder)
    damage(folder)
    code = dkan("serve", folder, "--port", 0, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)


def test_port_that_is_taken_is_named(
    trained: TrainResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code = dkan("serve", trained.model, "--host", "127.0.0.1", "--port", port, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, rf"port {port}: cannot listen there on 127.0.0.1 \(Address already in use\)")


def test_two_protocols_on_one_port_are_refused() -> None:
    with pytest.raises(ConfigError, match="grpc_port must differ from port; both are 8080"):
        ServeConfig(grpc_port=8080)
    assert ServeConfig(port=0, grpc_port=0).grpc_port == 0, "each takes a free one"
    with pytest.raises(ConfigError, match="grpc_port 0: 2 workers need one port to share"):
        ServeConfig(grpc_port=0, workers=2)
