"""Damaged prepared data and unfit rows through the real command: exit code 2, the wrong thing named, nothing left."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import TrainResult
from tests.command import check, dkan

Change = Callable[[Path], object]


def first_shard(data: Path) -> Path:
    return min((data / "train").iterdir())


def other_format(data: Path) -> None:
    plain = json.loads((data / "manifest.json").read_text())
    (data / "manifest.json").write_text(json.dumps({**plain, "format_version": 3}))


PREPARED: dict[str, tuple[Change, str]] = {
    "no manifest": (
        lambda data: (data / "manifest.json").unlink(),
        r"data: no manifest\.json there; expected a folder",
    ),
    "half a manifest": (
        lambda data: (data / "manifest.json").write_text('{"format'),
        r"manifest\.json: Invalid JSON",
    ),
    "other format": (other_format, r"manifest\.json: has format version 3; this dkan reads 1 to 2"),
    "vanished shard": (lambda data: first_shard(data).unlink(), r"train/00000-of-00001\.safetensors: .*No such file"),
    "truncated shard": (
        lambda data: os.truncate(first_shard(data), 99),
        r"train/00000-of-00001\.safetensors: has 99 bytes",
    ),
    "no such folder": (shutil.rmtree, r"data: no manifest\.json there"),
}


@pytest.mark.parametrize("case", PREPARED)
def test_train_on_damaged_data(case: str, prepared: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    change, message = PREPARED[case]
    shutil.copytree(prepared, tmp_path / "data")
    change(tmp_path / "data")
    code = dkan("train", tmp_path / "data", "--out", tmp_path / "run", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "run").exists()


PREDICT: dict[str, tuple[list[str], str]] = {
    "no such model": (["{tmp}/none", "{raw}"], r"none"),
    "no such source": (["{model}", "{raw}/none"], r"raw/none: no such file or folder"),
    "column missing": (
        ["{model}", "{raw}"],
        r"a\.parquet: column 'mean_radius' is missing; the model was trained with it",
    ),
    "column to pass missing": (
        ["{model}", "{raw}", "--column", "key"],
        r"a\.parquet: column 'key' is missing; it was to be",
    ),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A sound file without the columns that the model was trained with."""
    folder = tmp_path / "raw"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1.0, 2.0]}), folder / "a.parquet")
    return folder


@pytest.mark.parametrize("case", PREDICT)
def test_predict(case: str, trained: TrainResult, raw: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    arguments, message = PREDICT[case]
    places = {"{tmp}": tmp_path, "{raw}": raw, "{model}": trained.model}
    for place, path in places.items():
        arguments = [argument.replace(place, str(path)) for argument in arguments]
    code = dkan("predict", *arguments, "--out", tmp_path / "scores.parquet", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]
