"""Damaged prepared data and unfit rows through the real command: exit code 2, the wrong thing named, nothing left."""

import hashlib
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


def other_format(version: int) -> Change:
    def change(data: Path) -> None:
        plain = json.loads((data / "manifest.json").read_text())
        (data / "manifest.json").write_text(json.dumps({**plain, "format_version": version}))

    return change


def a_folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


# What becomes of the manifest, and what the message says of it.
TEXTS: dict[str, tuple[Change, str]] = {
    "nested deeply": (
        lambda path: path.write_text('{"format_version": ' + "[" * 100_000),
        r"manifest\.json: Invalid JSON: recursion limit exceeded",
    ),
    "not UTF-8": (lambda path: path.write_bytes(b'{"format_version\xff": 1}'), r"manifest\.json: Invalid JSON"),
    "a list": (lambda path: path.write_text("[]"), r"manifest\.json: .*should be an object"),
    "not a number": (lambda path: path.write_text('{"format_version": NaN}'), r"manifest\.json: .*format_version"),
    "a folder": (a_folder_instead, r"manifest\.json: is not a regular file"),
    "a pipe": (a_pipe_instead, r"manifest\.json: is not a regular file"),
}


def of_manifest(change: Change) -> Change:
    """Change the manifest of prepared data."""
    return lambda data: change(data / "manifest.json")


PREPARED: dict[str, tuple[Change, str]] = {
    "no manifest": (
        lambda data: (data / "manifest.json").unlink(),
        r"data: no manifest\.json there; expected a folder",
    ),
    "half a manifest": (
        lambda data: (data / "manifest.json").write_text('{"format'),
        r"manifest\.json: Invalid JSON",
    ),
    "later format": (other_format(4), r"manifest\.json: has format version 4; this dkan reads 2 and 3"),
    "earlier format": (other_format(1), r"manifest\.json: has format version 1; this dkan reads 2 and 3"),
    "vanished shard": (lambda data: first_shard(data).unlink(), r"train/00000-of-00001\.safetensors: .*No such file"),
    "truncated shard": (
        lambda data: os.truncate(first_shard(data), 99),
        r"train/00000-of-00001\.safetensors: has 99 bytes",
    ),
    "no such folder": (shutil.rmtree, r"data: no manifest\.json there"),
    **{name: (of_manifest(change), message) for name, (change, message) in TEXTS.items()},
}


def test_train_on_a_name_too_long(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    code = dkan("train", tmp_path / ("a" * 300), "--out", tmp_path / "run", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"a{300}/manifest\.json: cannot be read \(File name too long\)")


@pytest.mark.parametrize("case", PREPARED)
def test_train_on_damaged_data(case: str, prepared: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    change, message = PREPARED[case]
    shutil.copytree(prepared, tmp_path / "data")
    change(tmp_path / "data")
    code = dkan("train", tmp_path / "data", "--out", tmp_path / "run", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "run").exists()


def sealed(plain: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the fingerprint that its content has, as somebody who alters it would make it."""
    content = {key: value for key, value in plain.items() if key not in ("fingerprint", "location", "sources")}
    return {**plain, "fingerprint": hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()}


def put(*place: Any) -> Callable[[dict[str, Any]], object]:
    """Change a value of the manifest: the keys that lead to it, then the value."""

    def change(plain: dict[str, Any]) -> None:
        *path, last, value = place
        for key in path:
            plain = plain[key]
        plain[last] = value

    return change


SHARD = ("splits", "train", "shards", 0)
# What is changed in the manifest, and what the message says of it.
MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "key missing": (lambda plain: plain.pop("labels"), r"labels: Field required"),
    "key unknown": (put("rows", 7), r"rows: Extra inputs are not permitted, got 7"),
    "key of null": (put("splits", None), r"splits: Input should be an object, got None"),
    "labels in one text": (put("labels", "label"), r"labels: Input should be a valid array, got 'label'"),
    "no label": (put("labels", []), r"labels: List should have at least 1 item"),
    "other label": (put("labels", ["other"]), r"splits\.train\.classes are of \['label'\], labels are \['other'\]"),
    "version in quotes": (put("format_version", "2"), r"format_version: Input should be a valid integer, got '2'"),
    "seed of text": (put("seed", "one"), r"seed: Input should be a valid integer, got 'one'"),
    "unknown split": (lambda plain: plain["splits"].update(dev=plain["splits"]["test"]), r"splits\.dev\.\[key\]"),
    "rows of a split": (put("splits", "train", "rows", 9), r"splits\.train: has 9 rows, its shards \d+"),
    "huge rows": (put(*SHARD, "rows", 10**30), r"splits\.train\.shards\.0\.rows: .*got 1000000"),
    "negative bytes": (put(*SHARD, "bytes", -1), r"shards\.0\.bytes: Input should be greater than or equal to 1"),
    "rows that are true": (put(*SHARD, "rows", True), r"shards\.0\.rows: Input should be a valid integer, got True"),
    "class missing": (lambda plain: plain["splits"]["train"]["classes"]["label"].pop("0"), r"classes of 'label' are"),
    "class counts": (put("splits", "train", "classes", "label", "1", 3), r"classes of 'label' are .* in all"),
    "no shard": (put("splits", "train", "shards", []), r"splits\.train\.shards: List should have at least 1 item"),
    "shard of another split": (
        put(*SHARD, "path", "test/00000-of-00001.safetensors"),
        r"splits\.train\.shards: 'test/00000-of-00001\.safetensors' is of another split",
    ),
    "path above the folder": (put(*SHARD, "path", "../train/x.safetensors"), r"shards\.0\.path: .*got '\.\./train"),
    "path through above": (put(*SHARD, "path", "train/../../x.safetensors"), r"shards\.0\.path: String should match"),
    "absolute path": (put(*SHARD, "path", "/etc/passwd"), r"shards\.0\.path: String should match .*got '/etc/passwd'"),
    "NUL in a path": (put(*SHARD, "path", "train/a\0.safetensors"), r"shards\.0\.path: String should match"),
    "path of a number": (put(*SHARD, "path", 7), r"shards\.0\.path: Input should be a valid string, got 7"),
    "hash of other length": (put(*SHARD, "sha256", "ab"), r"shards\.0\.sha256: String should match"),
    "block missing": (put(*SHARD, "blocks", []), r"train/00000-of-00001\.safetensors: blocks has 0 hashes; expected 1"),
    "block altered": (put(*SHARD, "blocks", ["0" * 64]), r"00000-of-00001\.safetensors: block 0 .* is damaged or was"),
    "other columns": (lambda plain: plain["features"]["numeric"].reverse(), r"features: are not the columns"),
    "other encoding": (
        put("encoding", "numeric_dtype", "float32"),
        r"array 'numeric' is U8 .*; the manifest says .*F32",
    ),
    "encoding of null": (put("encoding", None), r"encoding: Input should be an object"),
    "vocabulary cut off": (
        lambda plain: (plain["encoding"].pop("counts"), plain["encoding"]["coded"][0].update(vocabulary=["left"])),
        r"train/00000-of-00001\.safetensors: column 'site' has code 3 in row \d+; expected 0 to 2",
    ),
    "vocabulary cut off, counts kept": (
        lambda plain: plain["encoding"]["coded"][0].update(vocabulary=["left"]),
        r"encoding: counts: must hold the rows of each column's bins",
    ),
    "source of null": (put("sources", [None]), r"sources\.0: Input should be an object"),
    "location of a number": (put("location", 7), r"location: Input should be a valid string, got 7"),
    "location of nothing": (put("location", ""), r"location: String should have at least 1 character"),
    "location with NUL": (put("location", "a\0b"), r"'a\\x00b' names no file or folder"),
    "location nowhere": (put("location", "/nowhere"), r"/nowhere: no manifest\.json there"),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_train_on_altered_manifest(case: str, prepared: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    change, message = MANIFESTS[case]
    shutil.copytree(prepared, tmp_path / "data")
    plain = json.loads((tmp_path / "data/manifest.json").read_text())
    change(plain)
    (tmp_path / "data/manifest.json").write_text(json.dumps(sealed(plain)))
    code = dkan("train", tmp_path / "data", "--out", tmp_path / "run", "--device", "cpu", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "run/model").exists()


@pytest.mark.parametrize("command", ["train", "evaluate", "explain"])
def test_flipped_bit_in_a_shard(
    command: str, prepared: Path, trained: TrainResult, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    shutil.copytree(prepared, tmp_path / "data")
    split = "valid" if command == "train" else "test"
    shard = tmp_path / f"data/{split}/00000-of-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    model = [] if command == "train" else [trained.model]
    options = ["--device", "cpu", "--epochs", "1"] if command == "train" else ["--split", "test"]
    code = dkan(command, *model, tmp_path / "data", "--out", tmp_path / "out", *options, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, rf"{split}/00000-of-00001\.safetensors: block 0 .* is damaged or was altered")
    assert not (tmp_path / "out/model").exists() and not (tmp_path / "out/metrics.json").exists()


def test_verify_names_every_damaged_block(
    prepared: Path, tmp_path: Path, monkeypatch: Any, capsys: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    shutil.copytree(prepared, data)
    assert dkan("verify", data, monkeypatch=monkeypatch) == 0
    assert "3 shards, 0.00 GB: every block matches its hash" in capsys.readouterr().out
    for split in ("valid", "test"):
        shard = data / f"{split}/00000-of-00001.safetensors"
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x07")
    code = dkan("verify", data, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"2 damaged blocks; the first: .*valid/00000-of-00001\.safetensors: block 0 ")
    assert f"{data}/test/00000-of-00001.safetensors: block 0 " in caplog.text
    assert dkan("verify", data, "--split", "train", "--json", tmp_path / "found.json", monkeypatch=monkeypatch) == 0
    assert json.loads((tmp_path / "found.json").read_text())["shards"] == 1
    code = dkan("verify", data, "--split", "tests", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, "has no split 'tests'; did you mean 'test'")
    shard.unlink()
    check(dkan("verify", data, monkeypatch=monkeypatch), capsys.readouterr().err, rf"{shard}: cannot be read")


PREDICT: dict[str, tuple[list[str], str]] = {
    "no such model": (["{tmp}/none", "{raw}"], r"none"),
    "no such source": (["{model}", "{raw}/none"], r"raw/none: no such file or folder"),
    "column missing": (
        ["{model}", "{raw}"],
        r"a\.parquet: column 'mean_radius' is missing; the model was trained with it",
    ),
    "column to pass missing": (
        ["{model}", "{raw}", "--column", "key"],
        r"a\.parquet: column 'key' does not exist, so it cannot be",
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
def test_rows_that_do_not_fit_the_model_are_refused_by_name(
    case: str, trained: TrainResult, raw: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    arguments, message = PREDICT[case]
    places = {"{tmp}": tmp_path, "{raw}": raw, "{model}": trained.model}
    for place, path in places.items():
        arguments = [argument.replace(place, str(path)) for argument in arguments]
    code = dkan("predict", *arguments, "--out", tmp_path / "scores.parquet", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]
