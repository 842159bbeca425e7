"""A whole run is stopped and goes on: docs/concepts/reliability.md."""

import io
import logging
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dkan_core import OutputError, TrainResult, train
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.state.ledger import Ledger
from tests import warm
from tests.training.faults import inject, slow_steps
from tests.training.processes import Background, alive, wait_until
from tests.training.runs import (
    CONFIG,
    STEPS,
    check_nothing_lost,
    facts,
    final_state,
    ledger_of,
    newest_state,
    same_history,
)

pytestmark = pytest.mark.slow


def test_terminated_run_goes_on_to_the_same_bits(
    start: Callable[..., Background],
    calm: TrainResult,
    expected: npt.NDArray[np.float32],
    train_rows: int,
    tmp_path: Path,
) -> None:
    background = start(**slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01))
    with ledger_of(background) as ledger:
        # The evaluator may be behind on a busy machine; the log names the best model only if there is one.
        wait_until(lambda: ledger.read().step > STEPS // 3 and background.evaluated() > 0)
        processes = background.children()
        os.kill(background.process.pid, signal.SIGTERM)
        assert background.wait()[0] == 143
    assert not any(alive(pid) for pid in processes.values())
    log = (background.run / "logs" / "train.log").read_text()
    newest = max((background.run / "checkpoints").iterdir())
    # Of several better models the last may not be saved yet.
    model = f"{background.run}/model"
    ends = (
        f"best model in {model}; ",
        f"the best model is not in {model} yet, and resuming saves it there; ",
    )
    assert any(f"run ended (SIGTERM or SIGHUP): {end}" in log for end in ends)
    assert f"newest checkpoint {newest}; continue with --resume auto" in log
    assert not (background.run / "metrics.json").exists() and SavedModel(background.run).metrics["split"] == "valid"
    again = start(replace(CONFIG, resume="auto"))
    code, output = again.wait()
    assert code == 0 and "resuming from step" in output
    more = (again.run / "logs" / "train.log").read_text()
    assert more.startswith(log) and "run ended (all epochs done)" in more and "resuming from step" in more
    check_nothing_lost(again.run, train_rows, CONFIG, expected)
    assert same_history(again.run, calm)
    found, wanted = SavedModel(again.run).metrics, calm.metrics
    assert found["average_precision"] == wanted["average_precision"] and found["step"] == wanted["step"]


NEVER_SAVE = """
import dkan_core.training.roles.evaluator
dkan_core.training.roles.evaluator.MAX_SAVING_SHARE = 1e-9
"""
"""The evaluator saves its first model, and others where many snapshots wait for that or the run is over."""


@pytest.mark.parametrize("max_seconds", [None, 0.01], ids=["time left", "no time left"])
def test_no_evaluation_is_lost_where_many_wait_to_be_saved(
    start: Callable[..., Background], tmp_path: Path, max_seconds: float | None
) -> None:
    config = replace(CONFIG, evaluations_per_epoch=16)
    background = start(config, **slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01, also=NEVER_SAVE))
    wait_until(lambda: background.evaluated() > 40)
    os.kill(background.process.pid, signal.SIGTERM)
    assert background.wait()[0] == 143
    before = background.history()
    code, output = start(replace(config, resume="auto", max_seconds=max_seconds)).wait()
    assert code == 0, output
    again = background.history()
    # What was on its way when the run was stopped may come to it.
    assert [entry["average_precision"] for entry in again][: len(before)] == [
        entry["average_precision"] for entry in before
    ]
    best = max(entry["average_precision"] for entry in again)
    assert SavedModel(background.run).metrics["average_precision"] == pytest.approx(best, abs=1e-6)
    assert len(again) == 4 * 16 or max_seconds is not None


IN_TERMINAL = """
import fcntl, os, runpy, signal, sys, termios
os.setsid()
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[1]))
del sys.argv[1]
runpy.run_module("dkan_core", run_name="__main__")
"""
"""What a shell does for a command in its terminal; SIG_IGN is what nohup and trap have it inherit."""


@pytest.mark.parametrize(
    ("hangup", "code", "end"),
    [("SIG_DFL", 143, "SIGTERM or SIGHUP"), ("SIG_IGN", 0, "all epochs done")],
    ids=["hangup ends the run", "hangup is ignored"],
)
def test_closed_terminal_loses_nothing(rows: Path, tmp_path: Path, hangup: str, code: int, end: str) -> None:
    run, done, script = tmp_path / "run", tmp_path / "done", tmp_path / "in_terminal.py"
    script.write_text(IN_TERMINAL)
    master, terminal = os.openpty()
    settings = "--epochs 3 --model fastkan --hidden 8 --workers 2 --device cpu"
    words = [script, hangup, "train", rows, "--out", run, *settings.split()]
    env = {**os.environ, **slow_steps(tmp_path, until=done)}
    with os.fdopen(terminal, "w", closefd=False) as stream:
        process = warm.server().start(words, env, stream)
    os.close(terminal)

    def evaluations() -> int:
        return len((run / "history.jsonl").read_text().splitlines()) if (run / "history.jsonl").exists() else 0

    def evaluated() -> bool:
        while select.select([master], [], [], 0)[0]:
            os.read(master, 1 << 16)  # it would wait for room otherwise
        return evaluations() > 0

    try:
        wait_until(evaluated)
        os.close(master)
        before_closing = evaluations()
        # What it shows meanwhile has no place to go.
        wait_until(lambda: evaluations() > before_closing or process.poll() is not None)
        done.touch()
        assert process.wait() == code
    finally:
        process.kill()
        process.wait()
    assert f"run ended ({end}): " in (run / "logs/train.log").read_text() and any((run / "checkpoints").iterdir())


def test_killed_launcher_leaves_nothing_behind_and_the_run_goes_on_in_another_folder(
    start: Callable[..., Background], rows: Path, tmp_path: Path, expected: npt.NDArray[np.float32], train_rows: int
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = set(os.listdir("/dev/shm"))
    config = replace(CONFIG, checkpoint_steps=100, checkpoint_uri=str(tmp_path / "kept"))
    background = start(config, "first", TMPDIR=str(temporary))
    wait_until(lambda: (tmp_path / "kept").exists() and len(list((tmp_path / "kept").glob("step-*"))) > 1)
    processes = background.children()
    os.kill(background.process.pid, signal.SIGKILL)
    background.wait()
    wait_until(lambda: not any(alive(pid) for pid in processes.values()))
    assert not {name for name in set(os.listdir("/dev/shm")) - before if "dkan" in name}
    assert not {name for name in os.listdir(temporary) if name.startswith("dkan")}
    result = train(rows, tmp_path / "second", replace(config, resume="auto"))
    assert result.metrics["training"]["ledger"]["rows"] == 4 * train_rows
    assert np.array_equal(newest_state(tmp_path / "kept"), expected)
    finished = train(rows, tmp_path / "third", replace(config, resume="auto"))
    assert finished.history == result.history and finished.average_precision == result.average_precision
    assert facts(tmp_path / "third")["ledger"] == facts(tmp_path / "second")["ledger"]


def test_averaged_parameters_go_on_to_the_same_bits(
    start: Callable[..., Background], rows: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, mode="average", sync_interval=4, ema_decay=0.9)
    undisturbed = train(rows, tmp_path / "calm", config)
    background = start(config, **slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01))
    with ledger_of(background) as ledger:
        wait_until(lambda: ledger.read().step > STEPS // 3)
    os.kill(background.process.pid, signal.SIGTERM)
    assert background.wait()[0] == 143
    again = train(rows, background.run, replace(config, resume="auto"))
    assert np.array_equal(final_state(background.run), final_state(tmp_path / "calm"))
    assert same_history(background.run, undisturbed) and again.metrics["training"]["ended"] == "epochs"


@pytest.mark.s3
def test_retried_pod_goes_on_from_the_bucket(
    s3: str, start: Callable[..., Background], rows: Path, tmp_path: Path, calm: TrainResult, train_rows: int
) -> None:
    config = replace(CONFIG, checkpoint_uri=f"{s3}/checkpoints", checkpoint_steps=50, resume="auto")
    background = start(config, "first-pod")
    wait_until(lambda: background.evaluated() > 0)
    os.kill(background.process.pid, signal.SIGKILL)
    background.wait()
    result = train(rows, tmp_path / "second-pod", config)
    assert result.metrics["training"]["ledger"]["rows"] == 4 * train_rows
    assert same_history(tmp_path / "second-pod", calm)
    assert SavedModel(tmp_path / "second-pod").metrics["step"] == calm.metrics["step"]


def test_ctrl_c_ends_the_run_in_order_and_it_can_go_on(
    start: Callable[..., Background], expected: npt.NDArray[np.float32], train_rows: int, tmp_path: Path
) -> None:
    background = start(**slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01))
    with ledger_of(background) as ledger:
        wait_until(lambda: ledger.read().step > STEPS // 14)
    os.kill(background.process.pid, signal.SIGINT)
    code, output = background.wait()
    assert code == 130 and "press Ctrl-C again" in output and "continue with --resume auto" in output
    assert facts(background.run)["ended"] == "interrupt"
    interrupted = background.history()[-1]
    assert interrupted["step"] == facts(background.run)["steps"] < STEPS
    assert interrupted.get("due", True) == (interrupted["epoch"] % 1 == 0), "patience counts what was due"
    again = start(replace(CONFIG, resume="auto"))
    assert again.wait()[0] == 0
    check_nothing_lost(again.run, train_rows, CONFIG, expected)


HANG_IN_WORKERS = """
import time, torch
def hang(_):
    spec = sys._getframe(1).f_locals.get("spec")
    if spec is not None and spec.role == "worker":
        time.sleep(100_000)
torch.set_num_threads = hang
"""


def test_ctrl_c_before_the_first_step_promises_nothing(
    start: Callable[..., Background], rows: Path, tmp_path: Path
) -> None:
    background = start(**inject(tmp_path, HANG_IN_WORKERS))
    wait_until(lambda: "worker-1" in background.children())
    os.kill(background.process.pid, signal.SIGINT)
    code, output = background.wait()
    assert code == 130, output
    assert "interrupted; " in output and facts(background.run)["steps"] == 0
    assert "no checkpoint; start again with --resume auto or --overwrite" in output
    again = train(rows, background.run, replace(CONFIG, resume="auto"))
    assert again.metrics["training"]["steps"] == STEPS
    # Of a finished run, checkpoints are missed.
    shutil.rmtree(background.run / "checkpoints")
    with pytest.raises(OutputError, match="no checkpoint of it; pass --overwrite"):
        train(rows, background.run, replace(CONFIG, resume="auto"))


class InterruptedStream(io.StringIO):
    """Ctrl-C is pressed while it is written to; like a real one, it then takes nothing from the signal's handler."""

    is_written_to = was_interrupted = False

    def write(self, text: str) -> int:
        if self.is_written_to:
            raise RuntimeError("reentrant call")
        self.is_written_to = True
        try:
            # The progress of a run that has begun.
            if not self.was_interrupted and " rows/s " in text:
                self.was_interrupted = True
                signal.raise_signal(signal.SIGINT)
            return super().write(text)
        finally:
            self.is_written_to = False


def test_ctrl_c_in_the_middle_of_a_message_is_not_lost(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stream = InterruptedStream()
    monkeypatch.setattr(sys, "stderr", stream)
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("dkan_core")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "dkan_core"):
            result = train(rows, tmp_path / "run", replace(CONFIG, epochs=300, patience=300))
    finally:
        logger.removeHandler(handler)
    assert stream.was_interrupted and result.metrics["training"]["ended"] == "interrupt"
    assert "press Ctrl-C again" in stream.getvalue()


def test_ctrl_c_twice_ends_at_once(start: Callable[..., Background], tmp_path: Path) -> None:
    background = start(**slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01))
    with ledger_of(background) as ledger:
        wait_until(lambda: ledger.read().step > STEPS // 14)
    processes = background.children()
    os.kill(processes["evaluator"], signal.SIGSTOP)
    os.kill(background.process.pid, signal.SIGINT)
    wait_until(lambda: any("press Ctrl-C again" in line for line in background.lines))
    os.kill(background.process.pid, signal.SIGINT)
    code, output = background.wait()
    assert code == 130 and "Traceback" not in output and not any(alive(pid) for pid in processes.values())
    assert not (background.run / "metrics.json").exists(), "it did not wait for the evaluator"


def test_differences_that_were_on_their_way_are_not_lost(
    start: Callable[..., Background], train_rows: int, tmp_path: Path
) -> None:
    config = replace(CONFIG, mode="async", sync_interval=5, workers=3)
    background = start(config, **slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01))
    with ledger_of(background) as ledger:
        wait_until(lambda: ledger.read().step > STEPS // 3)
    os.kill(background.process.pid, signal.SIGTERM)
    code, output = background.wait()
    assert code == 143, output
    again = start(replace(config, resume="auto"))
    code, output = again.wait()
    assert code == 0, output
    assert facts(again.run)["ledger"]["rows"] == 4 * train_rows


def test_checkpoint_of_another_run_brings_its_own_model(
    rows: Path, tmp_path: Path, calm: TrainResult, expected: npt.NDArray[np.float32]
) -> None:
    other = Path(calm.model).parent
    first = train(rows, tmp_path / "run", replace(CONFIG, seed=1, epochs=1))
    with pytest.raises(OutputError, match="--overwrite"):
        train(rows, tmp_path / "run", replace(CONFIG, resume=str(other / "checkpoints")))
    again = train(rows, tmp_path / "run", replace(CONFIG, resume=str(other / "checkpoints")), overwrite=True)
    assert again.average_precision == calm.average_precision != first.average_precision
    assert again.history == calm.history


def test_finished_run_is_not_trained_over(rows: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=1, resume="auto")
    first = train(rows, tmp_path / "run", config)
    with pytest.raises(OutputError, match="holds a finished run"):
        train(rows, tmp_path / "run", replace(config, checkpoint_uri=str(tmp_path / "mistyped")))
    assert SavedModel(tmp_path / "run").metrics["average_precision"] == first.average_precision


SLOW_START = """
import time
time.sleep(3.5)
"""


def test_time_that_processes_need_to_get_ready_is_no_time_of_training(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run, config = tmp_path / "run", replace(CONFIG, epochs=10_000, workers=1, resume="auto")
    first = train(rows, run, replace(config, max_seconds=0.5)).metrics["training"]
    for name, value in slow_steps(tmp_path, until=tmp_path / "never", also=SLOW_START).items():
        monkeypatch.setenv(name, value)
    limit = first["seconds"] + 3
    again = train(rows, run, replace(config, max_seconds=limit)).metrics["training"]
    assert again["steps"] > first["steps"] and again["ended"] == "time" and again["seconds"] >= limit
    assert "no time left" not in caplog.text
    third = train(rows, run, replace(config, max_seconds=limit - 2.5)).metrics["training"]
    assert third["steps"] == again["steps"] and "no time left" in caplog.text


def test_clock_of_a_checkpoint_stands_still() -> None:
    now = time.monotonic()
    kept = Ledger(
        used=3.0, started=now - 5, since=now - 2, since_rows=100, since_loss=1.0, since_weight=4.0
    ).with_stopped_clock()
    assert 8 <= kept.seconds == kept.seconds and kept.figures(10).rows_per_second == 0
    # Loss goes on to be counted, speed begins again: its time was spent in another launch.
    going_on = kept.with_running_clock()
    assert (going_on.since_rows, going_on.since_loss, going_on.since_weight) == (0, 1.0, 4.0)
    assert going_on.started == going_on.since >= now and going_on.seconds >= kept.used
