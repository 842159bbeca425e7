"""A checkpoint is whole, found again, and refused where it does not fit."""

import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkan_core import ConfigError, DataError, OutputError, TrainConfig, TrainResult, train
from dkan_core.training.checkpoints import (
    KEPT_FILES,
    Checkpoint,
    checkpoint_folder,
    clear_checkpoints,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from dkan_core.training.ledger import ENDINGS, Ledger
from dkan_core.training.memory import Snapshot
from dkan_core.training.saver import read_model, run_facts

CONFIG = TrainConfig(epochs=2, batch_size=10, resume="auto")


def checkpoint_of(step: int, **changes: Any) -> Checkpoint:
    state = np.random.default_rng(step).normal(size=(3, 500)).astype(np.float32)
    made = Checkpoint(
        **run_facts("f" * 64, {"hidden": [8]}, CONFIG),
        ledger=Ledger(step=step, started=3.5),
        state_KP=state,
        history=[{"step": 1, "average_precision": 0.5}],
        pending=[(Snapshot(number=2, step=step), state[:1])],
        model={"config.json": b"{}", "model.safetensors": bytes(range(256))},
    )
    return replace(made, **changes)


def test_what_was_saved_is_found_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 20, 300):
        save_checkpoint(str(tmp_path), checkpoint_of(step))
    uri, found = load_checkpoint(str(tmp_path)) or ("", None)
    wanted = checkpoint_of(300)
    assert uri.endswith("step-000000000300.safetensors") and found is not None
    assert np.array_equal(found.state_KP, wanted.state_KP) and found.history == wanted.history
    assert replace(found.ledger, checksum=0) == wanted.ledger and found.model == wanted.model
    assert found.pending[0][0] == wanted.pending[0][0] and np.array_equal(found.pending[0][1], wanted.pending[0][1])
    assert len(os.listdir(tmp_path)) == KEPT_FILES
    assert load_checkpoint(str(tmp_path / "none")) is None


def test_checkpoints_of_a_run_that_was_further_give_way(tmp_path: Path) -> None:
    for step in (1000, 1404, 500):
        written = save_checkpoint(str(tmp_path), checkpoint_of(step))
    assert Path(written).exists() and [path.name for path in tmp_path.iterdir()] == [Path(written).name]


def test_run_whose_last_score_is_missing_is_not_finished() -> None:
    ended = replace(checkpoint_of(5).ledger, ended=ENDINGS.index("epochs"))
    assert not checkpoint_of(5, ledger=ended).is_finished
    assert checkpoint_of(5, ledger=ended, pending=[]).is_finished
    assert not checkpoint_of(5, ledger=replace(ended, ended=ENDINGS.index("time")), pending=[]).is_finished


def test_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    first, second = (Path(save_checkpoint(str(tmp_path), checkpoint_of(step))) for step in (1, 2))
    second.write_bytes(second.read_bytes()[:-10])
    found = load_checkpoint(str(tmp_path))
    assert found is not None and found[1].ledger.step == 1
    first.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"step-0+1\.safetensors: is no whole checkpoint"):
        load_checkpoint(str(tmp_path))


def test_flipped_bit_of_the_state_is_noticed(tmp_path: Path) -> None:
    path = Path(save_checkpoint(str(tmp_path), checkpoint_of(1)))
    content = path.read_bytes()
    place = content.index(checkpoint_of(1).state_KP.tobytes())
    path.write_bytes(content[: place + 9] + bytes([content[place + 9] ^ 4]) + content[place + 10 :])
    with pytest.raises(DataError, match="is damaged"):
        load_checkpoint(str(path))


@pytest.mark.parametrize(
    ("data", "config", "message"),
    [
        ("e" * 64, CONFIG, r"is of other data \(fingerprint ffffffffffff, here eeeeeeeeeeee\)"),
        ("f" * 64, replace(CONFIG, hidden=(9,)), r"was trained with hidden None, not \[9\]"),
        ("f" * 64, replace(CONFIG, learning_rate=0.5), "was trained with learning_rate None, not 0.5"),
        ("f" * 64, replace(CONFIG, resume="nowhere"), "resume nowhere: there is no checkpoint"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, data: str, config: TrainConfig, message: str
) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(1))
    with pytest.raises(ConfigError, match=message):
        find_checkpoint(str(tmp_path), config, data)


def test_what_does_not_change_the_course_may_differ(tmp_path: Path) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(1))
    free = replace(CONFIG, max_seconds=5.0, tensorboard=True, checkpoint_steps=7)
    assert find_checkpoint(str(tmp_path), free, "f" * 64) is not None
    assert find_checkpoint(str(tmp_path), replace(free, resume="never"), "f" * 64) is None
    assert find_checkpoint(str(tmp_path / "empty"), free, "f" * 64) is None


def test_checkpoints_of_another_run_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(1))
    with pytest.raises(OutputError, match="already holds checkpoints; pass --resume auto"):
        clear_checkpoints(str(tmp_path), allowed=False)
    clear_checkpoints(str(tmp_path), allowed=True)
    clear_checkpoints(str(tmp_path), allowed=False)
    assert not os.listdir(tmp_path)


def test_run_of_other_data_is_not_gone_on_with(prepared: Path, trained: TrainResult, tmp_path: Path) -> None:
    run = Path(trained.model).parent
    files = read_model(run / "model")
    assert files["config.json"] == (run / "model" / "config.json").read_bytes() and not read_model(tmp_path / "none")
    config = TrainConfig(epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.03)
    config = replace(config, resume=str(run / "checkpoints"))
    with pytest.raises(ConfigError, match=r"was trained with learning_rate 0\.02, not 0\.03"):
        train(prepared, tmp_path / "run", config)
    again = train(prepared, tmp_path / "run", replace(config, learning_rate=0.02))
    assert again.history == trained.history and again.metrics["training"]["steps"] == trained.history[-1]["step"]
    assert asdict(again)["average_precision"] == trained.average_precision


def test_digest_of_data_and_settings_keeps_runs_apart() -> None:
    """What does not change a run's course may be another when it is started again: its checkpoints are found."""
    config = TrainConfig(checkpoint_uri="s3://bucket/late/{run}/", batch_size=64)
    folder = checkpoint_folder(config, "data")
    assert re.fullmatch(r"s3://bucket/late/[0-9a-f]{16}", folder)
    assert checkpoint_folder(replace(config, max_seconds=5.0, device="cpu", resume="auto"), "data") == folder
    others = [(replace(config, seed=1), "data"), (replace(config, batch_size=65), "data"), (config, "other")]
    assert len({folder, *(checkpoint_folder(*other) for other in others)}) == 4
    assert checkpoint_folder(TrainConfig(), "data") == ""
