"""Clients that hang up, processes that die, and a server that is told to end while it is busy."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from safetensors.numpy import load_file, save_file
from starlette.requests import ClientDisconnect

from dkan_core import TrainResult
from dkan_core.model.saved_model import SavedModel
from dkan_core.serving import supervisor
from dkan_core.serving.batching import MicroBatcher, Probabilities
from dkan_core.serving.facts import begin_request
from dkan_core.serving.scorer import RequestScorer
from dkan_core.serving.served_model import ServedModel
from dkan_core.serving.supervisor import ServingProcess
from tests.serving.requests import INFER, PREDICT, grpc_request
from tests.serving.server import Answer, Server, serving
from tests.training.processes import child_pids, wait_until

# Reasons of so many rows take minutes.
MANY = 20_000


def body_of(table: pa.Table, rows: int) -> bytes:
    instances = table.to_pylist() * (rows // len(table))
    return json.dumps({"instances": instances, "parameters": {"reasons": 2}}).encode()


def send(server: Server, body: bytes, declared: int, path: str = PREDICT) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", server.port))
    client.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {declared}\r\n\r\n".encode() + body)
    return client


@pytest.mark.parametrize("path", [PREDICT, INFER])
def test_client_that_hangs_up_while_it_sends_is_no_error_of_the_server(server: Server, path: str) -> None:
    send(server, b'{"inst', 1000, path).close()
    error = "the client disconnected before the response was sent"
    server.wait_for_line(rf"request POST {path} status=400 .*error='{error}'")
    assert "Traceback" not in server.log.read_text()


def test_nothing_is_computed_for_a_client_that_hung_up(trained: TrainResult, table: pa.Table, tmp_path: Path) -> None:
    body = body_of(table, MANY)
    with serving(trained.model, tmp_path / "log") as server:
        # Until the first reasons are found, what finds them is made.
        assert server.ask(PREDICT, body_of(table, len(table))).status == 200
        send(server, body, len(body)).close()
        server.wait_for_line(rf"status=400 rows={MANY} .*error='the client disconnected before the response was sent'")
        assert server.stop() == 0


@pytest.mark.parametrize("is_scored", [False, True])
def test_request_is_not_answered_once_its_client_hung_up(
    trained: TrainResult, table: pa.Table, is_scored: bool
) -> None:
    async def ask() -> None:
        facts = begin_request("REST", PREDICT)
        facts.is_gone = not is_scored

        def score(batches: Sequence[pa.RecordBatch]) -> Probabilities:
            scored.extend(batches)
            facts.is_gone = True
            return scorer.score(batches)

        batcher = MicroBatcher(score, max_rows=64, max_wait_seconds=0)
        with ThreadPoolExecutor(1) as reasons_thread:
            model = ServedModel("late", scorer, batcher, reasons_thread)
            await model.predict({"instances": table.to_pylist()})

    scored: list[pa.RecordBatch] = []
    scorer = RequestScorer(SavedModel(Path(trained.model)))
    with pytest.raises(ClientDisconnect):
        asyncio.run(ask())
    assert len(scored) == is_scored


def test_call_that_is_given_up_is_none_that_was_answered(server: Server, table: pa.Table) -> None:
    import grpc
    from kserve.protocol.grpc.grpc_predict_v2_pb2_grpc import GRPCInferenceServiceStub

    assert server.ask(PREDICT, body_of(table, len(table))).status == 200
    before = _batches(server)
    # Reasons of so many rows take seconds; the server takes no more than a megabyte.
    request = grpc_request(pa.concat_tables([table.drop_null()] * 100))
    request.parameters["reasons"].int64_param = 2
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = GRPCInferenceServiceStub(channel).ModelInfer.future(request)
        wait_until(lambda: _batches(server) > before)
        call.cancel()
        server.wait_for_line(r"WARNING request \S+ModelInfer status=CANCELLED .*error='the call was cancelled'")


@pytest.mark.parametrize("options", [("--grpc-port", "0"), ("--workers", "2")], ids=["one process", "processes"])
def test_requests_that_outlast_the_grace_are_answered_and_counted(
    options: tuple[str, str], trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    answers: list[Answer] = []
    body = body_of(table, MANY)
    with serving(trained.model, tmp_path / "log", "--grace-seconds", "1", *options) as server:
        if "--workers" in options:
            server.wait_for_line(r"late is ready[\s\S]*late is ready")
        assert server.ask(PREDICT, body_of(table, len(table))).status == 200
        client = threading.Thread(target=lambda: answers.append(server.ask(PREDICT, body)))
        client.start()
        wait_until(lambda: _batches(server) == 2)
        server.process.send_signal(signal.SIGTERM)
        if "--grpc-port" in options:
            wait_until(lambda: not _listens(server.grpc_port))
        client.join()
        assert answers == [Answer(503, {"error": "the server is ending"})]
        assert server.stop() == 0
    assert f"status=503 rows={MANY}" in server.log.read_text()


def test_processes_that_finish_their_requests_take_no_connections(
    trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    body = body_of(table, MANY)
    with serving(trained.model, tmp_path / "log", "--workers", "2") as server:
        server.wait_for_line(r"late is ready[\s\S]*late is ready")
        assert server.ask(PREDICT, body_of(table, len(table))).status == 200
        client = send(server, body, len(body))
        wait_until(lambda: _batches(server) == 2)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not _listens(server.port))
        assert _serving_processes(server), "one still answers the request"
        client.close()
        assert server.process.wait() == 0


def _batches(server: Server) -> int:
    """Return how many batches of rows have been scored, or are being scored."""
    found = server.ask("/metrics").content.decode()
    (count,) = re.findall(r'^dkan_batch_requests_count\{model="late"\} (\d+)', found, re.MULTILINE)
    return int(count)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except OSError:
        return False
    return True


def test_process_that_is_replaced_serves_the_model_of_the_others(
    trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(trained.model, model)
    rows = table.to_pylist()[:1]
    with serving(model, tmp_path / "log", "--workers", "2") as server:
        server.wait_for_line(r"late is ready[\s\S]*late is ready")
        (expected,) = server.probabilities(rows)
        weights = load_file(model / "model.safetensors")
        save_file({name: -value for name, value in weights.items()}, model / "model.safetensors")
        (model / "files.json").unlink(missing_ok=True)
        os.kill(_serving_processes(server)[0], signal.SIGKILL)
        server.wait_for_line(r"(late is ready[\s\S]*){3}")
        assert all(server.probabilities(rows) == [expected] for _ in range(20))
        assert server.stop() == 0


def test_processes_end_with_the_one_that_started_them(trained: TrainResult, tmp_path: Path) -> None:
    with serving(Path(trained.model), tmp_path / "log", "--workers", "2") as server:
        server.wait_for_line(r"late is ready[\s\S]*late is ready")
        workers = _serving_processes(server)
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        assert len(workers) == 2 and not _listens(server.port)


def test_fork_server_that_is_killed_is_replaced_with_what_it_forked(
    trained: TrainResult, table: pa.Table, tmp_path: Path
) -> None:
    rows = table.to_pylist()[:1]
    with serving(trained.model, tmp_path / "log", "--workers", "2") as server:
        server.wait_for_line(r"late is ready[\s\S]*late is ready")
        (expected,) = server.probabilities(rows)
        before = _serving_processes(server)
        os.kill(_fork_server(server), signal.SIGKILL)
        server.wait_for_line(r"(late is ready[\s\S]*){4}")
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in before))
        assert all(server.probabilities(rows) == [expected] for _ in range(20))
        assert server.stop() == 0


def test_signal_to_all_processes_ends_them_in_order(trained: TrainResult, table: pa.Table, tmp_path: Path) -> None:
    body = body_of(table, len(table))
    with serving(trained.model, tmp_path / "log", "--workers", "2") as server:
        server.wait_for_line(r"late is ready[\s\S]*late is ready")
        with send(server, body[:100], len(body)) as client:
            # Another request of the same process or the other one: the first has been read by then.
            assert server.ask(PREDICT, body).status == 200
            fork_server = _fork_server(server)
            for pid in (fork_server, *_serving_processes(server), server.process.pid):
                os.kill(pid, signal.SIGTERM)
            server.wait_for_line(r"Shutting down[\s\S]*Shutting down")
            assert child_pids(fork_server), "it stays while the others finish their requests"
            client.sendall(body[100:])
            assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert server.process.wait() == 0


def _fork_server(server: Server) -> int:
    (found,) = (pid for pid in child_pids(server.process.pid) if child_pids(pid))
    return found


def _serving_processes(server: Server) -> list[int]:
    return child_pids(_fork_server(server))


def test_process_that_dies_before_it_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying:
        asked = 0

        def is_alive(self) -> bool:
            self.asked += 1
            return self.asked < 3

    monkeypatch.setattr(supervisor, "POLL_SECONDS", 0.0)
    process: Any = ServingProcess.__new__(ServingProcess)
    process.process, process.ping = Dying(), lambda seconds: False
    assert not process.is_alive(1e9)
    process.process, process.ping = Dying(), lambda seconds: True
    assert process.is_alive(1e9)
