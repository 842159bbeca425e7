"""A manifest alone, which says where the data are; the fingerprint of sources."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import (
    DataError,
    OutputError,
    PrepareConfig,
    TrainResult,
    evaluate,
    fingerprint_sources,
    finish_preparation,
    fit_preparation,
    plan_preparation,
    prepare,
    prepare_part,
    save_pointer,
)
from dkan_core import write_sample as sample
from dkan_core.data.format.manifest import open_prepared, read_manifest
from dkan_core.data.preparation.reference import read_reference
from dkan_core.utils.storage.replacement import COMPLETE, MOVING
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder
from tests.command import dkan


def test_data_are_found_where_the_manifest_says(prepared: Path, trained: TrainResult, tmp_path: Path) -> None:
    save_pointer(tmp_path / "pointer", read_manifest(prepared), str(prepared))
    assert [path.name for path in (tmp_path / "pointer").iterdir()] == ["manifest.json"]
    with open_prepared(tmp_path / "pointer") as (folder, manifest):
        assert folder == prepared and manifest == read_manifest(prepared)
    there = evaluate(trained.model, prepared, tmp_path / "there", explain=False)
    assert evaluate(trained.model, tmp_path / "pointer", tmp_path / "here", explain=False).metrics == there.metrics


@pytest.mark.s3
def test_data_in_a_bucket_are_found(prepared: Path, source: Path, s3: str, tmp_path: Path) -> None:
    result = prepare(source, f"{s3}/data", PrepareConfig(label=("label",)))
    save_pointer(tmp_path / "pointer", result, f"{s3}/data")
    with open_prepared(tmp_path / "pointer") as (folder, manifest):
        assert manifest == result
        assert all((folder / shard.path).exists() for shard in manifest.splits["train"].shards)


@pytest.fixture
def in_memory(prepared: Path) -> Iterator[Any]:
    """Prepared data at memory://data, in a file system that counts how often each file is read."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.put(f"{prepared}/", "/data/", recursive=True)
    yield fs
    fs.store.clear()


def interrupted(prepared: Path, data: Path, state: str) -> Path:
    """Return a folder in which a process was killed while it replaced prepared data by others."""
    shutil.copytree(prepared, data / state)
    if state == COMPLETE:
        (data / "test").mkdir()
        (data / "test/old.safetensors").touch()
    else:
        (data / state / "train").rename(data / "train")
    return data


@pytest.mark.parametrize("state", [COMPLETE, MOVING])
def test_data_whose_replacement_was_killed_are_found(prepared: Path, tmp_path: Path, state: str) -> None:
    data = interrupted(prepared, tmp_path / "data", state)
    assert read_manifest(data) == read_manifest(prepared)
    names = {path.name for path in data.rglob("*.safetensors")}
    assert names == {path.name for path in prepared.rglob("*.safetensors")}


@pytest.mark.parametrize("state", [COMPLETE, MOVING])
@pytest.mark.parametrize("way", ["one process", "many pods", "like", "evaluate"])
def test_data_whose_replacement_was_killed_are_used_again(
    prepared: Path, source: Path, trained: TrainResult, tmp_path: Path, state: str, way: str
) -> None:
    config = PrepareConfig(label=("label",))
    data = interrupted(prepared, tmp_path / "data", state)
    if way == "like":
        assert read_reference(str(data)) == replace(read_reference(str(prepared)), uri=str(data))
        return
    if way == "evaluate":
        assert evaluate(trained.model, data, tmp_path / "out", explain=False).metrics["rows"] > 0
        return
    wanted = prepare(source, tmp_path / "alone", config)
    if way == "one process":
        assert prepare(source, data, config, reuse=True) == wanted
    else:
        plan_preparation(source, data, config, parts=2)
        assert not (data / WORK).exists() and read_manifest(data) == wanted


def test_replacement_that_cannot_be_finished_is_an_error(prepared: Path, tmp_path: Path) -> None:
    data = interrupted(prepared, tmp_path / "data", MOVING)
    shutil.copytree(prepared / "valid", data / "valid")
    with pytest.raises(OutputError, match=f"{data}: cannot be written \\(Directory not empty"):
        read_manifest(data)


TRAIN = "train/00000-of-00001.safetensors"


@pytest.mark.parametrize("harm", ["cut off", "altered"])
def test_shard_that_arrives_damaged_is_read_once_more(
    in_memory: Any, prepared: Path, harm: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copy, copied = type(in_memory).get_file, []

    def damaged_once(self: Any, path: str, target: str, **options: Any) -> None:
        copy(self, path, target, **options)
        copied.append(path)
        if copied.count(path) == 1 and path.endswith(TRAIN):
            content = Path(target).read_bytes()
            Path(target).write_bytes(content[:-9] if harm == "cut off" else content[:-1] + b"\x07")

    monkeypatch.setattr(type(in_memory), "get_file", damaged_once)
    with open_prepared("memory://data") as (folder, manifest):
        assert (folder / TRAIN).read_bytes() == (prepared / TRAIN).read_bytes()
        assert manifest == read_manifest(prepared)
    assert sorted(map(copied.count, set(copied))) == [1, 1, 1, 2]
    assert "memory://data/train/00000-of-00001.safetensors: " in caplog.text and "reading it once more" in caplog.text


HARMS: dict[str, tuple[Any, str]] = {
    "missing": (None, r"memory://data/train/00000-of-00001\.safetensors: no such file"),
    "cut off": (slice(0, -9), r"memory://data/train/00000-of-00001\.safetensors: has [\d,]+ bytes; the manifest says"),
    "other": (slice(None, None, -1), r"memory://data/train/00000-of-00001\.safetensors: block 0 does not match"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_shard_that_is_damaged_there_is_named(in_memory: Any, harm: str) -> None:
    kept, message = HARMS[harm]
    content = in_memory.cat_file(f"/data/{TRAIN}")
    in_memory.rm_file(f"/data/{TRAIN}")
    if kept is not None:
        in_memory.pipe_file(f"/data/{TRAIN}", content[kept])
    with pytest.raises(DataError, match=message), open_prepared("memory://data"):
        pass


def test_nothing_but_what_the_manifest_lists_is_read(in_memory: Any) -> None:
    in_memory.pipe_file("/data/../../outside", b"1")
    in_memory.pipe_file("/data/train/more", b"1")
    with open_prepared("memory://data") as (folder, _):
        assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
            *["00000-of-00001.safetensors"] * 3,
            "manifest.json",
        ]


def test_only_the_splits_that_are_needed_are_downloaded(in_memory: Any) -> None:
    with open_prepared("memory://data", "valid", "test") as (folder, _):
        assert {path.parent.name for path in folder.rglob("*.safetensors")} == {"valid", "test"}


@pytest.mark.parametrize(("command", "split"), [("train", "test"), ("evaluate", "train"), ("explain", "train")])
def test_split_that_a_command_does_not_read_may_be_missing(
    in_memory: Any, trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, split: str
) -> None:
    """So nothing of it was downloaded."""
    in_memory.rm_file(f"/data/{split}/00000-of-00001.safetensors")
    model = [] if command == "train" else [trained.model]
    options = {
        "train": ["--device", "cpu", "--epochs", "1", "--hidden", "4"],
        "evaluate": ["--split", "test"],
        "explain": ["--split", "test", "--top", "2"],
    }
    words = [command, *model, "memory://data", "--out", tmp_path / "out", *options[command]]
    assert dkan(*words, monkeypatch=monkeypatch) == 0


def test_data_prepared_since_are_refused(prepared: Path, source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    save_pointer(tmp_path / "pointer", prepare(source, data, PrepareConfig(label=("label",))), str(data))
    prepare(source, data, PrepareConfig(label=("label",), seed=1), overwrite=True)
    with (
        pytest.raises(DataError, match=r"data: holds data other than .* prepare them again"),
        open_prepared(tmp_path / "pointer"),
    ):
        pass


def test_fingerprint_changes_with_the_files_and_the_settings_alone(tmp_path: Path) -> None:
    sample(tmp_path / "raw" / "a.parquet")
    first = fingerprint_sources([tmp_path / "raw"])
    assert fingerprint_sources(str(tmp_path / "raw" / "*.parquet")) == first == fingerprint_sources(tmp_path / "raw")
    assert fingerprint_sources([tmp_path / "raw"], "seed=1") != first
    os.utime(tmp_path / "raw" / "a.parquet", (1, 1))
    second = fingerprint_sources([tmp_path / "raw"])
    sample(tmp_path / "raw" / "b.parquet")
    assert len({first, second, fingerprint_sources([tmp_path / "raw"])}) == 3


def test_sample_is_ready_to_be_prepared(tmp_path: Path) -> None:
    sample(tmp_path / "raw" / "sample.parquet")
    manifest = prepare(tmp_path / "raw", tmp_path / "data", PrepareConfig(label=("malignant",)))
    assert sum(split.rows for split in manifest.splits.values()) == 569
    assert sum(split.classes["malignant"]["1"] for split in manifest.splits.values()) == 212


def test_what_was_prepared_before_is_not_prepared_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sample(tmp_path / "raw" / "a.parquet")
    config, out = PrepareConfig(label=("malignant",)), tmp_path / "data"
    first = prepare(tmp_path / "raw", out, config, overwrite=True, reuse=True)
    stamp = (out / "manifest.json").stat().st_mtime_ns
    with caplog.at_level("INFO"):
        assert prepare(tmp_path / "raw", out, config, overwrite=True, reuse=True) == first
    assert "were prepared before" in caplog.text and (out / "manifest.json").stat().st_mtime_ns == stamp
    other = prepare(tmp_path / "raw", out, PrepareConfig(label=("malignant",), seed=1), overwrite=True, reuse=True)
    assert other.fingerprint != first.fingerprint


def test_data_whose_encoding_was_extended_are_reused(tmp_path: Path) -> None:
    days = pa.array(range(90), pa.int32()).cast(pa.date32())
    table = pa.table({"x": range(90), "day": days, "y": [0, 1] * 45})
    pq.write_table(table, tmp_path / "old.parquet")
    prepare(tmp_path / "old.parquet", tmp_path / "old", PrepareConfig(label=("y",)))
    pq.write_table(table.append_column("more", table["x"]), tmp_path / "new.parquet")
    config = PrepareConfig(like=str(tmp_path / "old"), extend=True)
    made = prepare(tmp_path / "new.parquet", tmp_path / "new", config)
    assert made.preprocessor.columns == ["x", "day", "more"]
    assert prepare(tmp_path / "new.parquet", tmp_path / "new", config, reuse=True) == made


def test_data_with_groups_are_not_reused_where_none_are_asked_for(tmp_path: Path) -> None:
    rows = {"x": range(90), "who": [place // 3 for place in range(90)], "y": [0, 1] * 45}
    pq.write_table(pa.table({**rows, "part": ["train", "valid", "test"] * 30}), tmp_path / "rows.parquet")
    config = PrepareConfig(label=("y",), split_column="part", drop=("who",))
    grouped = replace(config, drop=(), group="who")
    source, out = tmp_path / "rows.parquet", tmp_path / "data"
    assert prepare(source, out, grouped).grouped
    assert not prepare(source, out, config, overwrite=True, reuse=True).grouped
    assert prepare(source, out, grouped, overwrite=True, reuse=True).grouped


def test_second_preparation_by_many_leaves_the_first_as_it_is(tmp_path: Path) -> None:
    """A run that trains must not lose its data to another one that begins with the same."""
    sample(tmp_path / "raw" / "a.parquet")
    place = tmp_path / "data"

    def prepare_by_many() -> None:
        parts = plan_preparation(tmp_path / "raw", place, PrepareConfig(label=("malignant",)), parts=2)
        for stage in ("survey", "encode", "assemble"):
            if stage == "encode":
                fit_preparation(place)
                assert first is None or (place / "manifest.json").exists()
            for part in parts:
                prepare_part(place, stage, part)

    first = None
    prepare_by_many()
    first = finish_preparation(place)
    stamps = {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
    prepare_by_many()
    assert finish_preparation(place) == first
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()} == stamps


def test_finish_that_was_killed_while_it_cleared_up_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(tmp_path / "raw" / "a.parquet")
    place = tmp_path / "data"
    (part,) = plan_preparation(tmp_path / "raw", place, PrepareConfig(label=("malignant",)), parts=1)
    prepare_part(place, "survey", part)
    fit_preparation(place)
    prepare_part(place, "encode", part)
    prepare_part(place, "assemble", part)
    removed: list[str] = []
    remove = SharedFolder.remove

    def killed(self: SharedFolder, name: str) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(name)
        remove(self, name)

    monkeypatch.setattr(SharedFolder, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        finish_preparation(place)
    monkeypatch.undo()
    assert (place / ".work").exists()
    assert sum(split.rows for split in finish_preparation(place).splits.values()) == 569
    assert not (place / ".work").exists()
