"""Two nodes on one machine, torchrun and gloo over a real network: they train as one does, and fail aloud."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from dkan_core import NodesConfig, PrepareConfig, TrainConfig, TrainResult, prepare, train, train_on_nodes
from dkan_core.config.strategies import Strategy
from dkan_core.trainjob.body import arguments
from examples.flights import ExampleError, flights_table, package_data
from tests.training.processes import wait_until
from tests.training.runs import final_state
from tests.trainjob.kubernetes import COMPLETE, Kubernetes, serve, write_kubeconfig
from tests.trainjob.network import Kubelet, Node, Ranks, two_nodes

pytestmark = pytest.mark.nodes

ROWS = 30_000
CONFIG = TrainConfig(
    model="fastkan",
    strategy="allreduce",
    epochs=4,
    hidden=(16,),
    device="cpu",
    batch_size=128,
    learning_rate=0.01,
    dropout=0.1,
    resume="auto",
)
GRACE_SECONDS = 30.0
"""For what comes after a process has given the others up: exit codes, and the ends of those that started it."""

Start = Callable[..., tuple[Ranks, Ranks]]


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flights")
    try:
        table = flights_table(package_data())
    except ExampleError as error:
        pytest.skip(str(error))
    rows = np.sort(np.random.default_rng(0).choice(table.num_rows, ROWS, replace=False))
    pq.write_table(table.take(rows), folder / "flights.parquet")
    prepare(
        folder / "flights.parquet", folder / "data", PrepareConfig(label=("label",), split_column="split", group="date")
    )
    return folder / "data"


@pytest.fixture(scope="module")
def one_node(flights: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Two workers on one node, without torchrun."""
    return train(flights, tmp_path_factory.mktemp("one") / "run", replace(CONFIG, workers=2))


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    with two_nodes() as pair:
        yield pair


@pytest.fixture
def start(flights: Path, nodes: tuple[Node, Node]) -> Iterator[Start]:
    """Start a run on both nodes; what is left of it at the end is ended."""
    started: list[Ranks] = []

    def begin(run: Path, config: TrainConfig = CONFIG) -> tuple[Ranks, Ranks]:
        first, second = (node.start(arguments(str(flights), str(run), config)) for node in nodes)
        started.extend((first, second))
        return first, second

    yield begin
    for ranks in started:
        ranks.end()


def history(run: Path) -> list[dict[str, Any]]:
    path = run / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def finished(pair: tuple[Ranks, Ranks], seconds: float = 120) -> tuple[str, str]:
    """Wait for both nodes' good end; return what they said."""
    (code, first), (other, second) = (ranks.wait(seconds) for ranks in pair)
    assert (code, other) == (0, 0), f"node 0:\n{first}\nnode 1:\n{second}"
    return first, second


def failed(pair: tuple[Ranks, Ranks], seconds: float) -> tuple[str, str]:
    """Wait for both nodes' bad end; return what they said."""
    (code, first), (other, second) = (ranks.wait(seconds) for ranks in pair)
    assert code > 0 and other > 0, f"node 0: {code}\n{first}\nnode 1: {other}\n{second}"
    return first, second


def begun(start: Start, run: Path) -> tuple[Ranks, Ranks]:
    """Start a run on both nodes and wait for its first evaluation."""
    pair = start(run)
    wait_until(lambda: len(history(run)) >= 1)
    return pair


def check_rerun(start: Start, run: Path, expected: TrainResult) -> None:
    """Check that a run that has failed resumes and ends as the one on one node."""
    first, _ = finished(start(run))
    assert "resuming from step" in first
    check_same(run, expected)


def check_same(run: Path, expected: TrainResult) -> None:
    """Check that a run has ended as the one on one node."""
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["average_precision"] == pytest.approx(expected.average_precision, abs=1e-6)
    state: npt.NDArray[np.float32] = final_state(run)
    np.testing.assert_array_equal(state, final_state(Path(expected.model).parent))
    for name in ("units_done", "rows"):
        assert metrics["training"]["ledger"][name] == expected.metrics["training"]["ledger"][name]
    assert [entry["step"] for entry in history(run)] == [entry["step"] for entry in expected.history]
    assert metrics["training"]["workers"] == 2


def test_train_job_on_two_nodes_trains_as_one_does(
    flights: Path, nodes: tuple[Node, Node], one_node: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(flights, tmp_path / "claim" / "data")
    run, kubelets = tmp_path / "claim" / "run", list[Kubelet]()

    def work(job: dict[str, Any]) -> None:
        kubelets.extend(Kubelet(node, job["spec"]["trainer"]["args"]) for node in nodes)

    def condition() -> dict[str, str] | None:
        return COMPLETE if all(kubelet.is_done for kubelet in kubelets) else None

    asked = NodesConfig(image="dkan", pvc_name="claim", mount_path=str(tmp_path / "claim"), timeout_seconds=200)
    try:
        with serve(Kubernetes(work=work, conditions=[condition])) as kubernetes:
            kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", kubernetes.url)
            monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
            result = train_on_nodes(tmp_path / "claim" / "data", run, CONFIG, asked)
    finally:
        for kubelet in kubelets:
            kubelet.end()
    check_same(run, one_node)
    assert result.average_precision == one_node.average_precision > 0.25  # 0.16 of the flights are late


@pytest.mark.parametrize("strategy", ["tensor-parallel", "pipeline"])
def test_two_nodes_divide_a_model_as_two_workers_of_one_do(
    strategy: Strategy, flights: Path, start: Start, tmp_path: Path
) -> None:
    config = replace(CONFIG, strategy=strategy, epochs=1)
    expected = train(flights, tmp_path / "one", replace(config, workers=2))
    finished(start(tmp_path / "run", config))
    check_same(tmp_path / "run", expected)


def test_killed_rank_ends_both_nodes_and_the_rerun_goes_on(start: Start, one_node: TrainResult, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pair = begun(start, run)
    os.kill(pair[1].processes()["rank-1"], signal.SIGKILL)
    said = failed(pair, GRACE_SECONDS)
    assert "error: rank-1 died (killed by signal 9" in said[1]
    assert "error: rank-0 died (exit code 75: it has lost the other ranks" in said[0]
    check_rerun(start, run, one_node)


def test_cut_cable_ends_both_nodes_and_the_rerun_goes_on(
    start: Start, nodes: tuple[Node, Node], one_node: TrainResult, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    pair = begun(start, run)
    nodes[1].link("down")
    said = failed(pair, CONFIG.exchange_timeout + GRACE_SECONDS)
    for node, text in enumerate(said):
        assert f"rank-{node} died (exit code 75: it has lost the other ranks" in text
    nodes[1].link("up")
    check_rerun(start, run, one_node)


def test_node_that_is_replaced_at_once_takes_part_again(
    flights: Path, nodes: tuple[Node, Node], one_node: TrainResult, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    kubelets = [Kubelet(node, arguments(str(flights), str(run), CONFIG)) for node in nodes]
    try:
        wait_until(lambda: bool(list(run.glob("checkpoints/step-*.safetensors"))))
        kubelets[0].kill_container()
        assert [kubelet.wait(200) for kubelet in kubelets] == [0, 0], "\n".join(kubelet.said for kubelet in kubelets)
    finally:
        for kubelet in kubelets:
            kubelet.end()
    assert "resuming from step" in kubelets[0].said
    check_same(run, one_node)
