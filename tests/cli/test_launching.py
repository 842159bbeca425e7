"""``dkan train --launch torchrun``: prints the command, or is it."""

import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dkan_core import TrainResult
from dkan_core.cli.launching import replace_process
from dkan_core.model.saved_model import SavedModel
from tests import warm, warm_python
from tests.command import check, dkan
from tests.training.processes import alive, child_pids, wait_until

PARTS = ["--freeze", "encoder", "--freeze", "bias"]
SETTINGS = ["--epochs", "1", *PARTS, "--device", "cpu", "--batch-size-per-worker", "32"]


@pytest.mark.slow
def test_the_command_is_printed_and_runs_as_it_is(
    prepared: Path,
    trained: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every rank knows what is frozen, of a model that the first one alone reads."""
    start = ["--init-from", trained.model, "--launch", "torchrun", "--nproc", "2"]
    words = ["train", str(prepared), "--out", str(tmp_path / "run"), *SETTINGS, *start]
    assert dkan(*words, "--dry-run", monkeypatch=monkeypatch) == 0
    printed = shlex.split(capsys.readouterr().out)
    assert printed[:3] == ["torchrun", "--standalone", "--nproc-per-node=2"]
    assert printed[3:8] == ["-m", "dkan_core", "train", str(prepared), "--out"]
    settings = {"--epochs=1", "--device=cpu", "--batch-size-per-worker=32", "--freeze=encoder", "--freeze=bias"}
    assert {*printed[9:]} == {*settings, f"--init-from={trained.model}"}
    assert not (tmp_path / "run").exists()
    done = warm.server().run(words, GLOO_SOCKET_IFNAME="lo", PYTHON_EXEC=warm_python.executable())
    assert done.returncode == 0, done.stderr
    training = json.loads((tmp_path / "run/metrics.json").read_text())["training"]
    assert (training["workers"], training["strategy"], training["batch_size"]) == (2, "allreduce", 64)
    before, after = (SavedModel(Path(model)).module for model in (trained.model, tmp_path / "run/model"))
    for name, tensor in before.named_parameters():
        same = torch.equal(after.state_dict()[name], tensor)
        assert same == (name.startswith(("encoder", "bias")) or name.endswith("grid")), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nproc", "2"], "nproc 2: is for --launch torchrun; without it, --workers sets the number"),
        (["--launch", "torchrun", "--nproc", "0"], "nproc must be at least 1, got 0"),
        (["--launch", "torchrun", "--nproc", "2", "--strategy", "single"], "strategy single: torchrun has started 2"),
        (["--launch", "torchrun", "--nproc", "2", "--workers", "3"], "workers 3: torchrun has started 2"),
        (
            ["--launch", "torchrun", "--nproc", "2", "--json", "-"],
            "--json: with --launch, the result is in .*metrics.json",
        ),
        (
            ["--launch", "torchrun", "--nproc", "2", "--resume", "none"],
            "resume none: there is no checkpoint at none",
        ),
        (["--launch", "torchrun"], "nproc: no GPU is visible, so there is no default"),
    ],
)
def test_what_ranks_would_refuse_is_refused_before_they_start(
    options: list[str], message: str, prepared: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code = dkan("train", prepared, "--out", tmp_path / "run", "--device", "cpu", *options, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("given", "waits"), [({}, "110"), ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}, "5")])
def test_torchrun_gives_ranks_time_for_their_last_checkpoint(
    given: dict[str, str], waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(path: str, words: list[str], variables: dict[str, str]) -> None:
        raise SystemExit(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])

    monkeypatch.setattr(os, "execve", end)
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=f"^{waits}$"):
        replace_process(["torchrun"])


@pytest.mark.slow
def test_ranks_end_with_torchrun(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", str(prepared), "--out", str(run), "--epochs", "100000", "--patience", "100000", "--no-blend"]
    command = [sys.executable, "-m", "dkan_core", *words, "--device", "cpu", "--launch", "torchrun", "--nproc", "2"]
    with subprocess.Popen(command, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}) as agent:
        wait_until((run / "history.jsonl").exists)
        ranks = child_pids(agent.pid)
        processes = [*ranks, *(pid for rank in ranks for pid in child_pids(rank))]
        agent.kill()
    assert len(ranks) == 2 and len(processes) > 2
    try:
        wait_until(lambda: not any(map(alive, processes)))
    finally:
        for pid in filter(alive, ranks):
            os.kill(pid, signal.SIGKILL)
