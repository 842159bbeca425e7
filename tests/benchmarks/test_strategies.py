"""The comparison of strategies: real runs on a few rows, the bytes by hand, and the files that figures go to."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.strategies import __main__ as command
from benchmarks.strategies import data_parallel, runs, sums
from benchmarks.strategies.ways import REFERENCE, WAYS, exchanged_bytes
from dkan_core import TrainConfig
from dkan_core.training.setup.defaults import resolve

SETTINGS = {"members": 1, "hidden": (4,), "batch_size": 64, "device": "cpu"}


@pytest.mark.slow
def test_every_turn_becomes_a_row_a_table_and_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WAYS", [way for way in WAYS if way.name in (REFERENCE, "ring", "tensor-parallel")])
    monkeypatch.setattr(sums, "REPEATS", 2)
    monkeypatch.setattr(command, "BYTES", [4096])
    words = [
        "--rows",
        "600",
        "--features",
        "3",
        "--workers",
        "2",
        "--rounds",
        "1",
        "--epochs",
        "2",
        "--members",
        "1",
        "--batch-size",
        "64",
        "--out",
    ]
    done = CliRunner().invoke(command.app, [*words, str(tmp_path / "out")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "strategies.json",
        "strategies.md",
        "strategies.png",
    }
    single, ring, divided = (line.split("|") for line in done.output.splitlines() if line.startswith("| 600 "))
    assert single[2:4] == [" single ", " 1 "] and float(single[5]) == 1 and float(single[7]) == 0
    assert ring[2:4] == [" ring ", " 2 "] and float(ring[7]) > 0
    # All take the same steps on the same rows.
    assert float(single[8]) == pytest.approx(float(ring[8]), abs=2e-4)
    assert float(single[8]) == pytest.approx(float(divided[8]), abs=2e-4)
    assert "| gloo | 2 | 4,096 |" in done.output
    assert "Not measured: torch DataParallel" in done.output


def test_ways_take_the_workers_that_they_can() -> None:
    found = [(way.name, workers) for way, workers in runs.cells([2, 4])]
    assert ("single", 1) in found and ("single", 2) not in found
    assert ("ring", 4) in found and ("ring", 1) not in found
    assert ("parameter-server async", 1) in found
    assert ("tensor-parallel", 2) in found and ("hybrid", 2) not in found and ("hybrid", 4) in found
    assert ("pipeline", 2) in found and ("pipeline", 4) not in found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"strategy": "single"}, 0, id="single"),
        pytest.param({"strategy": "parameter-server"}, 10 * (400 + 400), id="a gradient there, parameters back"),
        pytest.param(
            {"strategy": "parameter-server", "mode": "average", "sync_interval": 5},
            2 * (3 * 400 + 3 * 400),
            id="parameters and moments, every fifth step",
        ),
        pytest.param({"strategy": "ring", "workers": 4}, 10 * 2 * 1.5 * 400, id="3 of 4 parts twice, both directions"),
        pytest.param(
            {"strategy": "local-sgd", "workers": 2, "sync_interval": 5}, 2 * 2 * 3 * 400, id="three arrays, half twice"
        ),
        pytest.param(
            {"strategy": "tensor-parallel", "workers": 2},
            10 * (2 * 400 + 2 * 64 * 4 * 4 / 2),
            id="a gradient, and half of the units both ways",
        ),
        pytest.param(
            {"strategy": "hybrid", "workers": 4},
            10 * (3 * 400 + 2 * 32 * 4 * 4 / 2),
            id="a gradient of four, and half of the units of half of the rows",
        ),
        pytest.param(
            {"strategy": "tensor-parallel", "workers": 2, "hidden": (4, 6)},
            10 * (2 * 400 + 64 * 4 * (4 + 6) + 2 * 64 * 4 * 4),
            id="units of two layers, and gradients of those between them",
        ),
        pytest.param(
            {"strategy": "pipeline", "workers": 2}, 10 * (2 * 400 + 2 * 64 * 4 * 4), id="a gradient, units and theirs"
        ),
    ],
)
def test_exchanged_bytes_are_those_by_hand(settings: dict[str, object], expected: float) -> None:
    config = resolve(TrainConfig(**{"workers": 1, **SETTINGS, **settings}), rows=640)  # type: ignore[arg-type]
    assert exchanged_bytes(config, parameters=100, steps=10) == expected


@pytest.mark.parametrize("devices", [()], ids=["without a GPU"])
def test_data_parallel_learns(prepared: Path, devices: Sequence[int]) -> None:
    config = resolve(TrainConfig(strategy="single", epochs=4, learning_rate=0.01, **SETTINGS), rows=300)  # type: ignore[arg-type]
    seconds, precision = data_parallel.train(prepared, config, devices)
    assert seconds > 0 and precision > 0.5
    assert not data_parallel.is_possible(1)


@pytest.mark.gpu
def test_data_parallel_learns_on_two_gpus(prepared: Path) -> None:
    if not data_parallel.is_possible(2):
        pytest.skip("needs two CUDA devices")
    config = resolve(TrainConfig(strategy="single", epochs=4, learning_rate=0.01, **SETTINGS), rows=300)  # type: ignore[arg-type]
    assert data_parallel.train(prepared, config, (0, 1))[1] > 0.5
