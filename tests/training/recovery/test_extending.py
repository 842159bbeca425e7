"""A run that has ended goes on with more epochs or more patience: docs/concepts/reliability.md."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dkan_core import ConfigError, OutputError, TrainConfig, TrainResult, train
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.compute.flat_model import flatten
from dkan_core.training.launcher.run_log import FITTED
from dkan_core.training.state.checkpoint_store import BEST_FILE, load_checkpoint
from tests.additive_data import prepare_rows
from tests.training.faults import slow_steps
from tests.training.runs import facts, final_state, same_history

SMALL = TrainConfig(
    blend=False,
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
    "settings",
    [
        {},
        {"mode": "average", "sync_interval": 4, "schedule": "exponential"},
        {"model": "additive", "hidden": None, "pairs": "2"},
    ],
    ids=["sync", "average", "additive"],
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
    found, wanted = extended.metrics["training"], expected.metrics["training"]
    assert found["ledger"] == wanted["ledger"] and found["epochs"] == 4 and found["ended"] == "epochs"
    if settings:
        return
    before = final_state(tmp_path / "run")
    caplog.set_level("INFO")
    again = train(prepared, tmp_path / "run", longer)
    assert again.metrics == extended.metrics and extended.metrics["training"]["replaced"]
    assert again.history == extended.history and np.array_equal(final_state(tmp_path / "run"), before)
    assert "is from a finished run: nothing to train; raise --epochs to continue" in caplog.text
    with pytest.raises(ConfigError, match=r"epochs 3: .* has done 44 steps, .* give --epochs 4 or more"):
        train(prepared, tmp_path / "run", replace(config, epochs=3))


def test_finished_run_whose_terms_were_fitted_is_not_told_to_raise_its_epochs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    rows, config = prepare_rows(tmp_path), TrainConfig(model="additive", device="cpu", pairs="2", resume="auto")
    first, again = (train(rows, tmp_path / "run", config) for _ in range(2))
    assert again.history == first.history
    messages = [record.getMessage() for record in caplog.records]
    for said in ("run ended", "nothing to train"):
        assert next(line for line in messages if said in line).endswith(FITTED)
    assert not any("larger --epochs" in line or "raise --epochs" in line for line in messages)


def test_extended_run_falls_along_the_cosine_of_all_its_epochs(prepared: Path, tmp_path: Path) -> None:
    config = replace(SMALL, schedule="cosine", epochs=1)
    train(prepared, tmp_path / "run", config)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    config = replace(config, epochs=3, evaluations_per_epoch=2)
    first, second = (train(prepared, tmp_path / name, config) for name in ("run", "copy"))
    assert np.array_equal(final_state(tmp_path / "run"), final_state(tmp_path / "copy")) and same_model(first, second)
    assert [entry["step"] for entry in first.history] == [11, 17, 22, 28, 33]


def test_run_that_stopped_early_with_more_patience_is_the_run_that_had_it_from_the_start(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # An evaluator that falls far behind would skip snapshots, and so decide otherwise.
    for name, value in slow_steps(tmp_path, until=tmp_path / "never", seconds=0.01).items():
        monkeypatch.setenv(name, value)
    config = replace(SMALL, epochs=200, schedule="cosine", batch_size=10)
    short, long = (replace(config, patience=patience) for patience in (1, 3))
    first = train(prepared, tmp_path / "run", short)
    assert first.metrics["training"]["ended"] == "patience"
    assert train(prepared, tmp_path / "run", short).history == first.history
    assert "it stopped early; raise --patience to continue" in caplog.text
    extended = train(prepared, tmp_path / "run", long)
    expected = train(prepared, tmp_path / "other", long)
    assert len(first.history) < len(extended.history) and "patience: 3 from here on, 1 before" in caplog.text
    assert scores(extended) == scores(expected) and same_model(extended, expected)
    assert [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()] == (
        extended.history
    )


def test_run_whose_checkpoints_lie_below_a_digest_says_how_it_is_extended(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    template = f"{tmp_path}/all/{{run}}"
    config = replace(SMALL, epochs=1, workers=1, checkpoint_uri=template)
    train(prepared, tmp_path / "run", config)
    (folder,) = (tmp_path / "all").iterdir()
    assert f"continue with --resume auto --checkpoint-uri {folder} and a larger --epochs" in caplog.text
    with pytest.raises(OutputError, match=r"run: holds a finished run and .*/all/\w+ no checkpoint of it"):
        train(prepared, tmp_path / "run", replace(config, epochs=2))
    extended = train(prepared, tmp_path / "run", replace(config, epochs=2, checkpoint_uri=str(folder)))
    assert [entry["epoch"] for entry in extended.history] == [1, 2] and len(list(folder.parent.iterdir())) == 1


def best_step(result: TrainResult) -> int:
    return int([entry["step"] for entry in result.history if entry["best"]][-1])


BEST_SETTINGS: dict[str, dict[str, Any]] = {
    "sync": {"ema_decay": 0.9},
    "average": {"mode": "average", "sync_interval": 4},
    "async": {"mode": "async", "sync_interval": 4},
    "allreduce": {"strategy": "allreduce"},
}


@pytest.mark.parametrize("name", BEST_SETTINGS)
def test_run_goes_on_from_the_step_of_its_best_evaluation(prepared: Path, tmp_path: Path, name: str) -> None:
    # A rate that is too high from the start on: the best evaluation is not the last one.
    config = replace(SMALL, epochs=6, learning_rate=0.05, patience=100, **BEST_SETTINGS[name])
    run = tmp_path / "run"
    first, expected = train(prepared, run, config), final_state(run)
    found = load_checkpoint(str(run / "checkpoints" / BEST_FILE))
    assert found is not None
    step = best_step(first)
    assert found[1].ledger.step == step == found[1].history[-1]["step"]
    parameters = flatten(SavedModel(run / "model").module).numpy()
    assert any(np.array_equal(parameters, values_P) for values_P in found[1].state_KP[::3])
    # Which evaluation is the best is not the same in every async run: it may be the last one.
    epochs = 8 if name == "async" else 6
    assert name == "async" or step < first.history[-1]["step"]
    again = train(prepared, run, replace(config, epochs=epochs, resume="best"))
    assert 6 * facts(run)["ledger"]["rows"] == epochs * first.metrics["training"]["ledger"]["rows"]
    assert scores(again)[: len(found[1].history)] == scores(first)[: len(found[1].history)]
    if name != "async":
        assert np.array_equal(final_state(run), expected) and scores(again) == scores(first)
        assert same_model(again, first)


def test_what_came_after_the_best_evaluation_is_gone_from_the_run(prepared: Path, tmp_path: Path) -> None:
    run, config = tmp_path / "run", replace(SMALL, epochs=6, learning_rate=0.05)
    with pytest.raises(ConfigError, match=r"resume best: there is no checkpoint at \S+best\.safetensors"):
        train(prepared, run, replace(config, resume="best"))
    first = train(prepared, run, config)
    epochs = 1 + best_step(first) // 11
    again = train(prepared, run, replace(config, epochs=epochs, resume="best"))
    assert again.history[-1]["epoch"] == epochs < 6
    (newest, *others) = sorted((run / "checkpoints").glob("step-*"), reverse=True)
    assert int(newest.stem.removeprefix("step-")) == again.history[-1]["step"] and len(others) <= 1


def test_best_state_of_a_remote_run_lies_with_its_checkpoints(prepared: Path) -> None:
    run = "memory://runs/kept-best"
    first = train(prepared, run, SMALL)
    found = load_checkpoint(f"{run}/checkpoints/{BEST_FILE}")
    assert found is not None and found[1].ledger.step == best_step(first)
    again = train(prepared, run, replace(SMALL, epochs=3, resume="best"))
    assert again.history[-1]["epoch"] == 3 and again.history[: len(found[1].history)] == found[1].history


def test_best_state_is_what_a_run_goes_on_from_that_was_killed_before_its_first_checkpoint(
    prepared: Path, tmp_path: Path
) -> None:
    run, config = tmp_path / "run", replace(SMALL, epochs=6, learning_rate=0.05)
    first = train(prepared, run, config)
    for left in [*(run / "checkpoints").glob("step-*"), run / "metrics.json"]:
        left.unlink()
    again = train(prepared, run, replace(config, resume="auto"))
    assert again.metrics["training"]["ledger"] == first.metrics["training"]["ledger"] and scores(again) == scores(first)
