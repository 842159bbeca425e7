"""Whole runs with real processes: equal to plain training, reproducible, and ended well when one dies."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from safetensors.torch import load_file

from dkan_core import ConfigError, OutputError, TrainConfig, TrainingError, TrainResult, evaluate, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.data.loading.order import steps_per_epoch
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.roles.evaluator import MAX_BACKLOG, is_behind
from dkan_core.training.roles.in_process import SingleResult, train_single
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.placement import threads_per_worker
from dkan_core.training.setup.sizing import MAX_EPOCHS
from dkan_core.training.state.checkpoint_store import load_checkpoint
from dkan_core.training.state.shared_memory import Snapshot
from dkan_core.utils.resources import available_cores
from dkan_core.utils.torch_resources import torch_threads
from tests.training.faults import ROUNDS, slow_steps
from tests.training.processes import Background, alive, wait_until

SMALL = TrainConfig(
    blend=False, epochs=3, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02, dropout=0.3
)
ENDLESS = replace(SMALL, epochs=100_000, patience=1_000_000)


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    return load_file(Path(result.model) / "model.safetensors")


def plain_training(prepared: Path, config: TrainConfig) -> SingleResult:
    """Train in this process, without server, workers or evaluator."""
    manifest = read_manifest(prepared)
    config = resolve(replace(config, workers=1), manifest.splits["train"].rows)
    with (
        torch_threads(threads_per_worker(1)),
        open_split(prepared, manifest, "train") as train_rows,
        open_split(prepared, manifest, "valid") as valid_rows,
    ):
        return train_single(train_rows, valid_rows, manifest, config)


def last_is_best(prepared: Path, run: Path, config: TrainConfig) -> TrainResult:
    """Train with evaluation at the end alone, so that the saved model is the last one."""
    per_epoch = steps_per_epoch(read_manifest(prepared).splits["train"].rows, config.batch_size or 1)
    result = train(prepared, run, replace(config, epochs=1))
    assert result.history[-1]["step"] == per_epoch and len(result.history) == 1
    return result


def test_one_worker_equals_plain_training_to_the_bit(prepared: Path, tmp_path: Path) -> None:
    config = replace(SMALL, epochs=MAX_BACKLOG // 2, evaluations_per_epoch=2, patience=4)
    result, expected = train(prepared, tmp_path / "run", config), plain_training(prepared, config)
    for name, value in weights(result).items():
        assert torch.equal(value, expected.model.state_dict()[name]), name
    timed = ("seconds", "rows_per_second", "time")
    for found, wanted in zip(result.history, expected.history, strict=True):
        assert {key: found[key] for key in found if key not in timed} == pytest.approx(
            {key: wanted[key] for key in wanted if key not in timed}
        )
    for name, value in expected.metrics.items():
        assert name == "labels" or result.metrics[name] == pytest.approx(value), name


@pytest.mark.parametrize(("accumulate", "slice_weights"), [(1, (1.0, 3.5)), (3, (1.0, 1.0, 1.0))])
def test_more_workers_compute_the_same_global_batches(
    accumulate: int, slice_weights: tuple[float, ...], prepared: Path, tmp_path: Path
) -> None:
    workers = len(slice_weights)
    config = replace(
        SMALL, members=2, workers=workers, accumulate=accumulate, batch_size=50, slice_weights=slice_weights
    )
    result = last_is_best(prepared, tmp_path / "run", config)
    plain = replace(config, epochs=1, accumulate=1, slice_weights=())
    expected = plain_training(prepared, plain).model.state_dict()
    for name, value in weights(result).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)


def check_ended_in_time(history: list[dict[str, Any]], limit: float) -> None:
    """Check that the last evaluation came after the limit; the one before may just have begun when it was reached."""
    assert history[-1]["seconds"] >= limit and sum(entry["seconds"] >= limit for entry in history) <= 2


def test_training_in_this_process_ends_in_time_and_keeps_the_random_state(prepared: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    result = plain_training(prepared, replace(ENDLESS, max_seconds=0.5))
    assert torch.equal(torch.rand(3), expected)
    check_ended_in_time(result.history, 0.5)
    assert result.metrics["average_precision"] > 0.5


def test_same_seed_gives_the_same_bits_and_another_seed_does_not(prepared: Path, tmp_path: Path) -> None:
    config = replace(SMALL, workers=2)
    first, second = (train(prepared, tmp_path / name, config) for name in ("first", "second"))
    other = train(prepared, tmp_path / "other", replace(config, seed=1))
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(first).items())
    assert [entry["average_precision"] for entry in first.history] == [
        entry["average_precision"] for entry in second.history
    ]
    assert any(not torch.equal(value, weights(other)[name]) for name, value in weights(first).items())


def test_run_folder_holds_what_the_contract_says(trained: TrainResult) -> None:
    run = Path(trained.model).parent
    lines = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    metrics = json.loads((run / "metrics.json").read_text())
    assert lines == trained.history and [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))
    assert metrics["average_precision"] == trained.average_precision == max(line["average_precision"] for line in lines)
    assert metrics["average_precision"] > 0.95
    best = next(line for line in lines if line["best"] and line["epoch"] == metrics["epoch"])
    # Of the same parameters, which the saved model's metrics are of as well, but calibrated.
    assert best["validation_loss"] == pytest.approx(metrics["log_loss"], abs=0.1)
    assert all(line["validation_loss"] > 0 for line in lines)
    assert {"roc_auc", "log_loss", "prevalence", "rows", "labels", "average_precision_micro"} <= metrics.keys()
    assert metrics["training"]["workers"] == 1 and metrics["training"]["threads"] == available_cores()
    assert SavedModel(run).metrics["average_precision"] == trained.average_precision


def test_patience_ends_the_run(prepared: Path, tmp_path: Path) -> None:
    # However far behind the evaluator is, which then skips snapshots, the epochs are not over before it is done.
    result = train(prepared, tmp_path / "run", replace(ENDLESS, patience=3))
    assert result.metrics["training"]["ended"] == "patience"
    scores = [(entry["average_precision"], -entry["validation_loss"]) for entry in result.history]
    best = scores.index(max(scores))
    assert len(scores) - 1 - best == 3
    log = (tmp_path / "run" / "logs" / "train.log").read_text()
    assert f"the 3 evaluations after epoch {result.history[best]['epoch']:.2f} were no better" in log


def test_max_seconds_ends_the_run_with_the_final_model_evaluated(prepared: Path, tmp_path: Path) -> None:
    result = train(prepared, tmp_path / "run", replace(ENDLESS, max_seconds=1.0))
    check_ended_in_time(result.history, 1.0)
    assert result.metrics["training"]["ended"] == "time"
    assert (tmp_path / "run" / "metrics.json").exists()
    # Waiting for the last evaluation is no time of training, which a run that resumes would miss.
    _, checkpoint = load_checkpoint(result.checkpoint or "") or ("", None)
    assert checkpoint is not None and checkpoint.ledger.used == result.history[-1]["seconds"]


def test_run_folder_in_use_is_refused_unless_it_may_be_overwritten(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(prepared, run, SMALL)
    with pytest.raises(OutputError, match="--overwrite"):
        train(prepared, run, SMALL)
    with pytest.raises(ConfigError, match="label_weights"):
        train(prepared, run, replace(SMALL, label_weights=(1, 1)), overwrite=True)
    assert SavedModel(run).metrics["average_precision"] > 0.5
    train(prepared, run, SMALL, overwrite=True)
    (run / "thesis.txt").write_text("do not touch")
    with pytest.raises(OutputError, match=r"thesis\.txt"):
        train(prepared, run, SMALL, overwrite=True)
    assert (run / "thesis.txt").read_text() == "do not touch"


def test_loss_that_diverges_at_any_rate_ends_the_run(prepared: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"not finite at step \d+, even with 1/1024 of the learning rate"):
        train(prepared, tmp_path / "run", replace(ENDLESS, learning_rate=1e3, weight_decay=1e3, max_seconds=60))


def test_full_disk_ends_the_run_with_a_clear_error_and_no_half_model(prepared: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 2_060_000)
    with pytest.raises(OutputError, match="the disk is full"):
        train(prepared, small_disk / "run", replace(SMALL, hidden=(64,)))
    assert not (small_disk / "run" / "model").exists()
    assert not (small_disk / "run" / ".model.partial").exists()


def test_shard_that_vanishes_after_the_start_is_named(prepared: Path, tmp_path: Path) -> None:
    copy = tmp_path / "prepared"
    shutil.copytree(prepared, copy)
    # In memory, the rows would be read but once.
    background = Background(copy, tmp_path / "run", replace(ENDLESS, data_in="disk"), tmp_path / "settings.json")
    try:
        wait_until(lambda: background.evaluated() > 0)
        (shard,) = (copy / "train").iterdir()
        os.truncate(shard, 1000)
        code, output = background.wait()
    finally:
        background.end()
    assert code == 2 and f"error: {shard}: is truncated at byte" in output and "Traceback" not in output


@pytest.fixture
def running(prepared: Path, tmp_path: Path) -> Any:
    """Yield an endless run of two workers that has evaluated at least once."""
    background = Background(prepared, tmp_path / "run", replace(ENDLESS, workers=2), tmp_path / "settings.json")
    wait_until(lambda: background.evaluated() > 0 or background.process.poll() is not None)
    yield background
    background.end()


def test_training_never_waits_for_evaluation(prepared: Path, tmp_path: Path) -> None:
    config = replace(ENDLESS, max_seconds=4.0)
    slow = slow_steps(tmp_path, until=tmp_path / "never", seconds=0.02, within=ROUNDS)
    background = Background(prepared, tmp_path / "run", config, tmp_path / "settings.json", **slow)
    wait_until(lambda: background.evaluated() > 0)
    evaluator = background.children()["evaluator"]
    os.kill(evaluator, signal.SIGSTOP)
    try:
        wait_until(lambda: "rank-0" not in background.children())
        stopped_at = background.evaluated()
    finally:
        os.kill(evaluator, signal.SIGCONT)
    code, _ = background.wait()
    history = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert code == 0 and history[-1]["seconds"] >= 4.0
    # The time was up: of what waited, the newest snapshot alone was still scored.
    assert len(history) <= stopped_at + 2 and history[-1]["step"] > 2 * history[stopped_at - 1]["step"]


def test_hung_worker_does_not_outlive_its_launcher(running: Background) -> None:
    processes = running.children()
    os.kill(processes["worker-0"], signal.SIGSTOP)
    os.kill(running.process.pid, signal.SIGKILL)
    running.wait()
    wait_until(lambda: not any(alive(pid) for pid in processes.values()))
    assert len(processes) == 4


def test_what_a_killed_run_left_is_replaced(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in (".model.partial", ".model.old"):
        (run / name).mkdir(parents=True)
    (run / ".metrics.json.0123456789abcdef.partial").write_text("{")
    train(prepared, run, replace(SMALL, epochs=1, seed=2**63 - 1))
    assert not list(run.glob(".*"))


def test_caller_keeps_its_random_state(prepared: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(prepared, tmp_path / "run", replace(SMALL, epochs=1))
    assert torch.equal(torch.rand(3), expected)


def test_impossible_run_folder_is_named(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file/run"):
        train(prepared, tmp_path / "file" / "run", SMALL)


def test_remote_run_is_uploaded_and_replaced_as_a_whole(prepared: Path, tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/runs/first/metrics.json", b'{"average_precision": 0.5}')
    fs.pipe_file("/runs/first/tensorboard/events.out.tfevents.stale", b"")
    result = train(prepared, "memory://runs/first/", replace(SMALL, epochs=2), overwrite=True)
    assert result.model == "memory://runs/first/model" and not fs.exists("/runs/first/tensorboard")
    assert not any("//" in path for path in fs.find("/runs/first"))
    evaluation = evaluate(result.model, prepared, tmp_path / "eval", explain=False)
    assert 0 < evaluation.metrics["average_precision"] <= 1
    assert "Validation average precision" in (tmp_path / "eval" / "report.html").read_text()


def test_mistake_leaves_an_earlier_remote_run_alone(prepared: Path) -> None:
    fs = fsspec.filesystem("memory")
    metrics = b'{"average_precision": 0.5}'
    fs.pipe_file("/runs/kept/metrics.json", metrics)
    with pytest.raises(ConfigError):
        train(prepared, "memory://runs/kept", replace(SMALL, workers=1000), overwrite=True)
    assert fs.cat_file("/runs/kept/metrics.json") == metrics


def test_a_run_by_default_has_fewer_evaluations_than_may_wait() -> None:
    """Whichever process starts first, the best model is chosen of the same ones."""
    assert TrainConfig().evaluations_per_epoch * MAX_EPOCHS <= MAX_BACKLOG


@pytest.mark.parametrize(("waiting", "behind"), [(1, False), (MAX_BACKLOG, False), (MAX_BACKLOG + 1, True)])
def test_evaluator_keeps_the_order_until_it_is_far_behind(waiting: int, behind: bool) -> None:
    assert is_behind([Snapshot()] * waiting) is behind
    assert is_behind([Snapshot()] * waiting + [Snapshot(time_is_up=1)])


def test_best_models_are_saved_less_often_than_they_come_where_that_is_fast(prepared: Path, tmp_path: Path) -> None:
    """Saving takes a twentieth of the time, however long an evaluation takes: the last one is saved in any case."""
    result = train(prepared, tmp_path / "run", replace(SMALL, epochs=8, evaluations_per_epoch=4, learning_rate=1e-3))
    saves = sum(entry["time"]["evaluator"]["save"] > 0.002 for entry in result.history)
    best = [entry for entry in result.history if entry["best"]]
    assert 1 <= saves < len(best)
    assert SavedModel(Path(result.model)).metrics["step"] == best[-1]["step"]


@pytest.mark.gpu
def test_cuda_run_reaches_the_same_quality(prepared: Path, tmp_path: Path) -> None:
    result = train(prepared, tmp_path / "run", replace(SMALL, epochs=8, device="cuda"))
    assert result.average_precision > 0.95
