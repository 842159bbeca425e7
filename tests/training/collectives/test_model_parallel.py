"""Ranks that divide a model learn what one process learns, and what happens to one of them changes nothing."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, TrainConfig, prepare, train
from dkan_core.config.strategies import Strategy
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.build import build_model
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.collectives.pipeline import Stage
from tests.model.architectures import CONFIG, changed
from tests.model.architectures import PLAIN as ARCHITECTURE_OF_ONE
from tests.training.checkpoints import last_checkpoint
from tests.training.faults import ROUNDS, slow_steps
from tests.training.processes import Background, wait_until

# A batch of 50 rows is not divided evenly by 4, nor is the last one, of 22, full.
SMALL = TrainConfig(
    blend=False,
    epochs=2,
    hidden=(8, 12, 4),
    device="cpu",
    batch_size=50,
    learning_rate=0.02,
    dropout=0.3,
    binary_dropout=0.3,
)
PLAIN = replace(SMALL, model="fastkan", input_norm="layer")
LONG = replace(SMALL, epochs=4, evaluations_per_epoch=2, patience=1000, workers=2)

WAYS: list[tuple[Strategy, int, dict[str, Any]]] = [
    ("tensor-parallel", 2, {"kernel": "recompute"}),
    ("tensor-parallel", 4, {"accumulate": 3}),
    ("hybrid", 4, {}),
    ("pipeline", 2, {}),
    ("pipeline", 4, {"accumulate": 6}),
]


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare rows of numbers, a binary column, codes of two sizes, weights, and two labels that have gaps."""
    folder, rng, count = tmp_path_factory.mktemp("rows"), np.random.default_rng(0), 400
    x = rng.normal(size=(count, 4)).astype(np.float32)
    labels = [(x[:, 0] + rng.normal(size=count) > 0).astype(int), (x[:, 1] * x[:, 2] > 0.5).astype(int)]
    columns: dict[str, Any] = {f"x{index}": x[:, index] for index in range(4)}
    columns |= {"flag": (x[:, 3] > 0).astype(np.float32), "weight": rng.uniform(0.5, 2, count)}
    columns["few"] = rng.choice(["left", "right"], count)
    columns["many"] = [f"v{number}" for number in rng.integers(0, 60, count)]
    gaps = rng.random((2, count)) < 0.2
    columns |= {name: pa.array(label, mask=gap) for name, label, gap in zip("ab", labels, gaps, strict=True)}
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("a", "b"), weight="weight"))
    return folder / "data"


@pytest.fixture(scope="module", params=[SMALL, PLAIN], ids=["auto", "fastkan"])
def alone(request: pytest.FixtureRequest, weighted: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return settings, and what one process ends with."""
    run = tmp_path_factory.mktemp("alone") / "run"
    train(weighted, run, replace(request.param, strategy="single", workers=1))
    return request.param, last_checkpoint(run)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "workers", "more"), WAYS, ids=lambda value: str(value) if value else "")
def test_ranks_with_parts_of_a_model_learn_what_one_process_learns(
    strategy: Strategy, workers: int, more: dict[str, Any], alone: Any, weighted: Path, tmp_path: Path
) -> None:
    config, expected = alone
    result = train(weighted, tmp_path / "run", replace(config, strategy=strategy, workers=workers, **more))
    found = last_checkpoint(tmp_path / "run")
    np.testing.assert_allclose(found.state_KP[0], expected.state_KP[0], rtol=0, atol=1e-3)
    assert [entry["loss"] for entry in found.history] == pytest.approx(
        [entry["loss"] for entry in expected.history], rel=1e-5
    )
    assert (found.ledger.step, found.ledger.rows) == (expected.ledger.step, expected.ledger.rows)
    assert result.metrics["training"]["replaced"] == {"evaluator": 0, "collective-worker": 0}


@pytest.fixture
def started(weighted: Path, tmp_path: Path) -> Iterator[list[Background]]:
    """Give runs a list to be ended from."""
    runs: list[Background] = []
    yield runs
    for background in runs:
        background.end()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["tensor-parallel", "pipeline"])
def test_killed_ranks_and_launchers_change_nothing(
    strategy: Strategy, weighted: Path, tmp_path: Path, started: list[Background]
) -> None:
    config = replace(LONG, strategy=strategy)
    train(weighted, tmp_path / "calm", config)
    disturbed = tmp_path / "disturbed"
    slow = slow_steps(tmp_path, until=tmp_path / "never", seconds=0.1, within=ROUNDS)
    started.append(Background(weighted, disturbed, config, tmp_path / "settings.json", **slow))
    wait_until(lambda: started[0].evaluated() > 1)
    started[0].kill("rank-1")
    before = started[0].evaluated()
    wait_until(lambda: started[0].evaluated() > before or started[0].process.poll() is not None)
    os.kill(started[0].process.pid, signal.SIGTERM)
    started[0].wait()
    started.append(Background(weighted, disturbed, replace(config, resume="auto"), tmp_path / "settings.json"))
    assert started[1].wait()[0] == 0
    assert np.array_equal(last_checkpoint(disturbed).state_KP, last_checkpoint(tmp_path / "calm").state_KP)


@pytest.mark.parametrize("architecture", [CONFIG, ARCHITECTURE_OF_ONE], ids=["auto", "fastkan"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_stages_have_each_parameter_once(architecture: ModelConfig, stages: int) -> None:
    config = changed(architecture, hidden=(4, 6, 5))
    whole = {name: each.shape for name, each in build_model(config).named_parameters() if each.requires_grad}
    found: list[str] = []
    for stage in range(stages):
        model = build_model(config)
        assert isinstance(model, TabularFastKAN)
        Stage(model, stage, stages, "fp32")
        own = {name: each.shape for name, each in model.named_parameters() if each.requires_grad}
        assert own.items() <= whole.items()
        assert not sum(each.numel() for name, each in model.named_parameters() if name in whole.keys() - own.keys())
        found += own
    assert sorted(found) == sorted(whole)
