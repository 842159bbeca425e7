"""What a run removes from its folder is a run's: files of the same names that are somebody's own stay."""

import errno
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from dkan_core import ConfigError, OutputError, TrainConfig, TrainResult, evaluate, train
from dkan_core.errors import DataError, DkanError
from dkan_core.model.model_folder import MODEL_FILES
from dkan_core.model.saved_model import write_model_files
from dkan_core.training.communication.flight_recorder import FlightRecorder
from dkan_core.training.launcher import run_folder
from dkan_core.training.launcher.run_folder import check_run_folder, local_run_folder, replaces_checkpoints
from dkan_core.utils.storage.staging import output_lock

CONFIG = TrainConfig(blend=False, epochs=8, hidden=(8,), workers=1, device="cpu", batch_size=64, learning_rate=0.02)

OWN_FILES = {
    "model/thesis.txt": "mine",
    "model/config.json": '{"architectures": ["BertModel"]}',
    "model/sub/config.json": "{}",
    "model": "a file",
    "logs/server.txt": "mine",
    "tensorboard/notes.txt": "mine",
    "history.jsonl": '{"date": 1066, "event": "Hastings"}\n',
    "metrics.json": '{"accuracy": 0.9}',
    "metrics.json/x": "mine",
}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("own", OWN_FILES)
@pytest.mark.parametrize("settings", [{"resume": "auto"}, {"overwrite": True}], ids=["resume", "overwrite"])
def test_what_is_somebodys_own_is_named_and_stays(
    prepared: Path, tmp_path: Path, own: str, settings: dict[str, object]
) -> None:
    run = tmp_path / "run"
    (run / own).parent.mkdir(parents=True)
    (run / own).write_text(OWN_FILES[own])
    before = files(run)
    config = replace(CONFIG, resume=str(settings.get("resume", "never")))
    with pytest.raises(OutputError, match=rf"run/{own.split('/')[0]}"):
        train(prepared, run, config, overwrite="overwrite" in settings)
    assert files(run) == before


def test_run_is_known_again_also_where_it_was_killed(trained: TrainResult, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(Path(trained.model).parent, run)
    check_run_folder(run, None, overwrite=True)
    (run / "history.jsonl").write_text('{"epo')
    (run / "metrics.json").unlink()
    (run / "tensorboard").mkdir()
    (run / "tensorboard" / "events.out.tfevents.1.host").write_text("")
    recorder = FlightRecorder(str(run / "logs"), 1)
    recorder.keep_dump(torch.device("cpu"))
    variables = recorder.variables()
    Path(variables["TORCH_FR_DUMP_TEMP_FILE"] + "1").touch()
    Path(variables["NCCL_DEBUG_FILE"].replace("%p", "123")).touch()
    for name in (".model.partial", ".model.old", "model"):
        (run / "refit" / name).mkdir(parents=True)
    (run / "refit/.history.jsonl.0123456789abcdef.partial").touch()
    check_run_folder(run, None, overwrite=True)
    with pytest.raises(OutputError, match="--overwrite"):
        check_run_folder(run, None, overwrite=False)


@pytest.mark.parametrize("resume", ["here/step-000000000001.safetensors", "./here/", "{cwd}/here", "{cwd}/x/../here"])
def test_checkpoints_that_a_run_resumes_from_are_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "here" / "step-000000000001.safetensors"
    checkpoint.parent.mkdir()
    checkpoint.touch()
    config = replace(CONFIG, resume=resume.format(cwd=tmp_path))
    assert not replaces_checkpoints("run", "here", config, overwrite=True)
    # Nor are they where the folder of the run is named.
    assert not replaces_checkpoints(tmp_path, f"{tmp_path}/checkpoints", replace(CONFIG, resume="."), overwrite=True)
    bucket = replace(CONFIG, resume="s3://bucket/run/")
    assert not replaces_checkpoints("s3://bucket/run", "s3://bucket/run/checkpoints", bucket, overwrite=True)
    # A folder whose name begins alike is another one.
    other = replace(CONFIG, resume="here-too/step-000000000001.safetensors")
    assert replaces_checkpoints("run", "here", other, overwrite=True)


def test_run_that_was_refused_after_its_log_began_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/train.log").touch()
    check_run_folder(tmp_path, None, overwrite=False)
    for other, message in (("history.jsonl", "already holds an earlier result"), ("logs/mine.txt", "was not written")):
        (tmp_path / other).touch()
        with pytest.raises(OutputError, match=message):
            check_run_folder(tmp_path, None, overwrite=False)
        (tmp_path / other).unlink()


@pytest.mark.parametrize("where", ["local", "memory://earlier-runs"])
@pytest.mark.parametrize(
    "wrong", [{"members": 1024, "hidden": (65_536, 65_536)}, {"damaged": True}], ids=["size", "data"]
)
def test_run_that_cannot_begin_leaves_the_one_that_it_was_to_replace(
    prepared: Path, tmp_path: Path, where: str, wrong: dict[str, Any]
) -> None:
    run = str(tmp_path / "run") if where == "local" else f"{where}/{len(wrong)}-{'damaged' in wrong}"
    settings, short = dict(wrong), replace(CONFIG, epochs=1)
    train(prepared, run, short)
    fs, root = fsspec.url_to_fs(run)
    before = {path: fs.cat(path) for path in fs.find(root) if "/logs/" not in path}
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    if settings.pop("damaged", False):
        shard = next((data / "train").iterdir())
        shard.write_bytes(shard.read_bytes()[:-1] + bytes([shard.read_bytes()[-1] ^ 1]))
        short = replace(short, hidden=None)  # the search for an architecture reads the rows
    with pytest.raises((ConfigError, DataError), match=r"parameters|damaged"):
        train(data, run, replace(short, **settings), overwrite=True)
    assert {path: fs.cat(path) for path in fs.find(root) if "/logs/" not in path} == before
    # Nor is one replaced that was killed before its end.
    fs.rm(f"{root}/metrics.json")
    with pytest.raises((ConfigError, DataError), match=r"parameters|damaged"):
        train(data, run, replace(short, **settings), overwrite=True)
    assert fs.cat(f"{root}/model/model.safetensors") == before[f"{root}/model/model.safetensors"]
    train(prepared, run, replace(short, seed=1), overwrite=True)
    assert fs.cat(f"{root}/model/model.safetensors") != before[f"{root}/model/model.safetensors"]


def test_two_runs_do_not_share_a_folder_of_checkpoints(prepared: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    with output_lock(checkpoints), pytest.raises(OutputError, match=r"checkpoints: process .* is writing there"):
        train(prepared, tmp_path / "run", replace(CONFIG, checkpoint_uri=str(checkpoints)))
    assert not (tmp_path / "run").exists()
    # The run's own folder is held already.
    own = replace(CONFIG, epochs=1, checkpoint_uri=str(tmp_path / "run"))
    assert Path(train(prepared, tmp_path / "run", own).checkpoint or "").parent == tmp_path / "run"


@pytest.mark.parametrize("below", ["", "kept", "kept/{run}", "kept-{run}", "checkpoints/again"])
def test_checkpoints_may_lie_in_the_folder_of_their_run(prepared: Path, tmp_path: Path, below: str) -> None:
    run = tmp_path / "run"
    config = replace(CONFIG, epochs=1, checkpoint_uri=str(run / below))
    first = train(prepared, run, config)
    where = Path(first.checkpoint or "").parent
    (where / ".step-000000000007.safetensors.0123456789abcdef.partial").touch()
    longer = replace(config, epochs=2, resume="auto", checkpoint_uri=str(where))
    assert train(prepared, run, longer).history[: len(first.history)] == first.history
    train(prepared, run, config, overwrite=True)
    (run / "notes.txt").touch()
    with pytest.raises(OutputError, match=r"contains notes.txt, which this command did not write"):
        train(prepared, run, config, overwrite=True)


def test_checkpoints_do_not_lie_where_a_run_writes_something_else(prepared: Path, tmp_path: Path) -> None:
    for run in (str(tmp_path / "run"), "memory://run"):
        with pytest.raises(OutputError, match="a run replaces its model; choose another folder"):
            train(prepared, run, replace(CONFIG, checkpoint_uri=f"{run}/model/checkpoints"))


def test_damaged_metrics_are_those_of_a_finished_run(prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text('{"average_precision": 0.5, "training"')
    with pytest.raises(OutputError, match="holds a finished run"):
        train(prepared, tmp_path, replace(CONFIG, resume="auto"))


@pytest.mark.parametrize("name", ["../stolen", "/tmp/stolen", "sub/x", "..", "", "a\0b"])
def test_model_file_outside_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="is not the name of a file"):
        write_model_files(tmp_path / "model", {**dict.fromkeys(MODEL_FILES, b""), name: b"x"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ['{"accuracy": 0.9}', "notes", '["average_precision"]'])
def test_metrics_of_somebody_else_are_not_replaced(
    prepared: Path, trained: TrainResult, tmp_path: Path, text: str
) -> None:
    (tmp_path / "metrics.json").write_text(text)
    with pytest.raises(OutputError, match=r"metrics\.json: was not written by dkan"):
        evaluate(trained.model, prepared, tmp_path, explain=False)
    assert files(tmp_path) == {"metrics.json": text.encode()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\n", r"history\.jsonl: is not UTF-8"),
        (b"{}\n", r"history\.jsonl: line 1: epoch: Field required"),
        (b'{"epoch": 1.0,\n', r"history\.jsonl: line 1: Invalid JSON"),
        (b"[" * 100_000 + b"\n", r"history\.jsonl: line 1: Invalid JSON"),
    ],
)
def test_damaged_history_is_named(
    prepared: Path, trained: TrainResult, tmp_path: Path, content: bytes, message: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(Path(trained.model).parent, run)
    (run / "history.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        evaluate(run / "model", prepared, tmp_path / "eval", explain=False)
    assert not (tmp_path / "eval").exists()


def test_history_that_breaks_off_is_read_up_to_there(prepared: Path, trained: TrainResult, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(Path(trained.model).parent, run)
    whole = (run / "history.jsonl").read_text()
    (run / "history.jsonl").write_text(whole[:-20])
    evaluate(run / "model", prepared, tmp_path / "eval", explain=False)
    assert json.loads((tmp_path / "eval" / "metrics.json").read_text())["split"] == "test"
    resumed = train(prepared, run, replace(CONFIG, resume="auto"))
    assert resumed.history == trained.history
    assert [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()] == trained.history


@pytest.mark.parametrize(
    ("number", "message"), [(errno.EAGAIN, "^Resource .*: raise the limit on proc"), (errno.ENOSPC, "run: the disk is")]
)
def test_limit_of_the_process_is_no_fault_of_the_folder(tmp_path: Path, number: int, message: str) -> None:
    with pytest.raises(DkanError, match=message), local_run_folder(tmp_path / "run"):
        raise OSError(number, os.strerror(number))


def test_bucket_that_cannot_be_written_is_named_before_training(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "pipe_file", refuse)
    with pytest.raises(OutputError, match=r"memory://denied: cannot be written \(Access Denied"):
        train(tmp_path / "no data", "memory://denied", CONFIG)
    with pytest.raises(OutputError, match=r"memory://denied/best\.safetensors\.partial: cannot be written \(Access"):
        train(prepared, tmp_path / "run", replace(CONFIG, checkpoint_uri="memory://denied"))
    assert not (tmp_path / "run").exists()


def test_run_that_cannot_be_uploaded_stays_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def refuse(*_: object) -> None:
        raise OutputError("memory://kept-run: cannot be written (no answer in time)")

    monkeypatch.setattr(run_folder, "replace_remote", refuse)

    def write_run() -> None:
        with local_run_folder("memory://kept-run") as folder:
            (folder / "model").mkdir()
            (folder / "model" / "config.json").write_text("{}")

    with pytest.raises(OutputError, match="no answer in time") as caught:
        write_run()
    (kept,) = tmp_path.iterdir()
    assert str(caught.value).endswith(f"; what was to go there is in {kept}")
    assert files(kept) == {"model/config.json": b"{}"}
