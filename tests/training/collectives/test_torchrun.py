"""Runs under torchrun: every rank is the launcher of one collective worker, and the run equals one without torchrun."""

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkan_core import ConfigError, TrainConfig, TrainingError, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.model.architecture import ModelConfig
from dkan_core.training.communication.process_group import serve_loopback_store
from dkan_core.training.communication.rendezvous import TorchRun
from dkan_core.training.launcher import torchrun as torchrun_module
from dkan_core.training.launcher.torchrun import Ranks
from dkan_core.training.setup.defaults import resolve, resolve_for
from dkan_core.training.state.checkpoint_file import run_facts
from dkan_core.training.state.checkpoint_store import load_checkpoint
from tests import warm, warm_python
from tests.certificates import make_certificate
from tests.tracking.status_server import serve_status
from tests.training.processes import LOOPBACKS, UNRESPONSIVE_SECONDS, listening, name_of, wait_until, working_in

CONFIG = TrainConfig(
    blend=False,
    strategy="allreduce",
    epochs=3,
    hidden=(8,),
    device="cpu",
    batch_size=50,
    learning_rate=0.02,
    dropout=0.0,
)
TWO = TorchRun(rank=0, size=2, local_size=2, host="localhost", port=1, agent_has_store=True, attempt="0")


def torchrun(prepared: Path, run: Path, config: TrainConfig, *options: str) -> warm.Forked:
    """Start two ranks, which work in the folder that the run's lies in."""
    settings = run.with_suffix(".json")
    settings.write_text(json.dumps({key: value for key, value in asdict(config).items() if value is not None}))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    command = [*launcher, "-m", "dkan_core", "train", prepared, "--out", run, "--config", settings]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHON_EXEC": warm_python.executable()}
    return warm.server().popen(command, env, run.parent)


def end_of(process: warm.Forked) -> tuple[int, str]:
    """Wait for the end of a process; return exit code and output."""
    assert process.stderr is not None
    with process.stderr:
        output = process.stderr.read()
    return process.wait(), output


@pytest.mark.slow
def test_two_ranks_equal_a_parameter_server_with_two_workers(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the pods of a TrainJob: every rank knows the address, and the first one alone posts.
    with serve_status(tmp_path, make_certificate(tmp_path), monkeypatch) as status:
        process = torchrun(prepared, tmp_path / "ranks", CONFIG)
        code, output = end_of(process)
    assert code == 0, output
    percentages = [post["progressPercentage"] for post in status.posts]
    assert percentages.count(0) == 1 and percentages.count(100) == 1 and percentages == sorted(percentages)
    monkeypatch.undo()
    train(prepared, tmp_path / "server", replace(CONFIG, strategy="parameter-server", workers=2))
    ranks, server = (load_checkpoint(str(tmp_path / name / "checkpoints")) for name in ("ranks", "server"))
    assert ranks is not None and server is not None
    np.testing.assert_allclose(ranks[1].state_KP[0], server[1].state_KP[0], rtol=1e-3, atol=1e-4)
    assert json.loads((tmp_path / "ranks" / "metrics.json").read_text())["training"]["workers"] == 2


@pytest.mark.slow
def test_killed_rank_is_named_and_the_next_attempt_goes_on(prepared: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = replace(CONFIG, epochs=60, patience=1000, resume="auto")
    process = torchrun(prepared, run, config, "--max-restarts=1")
    history = run / "history.jsonl"
    wait_until(lambda: history.exists() and len(history.read_text().splitlines()) > 2)
    (pid,) = (pid for pid in working_in(tmp_path) if name_of(pid) == "dkan rank-1")
    os.kill(pid, 9)
    code, output = end_of(process)
    assert code == 0, output
    assert "error: rank-1 died (killed by signal 9" in output and "resuming from step" in output
    steps = [json.loads(line)["step"] for line in history.read_text().splitlines()]
    assert len(steps) == 60 and steps == sorted(set(steps))


def test_store_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over a network that was cut: nothing comes, not even the end of the connection."""
    code = (
        "from dkan_core.training.communication.process_group import serve_loopback_store\n"
        "import signal, sys; store = serve_loopback_store(60)\n"
        "print(store.port, file=sys.stderr, flush=True); signal.pause()"
    )
    keeper = warm.server().popen(["-c", code], dict(os.environ))
    assert keeper.stderr is not None
    try:
        torchrun = replace(TWO, rank=1, port=int(keeper.stderr.readline()), agent_has_store=True)
        ranks = Ranks(torchrun, 60)
        ranks.wait_until_ready("cpu", "")
        monkeypatch.setattr(ranks, "timeout", 0.5)
        os.kill(keeper.pid, signal.SIGSTOP)
        with pytest.raises(TrainingError, match=r"lost the other ranks: no answer from localhost:\d+ for 0\.5 s"):
            ranks.wait_for_value("facts")
    finally:
        keeper.kill()
        keeper.wait()
        keeper.stderr.close()


def test_first_rank_waits_for_the_data_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = serve_loopback_store(60)
    first, second = (Ranks(replace(TWO, rank=rank, port=store.port), 60) for rank in range(2))
    second._store = first._store  # runs of one process have keys of their own
    with caplog.at_level("INFO"), ThreadPoolExecutor() as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(torchrun_module, "SILENCE_SECONDS", 0.2)
        waiting = pool.submit(first.wait_until_ready, "cuda:0", "")
        wait_until(lambda: "waiting for the data of ranks 1" in caplog.text)
        assert not waiting.done()
        second.wait_until_ready("cuda:1", "")
        waiting.result(timeout=UNRESPONSIVE_SECONDS)


def test_ranks_do_not_wait_for_values_of_a_rank_0_that_has_failed() -> None:
    """As after Ctrl-C before training begins, which the others leave to rank 0."""
    store = serve_loopback_store(60)
    first, second = (Ranks(replace(TWO, rank=rank, port=store.port), 60) for rank in range(2))
    second._store = first._store  # runs of one process have keys of their own
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(second.wait_for_value, "facts")
        with pytest.raises(KeyboardInterrupt), first.told_of_failure():
            raise KeyboardInterrupt
        with pytest.raises(TrainingError, match=r"rank 0 has ended without a result \(Ctrl-C\)"):
            waiting.result(timeout=UNRESPONSIVE_SECONDS)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (("cpu", "a"), "rank 1 has device cpu, but rank 0 has cuda"),
        (("cuda:1", "b"), "rank 1 has prepared data with fingerprint b, but rank 0 has a"),
    ],
)
def test_ranks_with_other_devices_or_data_are_refused(theirs: tuple[str, str], message: str) -> None:
    store = serve_loopback_store(60)
    first, second = (Ranks(replace(TWO, rank=rank, port=store.port), 60) for rank in range(2))
    second._store = first._store  # runs of one process have keys of their own
    second.wait_until_ready(*theirs)
    with pytest.raises(ConfigError, match=message), first.told_of_failure():
        first.wait_until_ready("cuda:0", "a")
    with pytest.raises(TrainingError, match=rf"rank 0 has ended without a result \(error: {message}\)"):
        second.wait_for_value("facts")


def test_settings_are_those_of_rank_0_which_has_read_the_model_of_init_from(prepared: Path) -> None:
    store = serve_loopback_store(60)
    ranks = Ranks(replace(TWO, rank=1, port=store.port), 60)
    manifest = read_manifest(prepared)
    given = resolve_for(replace(CONFIG, data_in="disk"), manifest, TWO)
    completed = resolve_for(replace(CONFIG, model="fastkan", hidden=(4,), init_from="sha256:0"), manifest, TWO)
    architecture = ModelConfig.for_data(manifest, completed).to_dict()
    facts = json.loads(json.dumps(run_facts(manifest.fingerprint, architecture, completed)))
    spec = torchrun_module._collective_worker_spec(ranks, prepared, manifest, given, facts)
    os.close(spec.memory)
    assert spec.config == replace(completed, data_in="disk") != given
    assert (spec.rank, spec.device, spec.model) == (1, "cpu", facts["architecture"])


def test_store_that_the_first_rank_keeps_on_one_node_listens_on_the_loopback_alone() -> None:
    """As where a launcher other than torchrun has set its variables."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        variables = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
        launched = [TorchRun.read({**variables, "RANK": rank}) for rank in "01"]
        assert launched[0] is not None and launched[1] is not None and not launched[0].agent_has_store
        with pytest.raises(TrainingError, match=rf"cannot listen at localhost:{port} for the other ranks: .*in use"):
            Ranks(launched[0], 60)
    first, second = (Ranks(torchrun, 60) for torchrun in launched if torchrun)
    second.wait_until_ready("cpu", "")
    found = listening([os.getpid()])
    assert found and found <= LOOPBACKS, found
    del first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy": "parameter-server"}, "strategy parameter-server: torchrun has started 2 ranks"),
        ({"strategy": "single"}, "strategy single"),
        ({"workers": 3}, "workers 3: torchrun has started 2 ranks"),
        ({"device": "cpu,cpu"}, "device cpu,cpu: under torchrun"),
        ({"mode": "async"}, "mode async"),
        ({"sync_interval": 4}, "sync_interval 4"),
    ],
)
def test_what_makes_no_sense_under_torchrun_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(replace(CONFIG, **change), 1000, torchrun=TWO)


def test_strategy_of_its_own_accord_is_allreduce_under_torchrun() -> None:
    config = resolve(replace(CONFIG, strategy="auto"), 1000, torchrun=TWO)
    assert (config.strategy, config.workers, config.device) == ("allreduce", 2, "cpu,cpu")
    assert resolve(replace(CONFIG, strategy="auto"), 1000).strategy == "single"
