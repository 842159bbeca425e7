"""A run that has ended goes on with more epochs or more patience: docs/reliability.md."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dkan_core import ConfigError, TrainConfig, TrainResult, train
from tests.training.torture import final_state, same_history

SMALL = TrainConfig(
    epochs=2,
    hidden=(8,),
    workers=2,
    device="cpu",
    batch_size=40,
    learning_rate=0.02,
    warmup_fraction=0.0,
    schedule="constant",
    resume="auto",
)


def scores(result: TrainResult) -> list[tuple[int, float]]:
    return [(entry["step"], entry["average_precision"]) for entry in result.history]


def same_model(first: TrainResult, second: TrainResult) -> bool:
    weights = [load_file(Path(result.model) / "model.safetensors") for result in (first, second)]
    return all(np.array_equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "average", "sync_interval": 4, "schedule": "exponential"}], ids=["sync", "average"]
)
def test_finished_run_with_more_epochs_is_the_run_that_had_them_from_the_start(
    prepared: Path, tmp_path: Path, settings: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(SMALL, **settings)
    longer = replace(config, epochs=4)
    first = train(prepared, tmp_path / "run", config)
    extended = train(prepared, tmp_path / "run", longer)
    expected = train(prepared, tmp_path / "other", longer)
    assert len(first.history) == 2 and same_history(tmp_path / "run", expected)
    assert np.array_equal(final_state(tmp_path / "run"), final_state(tmp_path / "other"))
    assert same_model(extended, expected)
    facts, wanted = extended.metrics["training"], expected.metrics["training"]
    assert facts["ledger"] == wanted["ledger"] and facts["epochs"] == 4 and facts["ended"] == "epochs"
    if settings:
        return
    before = final_state(tmp_path / "run")
    caplog.set_level("INFO")
    again = train(prepared, tmp_path / "run", longer)
    assert again.history == extended.history and np.array_equal(final_state(tmp_path / "run"), before)
    assert "is finished: nothing is trained; to go on, give more --epochs" in caplog.text
    with pytest.raises(ConfigError, match=r"epochs 3: .* has done 44 steps, .* give --epochs 4 or more"):
        train(prepared, tmp_path / "run", replace(config, epochs=3))


def test_extended_run_falls_along_the_cosine_of_all_its_epochs(prepared: Path, tmp_path: Path) -> None:
    config = replace(SMALL, schedule="cosine", epochs=1)
    train(prepared, tmp_path / "run", config)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    config = replace(config, epochs=3, evaluations_per_epoch=2)
    first, second = (train(prepared, tmp_path / name, config) for name in ("run", "copy"))
    assert np.array_equal(final_state(tmp_path / "run"), final_state(tmp_path / "copy")) and same_model(first, second)
    assert [entry["step"] for entry in first.history] == [11, 17, 22, 28, 33]


def test_run_that_stopped_early_with_more_patience_is_the_run_that_had_it_from_the_start(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    short, long = (replace(SMALL, epochs=200, schedule="cosine", patience=patience) for patience in (1, 3))
    first = train(prepared, tmp_path / "run", short)
    assert first.metrics["training"]["ended"] == "patience"
    assert train(prepared, tmp_path / "run", short).history == first.history
    assert "it stopped early; to go on, give more --patience" in caplog.text
    extended = train(prepared, tmp_path / "run", long)
    expected = train(prepared, tmp_path / "other", long)
    assert len(first.history) < len(extended.history) and "patience: 3 from here on, 1 before" in caplog.text
    assert scores(extended) == scores(expected) and same_model(extended, expected)
    assert [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()] == (
        extended.history
    )
