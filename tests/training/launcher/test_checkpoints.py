"""A checkpoint is whole, found again, and refused where it does not fit."""

import errno
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dkan_core import ConfigError, DataError, OutputError, TrainConfig, TrainResult, train
from dkan_core.config import ResolvedTrainConfig
from dkan_core.training.launcher.checkpoint_checks import check_resumable
from dkan_core.training.launcher.remaining_work import ending_of, waiting_snapshots, with_ending
from dkan_core.training.launcher.resuming import checkpoint_folder, find_checkpoint
from dkan_core.training.state import checkpoint_store
from dkan_core.training.state.checkpoint_file import encode, run_facts
from dkan_core.training.state.checkpoint_store import (
    BEST_FILE,
    KEPT_FILES,
    check_no_checkpoints,
    clear_checkpoints,
    copy_best,
    load_checkpoint,
    read_model,
    save_checkpoint,
    write_checkpoint,
    write_parts,
)
from dkan_core.training.state.endings import ENDINGS
from dkan_core.training.state.schedule import Schedule
from dkan_core.utils.retry import RetryPolicy
from tests.training.launcher.made_checkpoints import CONFIG, DATA, ROWS, checkpoint_of, evaluation, waiting_at


def test_what_was_saved_is_found_and_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 20, 300):
        save_checkpoint(str(tmp_path), checkpoint_of(step))
    uri, found = load_checkpoint(str(tmp_path)) or ("", None)
    wanted = checkpoint_of(300)
    assert uri.endswith("step-000000000300.safetensors") and found is not None
    assert np.array_equal(found.state_KP, wanted.state_KP) and found.history == wanted.history
    assert replace(found.ledger, checksum=0) == wanted.ledger and found.model == wanted.model
    (waits,), (expected,) = found.pending, wanted.pending
    assert (waits.snapshot, waits.ledger) == (expected.snapshot, expected.ledger)
    assert np.array_equal(waits.state_KP, expected.state_KP)
    assert len(os.listdir(tmp_path)) == KEPT_FILES
    assert load_checkpoint(str(tmp_path / "none")) is None


def test_what_a_killed_process_left_of_another_step_is_removed(tmp_path: Path) -> None:
    left = [f".{name}.0123456789abcdef.partial" for name in ("step-000000000007.safetensors", "notes.txt")]
    for name in left:
        (tmp_path / name).touch()
    save_checkpoint(str(tmp_path), checkpoint_of(20))
    assert {path.name for path in tmp_path.iterdir()} == {left[1], "step-000000000020.safetensors"}


def test_checkpoint_holds_no_credentials_of_the_uris_that_the_settings_name() -> None:
    config = replace(CONFIG, checkpoint_uri="ftp://key:hidden@host/{run}", resume="ftp://key:hidden@host/other")
    checkpoint = replace(checkpoint_of(25), **run_facts(DATA, {"hidden": [8]}, config))
    assert b"hidden@" not in b"".join(encode(checkpoint))
    assert checkpoint.settings["checkpoint_uri"] == "ftp://***@host/{run}"
    check_resumable(checkpoint, config, DATA, ROWS)


def test_state_is_written_as_it_lies_in_memory() -> None:
    """Where each of its arrays begins on a page of its own, that is with gaps between them."""
    plain = checkpoint_of(1)
    arrays, parameters = plain.state_KP.shape
    state_KP = np.empty((arrays, parameters + 24), np.float32)[:, :parameters]
    state_KP[:] = plain.state_KP
    parts = encode(replace(plain, state_KP=state_KP))
    assert b"".join(parts) == b"".join(encode(plain))
    assert sum(np.shares_memory(np.frombuffer(part, np.uint8), state_KP) for part in parts) == arrays


@pytest.mark.parametrize(("number", "attempts"), [(errno.ENOSPC, 1), (errno.EDQUOT, 1), (errno.EIO, 2)])
def test_no_second_attempt_where_the_disk_is_full(number: int, attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def fail(fs: MemoryFileSystem, *arguments: object, **options: object) -> None:
        seen.append(arguments)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(MemoryFileSystem, "put_file", fail)
    monkeypatch.setattr(checkpoint_store, "RETRIES", RetryPolicy(first_pause=0, attempts=2))
    with pytest.raises(OutputError, match=os.strerror(number)):
        write_parts("memory://full/checkpoint", [b"state"])
    assert len(seen) == attempts


def test_checkpoints_of_a_run_that_was_further_give_way(tmp_path: Path) -> None:
    for step in (1000, 1404, 500):
        written = save_checkpoint(str(tmp_path), checkpoint_of(step))
    assert Path(written).exists() and [path.name for path in tmp_path.iterdir()] == [Path(written).name]


def test_run_whose_last_score_is_missing_is_not_finished() -> None:
    ledger = replace(checkpoint_of(5).ledger, step=2000)
    assert ending_of(checkpoint_of(5, ledger=ledger), CONFIG, ROWS) == ""
    assert ending_of(checkpoint_of(5, ledger=ledger, pending=[]), CONFIG, ROWS) == "epochs"
    assert ending_of(checkpoint_of(5, ledger=ledger, pending=[], history=[]), CONFIG, ROWS) == ""
    assert ending_of(checkpoint_of(5, ledger=ledger, pending=[]), replace(CONFIG, epochs=201), ROWS) == ""
    timed = replace(checkpoint_of(5).ledger, ended=ENDINGS.index("time"))
    limits = {3.0: "time", 4.0: "", None: ""}
    for limit, ending in limits.items():
        assert ending_of(checkpoint_of(5, ledger=timed), replace(CONFIG, max_seconds=limit), ROWS) == ending


def test_patience_is_counted_from_the_history() -> None:
    history = [evaluation(step, value) for step, value in ((10, 0.5), (20, 0.7), (30, 0.6), (40, 0.7))]
    stopped = checkpoint_of(45, history=history, pending=[])
    endings = [ending_of(stopped, replace(CONFIG, patience=patience), ROWS) for patience in (1, 2, 3)]
    assert endings == ["patience", "patience", ""]


def test_an_evaluation_that_an_interruption_added_does_not_count_for_patience() -> None:
    history = [evaluation(step, value) for step, value in ((10, 0.5), (15, 0.7), (20, 0.6), (30, 0.55))]
    history[1]["due"] = False
    endings = [
        ending_of(checkpoint_of(35, history=history[:count], pending=[]), replace(CONFIG, patience=1), ROWS)
        for count in (2, 3, 4)
    ]
    assert endings == ["", "", "patience"]


@pytest.mark.parametrize(("last_score", "ending"), [(1990, "patience"), (2000, "epochs")])
def test_patience_that_runs_out_in_the_last_epoch_is_what_ended_the_run(last_score: int, ending: str) -> None:
    history = [evaluation(step, value) for step, value in ((1980, 0.7), (last_score, 0.6))]
    ledger = replace(checkpoint_of(5).ledger, step=2000, ended=ENDINGS.index("epochs"))
    config = replace(CONFIG, patience=1)
    assert with_ending(ledger, config, history).ending == ending
    pending = [] if ending == "epochs" else [waiting_at(2000)]
    assert ending_of(checkpoint_of(5, ledger=ledger, history=history, pending=pending), config, ROWS) == ending


@pytest.mark.parametrize(("last", "waiting"), [(45, [30, 40]), (50, [30, 40, 50])])
def test_snapshot_where_a_run_happened_to_stop_is_not_scored(last: int, waiting: list[int]) -> None:
    """Only the evaluations that more patience from the start would have made are made."""
    pending = [waiting_at(step) for step in (30, 40, last)]
    ended = replace(checkpoint_of(last).ledger, ended=ENDINGS.index("patience"))
    stopped = checkpoint_of(last, history=[evaluation(10), evaluation(20)], pending=pending, ledger=ended)
    schedule = Schedule.from_config(CONFIG, ROWS)
    assert [each.snapshot.step for each in waiting_snapshots(stopped, schedule)] == waiting
    assert len(waiting_snapshots(replace(stopped, ledger=replace(ended, ended=0)), schedule)) == 3


def test_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    first, second = (Path(save_checkpoint(str(tmp_path), checkpoint_of(step))) for step in (1, 2))
    second.write_bytes(second.read_bytes()[:-10])
    found = load_checkpoint(str(tmp_path))
    assert found is not None and found[1].ledger.step == 1
    first.write_bytes(b"nonsense" * 100)
    with pytest.raises(DataError, match=r"step-0+1\.safetensors: is not a complete dkan checkpoint"):
        load_checkpoint(str(tmp_path))


def test_checkpoint_with_a_setting_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = checkpoint_of(25)
    save_checkpoint(str(tmp_path), replace(checkpoint, settings={**checkpoint.settings, "older": True}))
    with pytest.raises(ConfigError, match="was trained with older True, a setting that this version does not have"):
        find_checkpoint(str(tmp_path), CONFIG, "f" * 64, ROWS)


@pytest.mark.parametrize(
    ("data", "config", "message"),
    [
        ("e" * 64, CONFIG, r"belongs to other data \(fingerprint ffffffffffff, here eeeeeeeeeeee\)"),
        ("f" * 64, replace(CONFIG, hidden=(9,)), r"was trained with hidden \[8\], not \[9\]"),
        (
            "f" * 64,
            replace(CONFIG, learning_rate=0.5),
            r"learning_rate 0.1, not 0.5; resume with the settings of that run \(--config RUN/config.toml\)",
        ),
        (
            "f" * 64,
            replace(CONFIG, epochs=2),
            r"epochs 2: \S+ has done 25 steps, .* give --epochs 3",
        ),
        ("f" * 64, replace(CONFIG, resume="nowhere"), "resume nowhere: there is no checkpoint at nowhere"),
    ],
)
def test_checkpoint_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, data: str, config: ResolvedTrainConfig, message: str
) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(25))
    with pytest.raises(ConfigError, match=message):
        find_checkpoint(str(tmp_path), config, data, ROWS)


def test_run_on_a_gpu_resumes_elsewhere_and_the_other_way_round(tmp_path: Path) -> None:
    server = replace(CONFIG, workers=1, strategy="parameter-server", checkpoint_uri="s3://bucket/{run}")
    single = replace(server, strategy="single", device="cuda:0")
    ring = replace(server, strategy="ring")
    for config, other in ((server, single), (single, server)):
        save_checkpoint(str(tmp_path), checkpoint_of(1, settings=json.loads(json.dumps(asdict(config)))))
        assert find_checkpoint(str(tmp_path), replace(other, resume="auto"), "f" * 64, ROWS) is not None
        message = f"was trained with strategy {config.strategy}, not ring"
        with pytest.raises(ConfigError, match=message):
            find_checkpoint(str(tmp_path), replace(ring, resume="auto"), "f" * 64, ROWS)
        (tmp_path / "step-000000000001.safetensors").unlink()
    assert checkpoint_folder(single, DATA) == checkpoint_folder(server, DATA) != checkpoint_folder(ring, DATA)


def test_what_does_not_change_the_course_may_differ(tmp_path: Path) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(1))
    free = replace(
        CONFIG, max_seconds=5.0, tensorboard=True, checkpoint_steps=7, checkpoint_seconds=3.0, epochs=300, patience=9
    )
    assert find_checkpoint(str(tmp_path), free, DATA, ROWS) is not None
    assert find_checkpoint(str(tmp_path), replace(free, resume="never"), DATA, ROWS) is None
    assert find_checkpoint(str(tmp_path / "empty"), free, DATA, ROWS) is None


def test_checkpoints_of_another_run_are_not_mixed_with_new_ones(tmp_path: Path) -> None:
    save_checkpoint(str(tmp_path), checkpoint_of(1))
    with pytest.raises(OutputError, match="already holds checkpoints; resume from them with --resume auto"):
        check_no_checkpoints(str(tmp_path))
    clear_checkpoints(str(tmp_path))
    check_no_checkpoints(str(tmp_path))
    assert not os.listdir(tmp_path)


def test_run_of_other_data_is_not_gone_on_with(prepared: Path, trained: TrainResult, tmp_path: Path) -> None:
    run = Path(trained.model).parent
    files = read_model(run / "model")
    assert files["config.json"] == (run / "model" / "config.json").read_bytes() and not read_model(tmp_path / "none")
    config = TrainConfig(blend=False, epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.03)
    config = replace(config, resume=str(run / "checkpoints"))
    with pytest.raises(ConfigError, match=r"was trained with learning_rate 0\.02, not 0\.03"):
        train(prepared, tmp_path / "run", config)
    again = train(prepared, tmp_path / "run", replace(config, learning_rate=0.02))
    assert again.history == trained.history and again.metrics["training"]["steps"] == trained.history[-1]["step"]
    assert asdict(again)["average_precision"] == trained.average_precision
    # The new run needs the old one no more.
    newest = max(path.name for path in (run / "checkpoints").iterdir())
    for name in (newest, BEST_FILE):
        found = [load_checkpoint(str(each / "checkpoints" / name)) for each in (run, tmp_path / "run")]
        (_, before), (_, after) = (each for each in found if each is not None)
        assert before.ledger == after.ledger and np.array_equal(before.state_KP, after.state_KP)


def test_best_evaluation_is_copied_where_no_later_one_is_better_and_it_can_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    earlier, other = tmp_path / "earlier", tmp_path / "other"
    history = [evaluation(10), evaluation(20), {**evaluation(30), "best": False}]
    checkpoint = checkpoint_of(30, history=history, source=str(earlier / "step-000000000030.safetensors"))
    copy_best(checkpoint, str(other))
    for step in (40, 10):
        write_checkpoint(str(earlier / BEST_FILE), checkpoint_of(step))
        copy_best(checkpoint, str(other))
    (earlier / BEST_FILE).write_bytes(b"damaged")
    copy_best(checkpoint, str(other))
    assert not other.exists() and "--resume best needs a better evaluation first" in caplog.text
    write_checkpoint(str(earlier / BEST_FILE), checkpoint_of(20))
    copy_best(checkpoint, str(other))
    assert (other / BEST_FILE).read_bytes() == (earlier / BEST_FILE).read_bytes()


@pytest.mark.parametrize("resume", ["{run}", "{run}/", "{run}/checkpoints/"])
def test_run_resumes_from_the_folder_of_another_one(tmp_path: Path, resume: str) -> None:
    save_checkpoint(str(tmp_path / "run/checkpoints"), checkpoint_of(25))
    config = replace(CONFIG, resume=resume.format(run=tmp_path / "run"))
    found = find_checkpoint(str(tmp_path / "other/checkpoints"), config, DATA, ROWS)
    assert found is not None and found.ledger.step == 25
    assert found.source == str(tmp_path / "run/checkpoints/step-000000000025.safetensors")


def test_digest_of_data_and_settings_keeps_runs_apart() -> None:
    """What does not change a run's course may be another when it is started again: its checkpoints are found."""
    config = TrainConfig(checkpoint_uri="s3://bucket/late/{run}/", batch_size=64)
    folder = checkpoint_folder(config, "data")
    assert re.fullmatch(r"s3://bucket/late/[0-9a-f]{16}", folder)
    assert checkpoint_folder(replace(config, max_seconds=5.0, device="cpu", resume="auto"), "data") == folder
    others = [(replace(config, seed=1), "data"), (replace(config, batch_size=65), "data"), (config, "other")]
    # Runs of a sweep write into folders of their own.
    others += [(replace(config, epochs=3), "data"), (replace(config, patience=3), "data")]
    assert len({folder, *(checkpoint_folder(*other) for other in others)}) == 6
    assert checkpoint_folder(TrainConfig(), "data") == ""
