"""``dkan plan`` and ``dkan bench sync``: real processes are measured, mistakes are named."""

import inspect
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dkan_core import ConfigError, DataError, Plan, TrainConfig, TrainingError, bench_sync, cli, plan, plan_slices
from dkan_core.config import build_config
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.order import slice_of
from dkan_core.data.loading.prefetching import PREFETCH
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.build import build_model
from dkan_core.training.compute.flat_model import Replica, parameter_count
from dkan_core.training.planning import checking, measuring
from dkan_core.training.planning.advice import Device, advise
from dkan_core.training.planning.device_memory import MemoryNeed
from dkan_core.training.planning.exchanges import EXCHANGES, exchange_seconds
from dkan_core.training.planning.formulas import ASSUMED_LAUNCH, SCHEMES, SYNC, StepCost, predict
from dkan_core.training.planning.measuring import Measurements
from dkan_core.training.planning.plan import DeviceAssumptions
from dkan_core.training.planning.probes import gradient
from dkan_core.training.planning.probes.gradient import Probe, WorkerMeasurement
from dkan_core.training.planning.probes.processes import close_handles, open_probes
from dkan_core.training.planning.slices import balance_slices
from dkan_core.training.setup.defaults import resolve
from dkan_core.training.setup.parameter_groups import parameter_groups
from tests.command import check, dkan
from tests.settings import resolved
from tests.training.compute import test_device_steps

MEMORY: dict[str, Any] = {"memory": 2000, "small_memory": 1000, "bf16_speed": None}
CORES: dict[str, Any] = {"cores": 16, "device_memory": 1 << 30, "resident_bytes": 1 << 20}
DEVICE = Device(memory=1e9, is_shared=False, need=MemoryNeed(fixed=0, per_row=1), bf16_speed=None)
SMALL = {"model": "fastkan", "hidden": [4], "device": "cpu", "batch_size": 64, "epochs": 2}


@pytest.fixture(scope="module")
def planned(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Plan for three workers on the CPU; return what was printed and written."""
    folder, printed = tmp_path_factory.mktemp("plan"), io.StringIO()
    (folder / "train.json").write_text(json.dumps(SMALL))
    words = ["--gpus", "3", "--config", folder / "train.json", "--json", folder / "plan.json"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(measuring, "ROUNDS", 1)
        patch.setattr(measuring, "EXCHANGE_REPEATS", 3)
        assert dkan("plan", prepared, *words, monkeypatch=patch) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["plan.json", "train.json"]
    return printed.getvalue(), json.loads((folder / "plan.json").read_text())


def test_plan_prints_every_scheme_at_every_number_of_workers(planned: tuple[str, dict[str, Any]]) -> None:
    printed, written = planned
    found = [(each["scheme"], each["workers"]) for each in written["predictions"]]
    assert found == [
        (scheme.name, count) for scheme in SCHEMES for count in (1, 2, 3, 4, 8, 10) if count <= scheme.most_workers
    ]
    rows = [line for line in printed.splitlines() if line.startswith(("| parameter", "| all", "| local", "| single"))]
    assert len(rows) == len(found)
    assert "| strategy | workers | step ms | rows/s |" in printed
    assert "take turns and gain nothing" in printed and written["assumed"]
    assert printed.startswith("warning: no GPU is visible: this plans 3 workers on this machine's ")
    assert printed.count("no GPU is visible") == 1 and "no GPU is visible" in written["assumed"][0]


def test_plan_measures_what_it_says(planned: tuple[str, dict[str, Any]]) -> None:
    _, written = planned
    one = written["measured"]["probes"]["1"]
    assert one["small"][0] == 8 and one["large"][0] == 64 and 0 < one["large"][1] < 5
    assert one["feed"] > 0 and one["update"] > 0
    # Parameters and gradients; of each row what is read ahead, and at least the four hidden units.
    assert one["small_memory"] > 8 * written["measured"]["parameters"]
    per_row = (one["memory"] - one["small_memory"]) / (64 - 8)
    assert per_row >= (1 + PREFETCH) * one["row_bytes"] + 4 * 4
    assert one["bf16_speed"] > 0
    assert set(written["measured"]["exchanges"]["parameter-server sync"]) == {"1", "2", "4"}
    assert all(0 < each["efficiency"] <= 1 and each["rows_per_second"] > 0 for each in written["predictions"])


def test_plan_warns_of_too_few_steps_and_recommends(planned: tuple[str, dict[str, Any]]) -> None:
    printed, written = planned
    advice = written["advice"]
    assert f"recommended for this machine's CPU, not for 3 GPUs: --strategy {advice['strategy']}" in printed
    assert f"--workers {advice['workers']}" in printed
    assert "note: 14 steps in 2 epochs of batches of 64 rows, too few" in printed
    assert advice["workers"] <= 3


def test_an_additive_model_is_planned(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    monkeypatch.setattr(measuring, "EXCHANGE_REPEATS", 3)
    monkeypatch.setattr(measuring, "MEASURED_WORKERS", (1, 2))
    config = TrainConfig(model="additive", pairs="2", device="cpu", batch_size=64, epochs=2, workers=1)
    found = plan(prepared, config, gpus=1)
    assert {each.scheme for each in found.predictions} == {scheme.name for scheme in SCHEMES}
    assert all(each.rows_per_second > 0 for each in found.predictions)


def test_the_optimizer_is_measured_with_the_learning_rates_of_a_run(prepared: Path) -> None:
    asked = TrainConfig(model="fastkan", hidden=(4,), device="cpu", workers=1, lr_multipliers=("network=0.5",))
    config = resolve(asked, 398)
    spec = measuring._process_spec(prepared, read_manifest(prepared), config)
    close_handles(spec)
    model = build_model(ModelConfig.from_dict(spec.model))
    assert spec.groups == parameter_groups(model, config, spec.train_rows) and spec.groups.rates


def test_check_holds_runs_against_predictions(prepared: Path) -> None:
    config = resolve(TrainConfig(model="fastkan", hidden=(4,), device="cpu", batch_size=64, workers=1), 398)
    probed = WorkerMeasurement(
        small=(8, 0.001), large=(64, 0.002), update=1e-4, feed=1e6, row_bytes=60, copy_bandwidth=None, **MEMORY
    )
    measured = Measurements(
        parameters=1000, train_rows=398, probes={1: probed}, exchanges={SYNC.name: {1: 1e-4, 2: 2e-4}}, **CORES
    )
    machine = measured.machine("pcie4")
    lines = [
        predict(machine, SYNC, count, batch_size=64, interval=8, train_rows=measured.train_rows) for count in (1, 2)
    ]
    (found,) = checking.check_plan(prepared, config, 8, lines, 1)
    assert (found.scheme, found.workers, found.predicted) == ("parameter-server sync", 1, lines[0].rows_per_second)
    assert found.measured > 0


def test_gradient_is_timed_as_part_of_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here of launches that stand for it: each is waited for, and adds to nothing that was there before."""
    config = test_device_steps.settings(kernel="recompute")
    probe: Any = Probe.__new__(Probe)
    probe.config, probe.reader, probe.device = config, test_device_steps.rows_in_memory(), torch.device("cpu")
    model = test_device_steps.network(config)
    probe.replica = Replica(model, probe.device)
    probe.replica.load(np.ones(parameter_count(model), np.float32))
    probe.small, probe.large = 8, 64
    sums = []
    monkeypatch.setattr(gradient, "SECONDS", 0.0)
    monkeypatch.setattr(gradient, "captured", lambda run, device: run)
    monkeypatch.setattr(
        torch.cuda, "synchronize", lambda device: sums.append(float(probe.replica.gradients_P.abs().sum()))
    )
    small, large = probe._graphs()
    assert small > 0 and large > 0
    assert len(sums) == 2 * gradient.MIN_TURNS and len({*sums}) == 2


@pytest.mark.parametrize(("link", "speed"), [("nvlink", "24 us and 280 GB/s"), ("pcie4", "45 us and 20 GB/s")])
def test_what_is_assumed_of_gpus_is_marked(link: str, speed: str) -> None:
    times: dict[str, Any] = {"small": (8, 0.001), "large": (64, 0.002), "graphs": (0.0001, 0.0008), "update": 1e-4}
    probed = WorkerMeasurement(feed=1e6, row_bytes=60, copy_bandwidth=2e10, **times, **MEMORY)
    measured = Measurements(parameters=1000, train_rows=5000, probes={1: probed}, exchanges={}, **CORES)
    machine, config = measured.machine(link), resolved(5000, batch_size=64, epochs=10)
    lines = [predict(machine, scheme, 1, batch_size=64, interval=8, train_rows=5000) for scheme in SCHEMES]
    result = Plan(
        device="a GPU",
        on_cpu=False,
        gpus=1,
        why_sent="",
        asked=DeviceAssumptions(link=link),
        batch_size=64,
        epochs=10,
        interval=8,
        measured=measured,
        predictions=tuple(lines),
        divided=(),
        advice=advise(machine, config, 8, 5000, lines, 1, DEVICE),
        checked=(),
    )
    marked = [line for line in str(result).splitlines() if line.startswith("note: assumed, not measured: ")]
    assert len(marked) == 3 and speed in marked[0]
    assert "gradient: one worker 0.86 ms + rows / 56,000 a second" in str(result)
    assert "gradient: on rows that lie on the GPU, as a CUDA graph, 0.00 ms + rows / 80,000 a second" in str(result)
    assert json.loads(json.dumps(result.to_dict()))["assumed"][0].endswith(speed)


def test_several_devices_are_measured_and_their_slices_balanced(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    (tmp_path / "train.json").write_text(json.dumps({**SMALL, "device": "cpu,cpu"}))
    words = ["--config", tmp_path / "train.json", "--json", tmp_path / "plan.json"]
    assert dkan("plan", prepared, *words, monkeypatch=monkeypatch) == 0
    written, printed = json.loads((tmp_path / "plan.json").read_text()), capsys.readouterr().out
    weights = written["slice_weights"]
    assert len(weights) == 2 and sum(weights) == 64 and min(weights) >= 1
    assert "recommended: --device cpu,cpu --batch-size 64 --slice-weights" in printed and "worker 1: cpu (" in printed
    balanced: dict[str, Any] = {**SMALL, "hidden": (4,), "device": "cpu,cpu", "slice_weights": tuple(weights)}
    assert resolved(398, **balanced).workers == 2
    with pytest.raises(ConfigError, match="device cpu: slices are balanced between several devices"):
        plan_slices(prepared, TrainConfig(device="cpu"))
    with pytest.raises(DataError, match="init_from nowhere: no model there"):
        plan_slices(prepared, TrainConfig(device="cpu,cpu", init_from="nowhere"))
    with pytest.raises(ConfigError, match="device cpu,cpu: one device is measured; name one, or let plan_slices"):
        plan(prepared, TrainConfig(device="cpu,cpu"))


@given(st.lists(st.tuples(st.floats(0, 0.1), st.floats(1e3, 1e8)), min_size=2, max_size=6), st.integers(6, 60_000))
def test_balanced_slices_end_together(devices: list[tuple[float, float]], batch_size: int) -> None:
    costs = [StepCost(launch=launch, rate=rate) for launch, rate in devices]
    rows = balance_slices(costs, batch_size)
    assert sum(rows) == batch_size and min(rows) >= 1
    taken = [
        slice_of(batch_size, 0, batch_size=batch_size, rank=rank, workers=len(rows), weights=rows)
        for rank in range(len(rows))
    ]
    assert [stop - start for start, stop in taken] == list(rows)
    if min(rows) > 1:
        times = [cost.seconds(count) for cost, count in zip(costs, rows, strict=True)]
        assert max(times) - min(times) <= (1 + len(rows)) * max(1 / cost.rate for cost in costs)


def test_defaults_of_the_command_are_those_of_its_function() -> None:
    ours, theirs = (inspect.signature(function).parameters for function in (cli.sync, bench_sync))
    assert all(ours[name].default == theirs[name].default for name in ("workers", "repeats", "rounds", "device"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "0"], "gpus must be from 1 to 1,024, got 0"),
        (["--link", "ethernet"], "link must be one of nvlink, pcie4, got 'ethernet'"),
        (["--device", "cpu,cpu", "--gpus", "2"], "device cpu,cpu: a plan for several devices does not take gpus"),
        (["--dropout", "2"], "dropout must be from 0 to 0.99"),
        (["--device-memory", "lots"], "device_memory must be from 1KB to 1048576GB, such as 24GB or 80GB, got 'lots'"),
        (["--device-memory", "80"], "device_memory must be from 1KB to 1048576GB, such as 24GB or 80GB, got '80'"),
        (["--rows-per-second", "0"], "rows_per_second must be a number above 0, got 0.0"),
        (["--rows-per-second", "1e6", "--check"], "run it where they are"),
        (
            ["--batch-size", "8", "--batch-size-per-worker", "8"],
            "batch_size 8 and batch_size_per_worker 8 exclude each other",
        ),
    ],
)
def test_mistake_in_a_plan_is_named_and_leaves_nothing(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    code = dkan("plan", prepared, *words, "--json", tmp_path / "plan.json", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not list(tmp_path.iterdir())


def test_gpus_that_are_not_here_are_planned_from_what_is_given(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ROUNDS", 1)
    config = build_config(TrainConfig, SMALL | {"batch_size": None, "batch_size_per_worker": 32})
    known = plan(prepared, config, gpus=4, rows_per_second=1e6, device_memory="1MB", link="nvlink")
    assert known.batch_size == 4 * 32 and not known.on_cpu and set(known.measured.probes) == {1}
    alone = next(each for each in known.predictions if (each.scheme, each.workers) == ("single", 1))
    assert alone.compute_seconds == pytest.approx(ASSUMED_LAUNCH + 128 / 1e6)
    printed = str(known)
    assert "note: given, not measured: one GPU computes the gradient of 1,000,000 rows/s" in printed
    assert "assumed, not measured: a step takes 1 ms without rows" in printed
    assert known.advice.device_memory == 1 << 20 and "memory is not known" not in printed
    assert "rows: every batch is sent to its GPU: the " in printed
    wide, grouped, deep = known.divided
    assert (wide.workers, grouped.workers, deep.workers) == (4, 4, 2) and wide.bytes_per_worker < wide.bytes_whole / 3
    assert f"| hidden {wide.hidden_from:,} |" in printed and f"| {deep.layers_from:,} hidden layers |" in printed
    unknown = plan(prepared, config, gpus=4, rows_per_second=1e6)
    assert (
        not unknown.why_sent and unknown.advice.device_memory is None and "the GPU's memory is unknown" in str(unknown)
    )
    assert str(unknown).count("| unknown without --device-memory |") == 3
    assert json.loads(json.dumps(unknown.to_dict(), allow_nan=False))["asked"]["rows_per_second"] == 1e6


def test_plan_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"no manifest\.json there"):
        plan(tmp_path / "nowhere")


def test_bench_measures_every_exchange_with_two_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sync.json"
    words = ["--size", "4KB", "--size", "1MB", "--repeats", "3", "--rounds", "1", "--device", "cpu", "--json", out]
    assert dkan("bench", "sync", *words, monkeypatch=monkeypatch) == 0
    printed, written = capsys.readouterr().out, json.loads(out.read_text())
    assert written["workers"] == 2 and list(tmp_path.iterdir()) == [out]
    assert [(cost["size"], cost["exchange"]) for cost in written["costs"]] == [
        (size, name) for size in (4096, 1 << 20) for name in EXCHANGES
    ]
    assert all(0 < cost["seconds"] < 10 for cost in written["costs"])
    assert all(cost["ratio"] == 1 for cost in written["costs"] if cost["exchange"] == "parameter-server sync")
    assert "| 4 KB | ring |" in printed and "2 workers" in printed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": ["lots"]}, "size must be from 1KB to 4GB, such as 64KB or 16MB, got 'lots'"),
        ({"sizes": ["3"]}, "size must be from 1KB"),
        ({"sizes": []}, "sizes: name at least one"),
        ({"workers": 1}, "workers must be from 2 to 64, got 1"),
        ({"repeats": 0}, "repeats and rounds must be at least 1"),
        ({"device": "tpu"}, "device must be auto, cpu, cuda"),
    ],
)
def test_mistake_in_a_bench_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench_sync(**options)


def test_process_that_dies_ends_the_measurement_with_its_log() -> None:
    with open_probes() as probes, pytest.raises(TrainingError, match=r"exchange-probe.* died \(exit code 1"):
        exchange_seconds(probes, "parameter-server sync", 4096, ["cpu", "cuda:99"], 1)
