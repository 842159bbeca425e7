"""Where the time goes: every process of a real run says it, by parts that add up."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dkan_core import DataError, TrainConfig, TrainResult, evaluate, train
from dkan_core.config.strategies import Strategy
from dkan_core.training.breakdown import PARTS, total
from dkan_core.training.launcher.reporting import TimeReader
from dkan_core.training.state.shared_memory import MemoryShape, TimeSpent, create_memory
from dkan_core.training.state.stopwatch import PUBLISH_SECONDS, Stopwatch
from tests.training.runs import CONFIG

WORKER = {"feed", "compute", "exchange", "other"}
EVALUATOR = {"score", "save", "wait", "other"}
BESIDE = {"seconds", "utilization", "peak_memory"}
ROLES = {
    "parameter-server": {"worker 0": WORKER | {"wait"}, "worker 1": WORKER | {"wait"}},
    "allreduce": {"worker 0": WORKER | {"update"}, "worker 1": WORKER | {"update"}},
    "single": {"worker 0": WORKER | {"update"}},
}


def check_breakdown(result: TrainResult, config: TrainConfig) -> dict[str, dict[str, float]]:
    """Check that every process of a run says where its time went; return the sums over the run."""
    expected = {**ROLES[config.strategy], "evaluator": EVALUATOR}
    expected |= {"server": {"update", "wait", "other"}} if config.strategy == "parameter-server" else {}
    spent = total(result.history)
    assert {name: set(each) - BESIDE for name, each in spent.items()} == expected
    wall = sum(entry["time"]["seconds"] for entry in result.history)
    for name, each in spent.items():
        assert sum(each.get(part, 0.0) for part in PARTS) == pytest.approx(each["seconds"], abs=0.01)
        # From the first step on; before that, processes start. What was not yet said at the end is a moment.
        assert 0.5 * result.history[-1]["seconds"] - PUBLISH_SECONDS < each["seconds"] < 1.01 * wall + 0.1, name
        assert 10e6 < each["peak_memory"] < 1e11
        # An evaluator that starts late never waits.
        assert each[{"server": "wait", "evaluator": "score"}.get(name, "compute")] > 0
    return spent


def test_worker_server_and_evaluator_say_where_their_time_went(calm: TrainResult) -> None:
    spent = check_breakdown(calm, replace(CONFIG, strategy="parameter-server"))
    assert spent["server"]["update"] > 0 < spent["worker 0"]["exchange"]
    lines = (Path(calm.model).parent / "history.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == calm.history


@pytest.mark.parametrize("strategy", ["allreduce", "single"])
def test_workers_without_a_server_say_where_their_time_went(
    strategy: Strategy, rows: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    single = strategy == "single"
    config = replace(CONFIG, strategy=strategy, workers=1 if single else 2, epochs=2, tensorboard=single)
    with caplog.at_level(logging.INFO, "dkan_core"):
        result = train(rows, tmp_path / "run", config)
    spent = check_breakdown(result, config)
    assert (spent["worker 0"]["exchange"] == 0) == single and spent["worker 0"]["update"] > 0
    said = [message for message in caplog.messages if message.startswith("time: ")]
    assert len(said) == len(result.history) and all("MB" in line for line in said)
    # Two evaluations may be so close to each other that nothing was measured between them.
    assert any("evaluator" in line for line in said)
    # Not in each: of two evaluations that the launcher takes at once, the second has no time of the workers.
    assert any(line.startswith("time: workers ") and "compute" in line for line in said)
    if single:
        board = b"".join(path.read_bytes() for path in (tmp_path / "run" / "tensorboard").iterdir())
        assert b"time/worker-0/compute" in board and b"peak_memory/evaluator" in board


def test_report_shows_where_the_time_went(calm: TrainResult, rows: Path, tmp_path: Path) -> None:
    evaluate(calm.model, rows, tmp_path / "eval", split="valid", explain=False)
    page = (tmp_path / "eval" / "report.html").read_text()
    assert "Where the time went" in page and "forward and backward pass" in page
    for process in ("worker 0", "worker 1", "server", "evaluator"):
        assert f'<th scope="row" class="name">{process}</th>' in page


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ("long", r"history\.jsonl: line 1: time: .*got 'long'"),
        (
            {"seconds": 1, "workers": [{"seconds": -1, "peak_memory": 1}]},
            r"line 1: time\.workers\.0\.seconds: .* got -1",
        ),
    ],
)
def test_damaged_history_is_named(time: object, message: str, calm: TrainResult, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(calm.model)
    (tmp_path / "run" / "history.jsonl").write_text(json.dumps({**calm.history[0], "time": time}) + "\n")
    with pytest.raises(DataError, match=message):
        evaluate(tmp_path / "run" / "model", rows, tmp_path / "eval", split="valid", explain=False)


def test_process_goes_on_counting_where_the_one_before_was_killed() -> None:
    memory = create_memory(MemoryShape(parameters=4, workers=2))
    times = TimeReader(memory, has_server=True)
    assert times.since_last()["workers"] == [] and "server" not in times.since_last()
    memory.worker_times[1].write(TimeSpent(compute=5.0, wait=1.0, peak_memory=1 << 40))
    successor = Stopwatch(memory.worker_times[1])
    (first,) = times.since_last()["workers"]
    assert (
        first["compute"] == 5.0 and first["seconds"] == 6.0 and first["utilization"] == pytest.approx(5 / 6, abs=1e-4)
    )
    successor.lap("feed")
    successor.publish()
    (second,) = times.since_last()["workers"]
    assert second["compute"] == 0.0 < second["feed"] < 5.0 and second["seconds"] == second["feed"]
    assert second["peak_memory"] == 1 << 40


@pytest.mark.gpu
def test_peak_memory_on_a_gpu_is_that_of_the_device(rows: Path, tmp_path: Path) -> None:
    result = train(rows, tmp_path / "run", replace(CONFIG, strategy="parameter-server", device="cuda:0,cuda:0"))
    spent = check_breakdown(result, replace(CONFIG, strategy="parameter-server"))
    assert 0 < spent["worker 0"]["peak_memory"] < torch.cuda.get_device_properties(0).total_memory
