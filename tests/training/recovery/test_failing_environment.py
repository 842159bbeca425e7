"""Disks, buckets, containers and numbers that fail: docs/concepts/reliability.md."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from dkan_core import ConfigError, TrainResult, train
from dkan_core.model.saved_model import SavedModel
from tests.s3 import s3_keys, s3_server
from tests.training.faults import slow_steps
from tests.training.processes import Background, wait_until
from tests.training.runs import CONFIG, same_history

pytestmark = pytest.mark.slow


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1024))


SAVE_AT_ONCE = """
import dkan_core.training.roles.evaluator
dkan_core.training.roles.evaluator.MAX_SAVING_SHARE = float("inf")
"""
"""The evaluator saves each better model, however much of the time that takes."""


ONE_IS_BEST = """
import dkan_core.training.roles.evaluator
from dkan_core.training.validation.early_stopping import EarlyStopping
dkan_core.training.roles.evaluator.RETRY_SECONDS = 0.1
take = EarlyStopping.take
def take_twentieth(self, value, loss, **options):
    self.count = getattr(self, "count", 0) + 1
    return take(self, 1.0 if self.count == 20 else value / 2, loss, **options)
if take.__name__ == "take":
    EarlyStopping.take = take_twentieth
"""
"""Of all evaluations the twentieth is the best, and saving is tried again soon."""


def find_checkpoints(uri: str) -> list[str]:
    fs = fsspec.filesystem("s3")
    fs.invalidate_cache()
    return [str(name) for name in fs.glob(f"{uri}/step-*")]


def test_full_disk_is_loud_and_training_goes_on(
    start: Callable[..., Background], calm: TrainResult, small_disk: Path, tmp_path: Path
) -> None:
    run, done = small_disk / "run", tmp_path / "done"
    background = start(run=str(run), **slow_steps(tmp_path, until=done, seconds=0.01, also=SAVE_AT_ONCE))
    filler = small_disk / "filler"
    try:
        wait_until(lambda: background.evaluated() > 0)
        old = SavedModel(run).metrics
        fill(filler)
        texts = ("was not written: ", "kept in memory, training continues")
        wait_until(lambda: all(any(text in line for line in background.lines) for text in texts))
        assert SavedModel(run).metrics["step"] == old["step"]
        filler.unlink()
        done.touch()
        code, output = background.wait()
    finally:
        background.end()
    assert code == 0, output
    assert all(text in output for text in texts)
    assert same_history(run, calm) and SavedModel(run).metrics["step"] == calm.metrics["step"]


def test_evaluation_goes_on_while_the_disk_is_full_and_the_best_is_saved_once_it_is_not(
    start: Callable[..., Background], small_disk: Path, tmp_path: Path
) -> None:
    run, done, config = small_disk / "run", tmp_path / "done", replace(CONFIG, evaluations_per_epoch=30)
    background = start(config, run=str(run), **slow_steps(tmp_path, until=done, seconds=0.01, also=ONE_IS_BEST))
    try:
        wait_until(lambda: background.evaluated() > 0)
        fill(small_disk / "filler")
        # More than there are slots.
        wait_until(lambda: sum("  AP " in line for line in background.lines) > 100)
        (small_disk / "filler").unlink()
        done.touch()
        code, output = background.wait()
    finally:
        background.end()
    assert code == 0, output
    history = background.history()
    assert len(history) == 120 and SavedModel(run).metrics["step"] == history[19]["step"]


def test_best_model_that_did_not_fit_is_saved_when_the_run_goes_on(
    calm: TrainResult, small_disk: Path, rows: Path, tmp_path: Path
) -> None:
    run, filler = small_disk / "run", small_disk / "filler"
    config = replace(CONFIG, checkpoint_uri=str(tmp_path / "checkpoints"))
    background = Background(rows, run, config, tmp_path / "settings.json")
    try:
        wait_until(lambda: background.evaluated() > 0)
        fill(filler)
        code, output = background.wait()
    finally:
        background.end()
    assert code == 2 and "error:" in output and "the disk is full" in output
    filler.unlink()
    again = train(rows, run, replace(config, resume="auto"))
    assert SavedModel(run).metrics["step"] == calm.metrics["step"] and again.average_precision == calm.average_precision
    assert same_history(run, calm)


@pytest.mark.s3
def test_bucket_out_of_reach_is_tried_again_then_loud_and_training_goes_on(
    start: Callable[..., Background], calm: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as (endpoint, server), s3_keys(endpoint, monkeypatch):
        background = start(replace(CONFIG, checkpoint_uri="s3://bucket/run", checkpoint_steps=50))
        wait_until(lambda: find_checkpoints("s3://bucket/run") != [])
        server.kill()
        code, output = background.wait()
    assert code == 0, output
    assert "attempt 1" in output and "attempt 3" in output and "was not written: " in output
    assert same_history(background.run, calm)


CONTAINER = """
if [ -n "{hidden}" ]; then
    mount --bind {python} {pod}/python && mount -t tmpfs -o mode=755 tmpfs {hidden}
    mkdir -p {python} && mount --bind {pod}/python {python}
fi
mount -t tmpfs -o size=64k tmpfs /dev/shm
mount --bind {pod}/out {pod}/out
mount -o remount,ro,bind / && ip link set lo up
exec setpriv --reuid 4321 --regid 4321 --clear-groups --bounding-set=-all "$@"
"""


def test_pod_with_nothing_but_an_output_folder(rows: Path) -> None:
    """A tiny /dev/shm, a read-only root, no network, a uid without a passwd entry, no capability, no HOME.

    The launcher is the first process, and so the parent of all that have lost theirs.
    """
    python = Path(sys.base_prefix).resolve()
    hidden = next((str(path) for path in python.parents[::-1] if not path.stat().st_mode & 1), "")
    with tempfile.TemporaryDirectory() as folder:
        pod = Path(folder)
        pod.chmod(0o755)
        shutil.copytree(rows, pod / "rows")
        for name in ("out", "python"):
            (pod / name).mkdir()
        (pod / "out").chmod(0o777)
        script = CONTAINER.format(hidden=hidden, python=python, pod=pod)
        enter = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-ec", script, "sh"]
        probe = subprocess.run([*enter, "true"], capture_output=True, text=True, check=False)
        if probe.returncode:
            pytest.skip(f"namespaces cannot be made here: {probe.stderr.strip()}")
        settings = "--epochs 1 --model fastkan --hidden 8 --workers 2 --device cpu"
        command = f"{sys.executable} -m dkan_core train {pod}/rows --out {pod}/out/run {settings}"
        found = subprocess.run(
            [*enter, *command.split()],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"]},
            check=False,
        )
        assert found.returncode == 0, found.stderr
        assert 0 < json.loads((pod / "out/run/metrics.json").read_text())["average_precision"] <= 1


def test_memory_that_does_not_suffice_is_said_before_the_start(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text("300000000\n")
    (tmp_path / "memory.current").write_text("299970000\n")
    (tmp_path / "memory.stat").write_text("inactive_file 20000\n")  # 50 kB are free: enough for the model by itself
    monkeypatch.setattr("dkan_core.utils.resources.CGROUP", tmp_path)
    with pytest.raises(ConfigError, match=r"parameters and 2 workers need .* GB of shared memory, and 0\.0"):
        train(rows, tmp_path / "run", CONFIG)


def test_memory_above_a_limit_of_the_process_is_named(rows: Path, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"GB of shared memory cannot be allocated \(File too large\).*ulimit -f"):
            train(rows, tmp_path / "run", CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rate_that_is_far_too_high_is_backed_off_and_the_best_is_finite(rows: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=1, learning_rate=50.0, weight_decay=1.0, checkpoint_steps=5)
    result = train(rows, tmp_path / "run", config)
    found = result.metrics["training"]["ledger"]
    assert found["refused"] >= 3 and found["backoffs"] >= 1
    weights = load_file(Path(result.model) / "model.safetensors")
    assert all(np.isfinite(value).all() for value in weights.values())
