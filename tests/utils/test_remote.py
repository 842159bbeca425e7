"""Folders in buckets: replaced whole or not at all, and never with files from outside of them."""

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest
from fsspec import AbstractFileSystem

from dkan_core.errors import DataError, OutputError, UnreadableError
from dkan_core.utils.storage import failures
from dkan_core.utils.storage.failures import readable
from dkan_core.utils.storage.outputs import PARTIAL, check_contents
from dkan_core.utils.storage.paths import filesystem
from dkan_core.utils.storage.remote import (
    check_file_writable,
    download_folder,
    exchange_remote,
    local_copy,
    replace_remote,
)
from dkan_core.utils.storage.shared_folder import SharedFolder
from dkan_core.utils.storage.staging import staged_folder

NAMES = ("shards", "page.html", "last.json")


@pytest.fixture
def memory() -> Iterator[AbstractFileSystem]:
    """An empty file system in memory, whose keys are any text, as those of a bucket."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()


def content(fs: AbstractFileSystem) -> dict[str, bytes]:
    return {path.removeprefix("/bucket/out/"): fs.cat_file(path) for path in fs.find("/bucket/out")}


def write_result(folder: Path, text: str, *shards: str) -> Path:
    (folder / "shards").mkdir(parents=True)
    for name in ("last.json", *(f"shards/{shard}" for shard in shards)):
        (folder / name).write_text(text)
    return folder


def test_result_in_a_bucket_is_replaced_whole(tmp_path: Path, memory: AbstractFileSystem) -> None:
    uri = "memory://bucket/out"
    replace_remote(write_result(tmp_path / "old", "old", "a", "b"), uri, NAMES)
    assert content(memory) == {"last.json": b"old", "shards/a": b"old", "shards/b": b"old"}
    memory.pipe_file("/bucket/out/notes.txt", b"somebody's own")

    replace_remote(write_result(tmp_path / "new", "new", "b", "c"), uri, NAMES)
    expected = {"last.json": b"new", "shards/b": b"new", "shards/c": b"new", "notes.txt": b"somebody's own"}
    assert content(memory) == expected


@pytest.mark.parametrize("is_first", [True, False])
def test_failed_upload_leaves_what_was_there(
    tmp_path: Path, memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, *, is_first: bool
) -> None:
    uri = "memory://bucket/out"
    if not is_first:
        replace_remote(write_result(tmp_path / "old", "old", "a", "b"), uri, NAMES)
    before = content(memory)
    put_file, sent = memory.put_file, []

    def lost_connection(path: str, target: str, **options: Any) -> None:
        sent.append(target)
        if len(sent) == 2:
            raise OSError(104, "Connection reset by peer")
        put_file(path, target, **options)

    monkeypatch.setattr(type(memory), "put_file", staticmethod(lost_connection))
    result = write_result(tmp_path / "new", "new", "b", "c")
    with pytest.raises(OutputError, match="Connection reset by peer"):
        replace_remote(result, uri, NAMES)
    assert len(sent) == 2
    assert content(memory) == before
    assert not any(PARTIAL in path for path in memory.find("/bucket"))
    # No empty folder either, which would be taken for somebody else's.
    with suppress(InterruptedError), staged_folder(uri, names=NAMES, overwrite=True):
        raise InterruptedError


@pytest.mark.parametrize("replace", [partial(replace_remote, names=NAMES), partial(exchange_remote, last="last.json")])
def test_failed_copy_of_what_was_uploaded_leaves_that_and_says_where(
    replace: Callable[[Path, str], None], tmp_path: Path, memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, copy = "memory://bucket/out", memory.cp_file
    results = [write_result(tmp_path / text, text, "a", "b") for text in ("old", "new")]
    replace(results[0], uri)

    def lost_connection(path: str, target: str) -> None:
        if path.endswith("b"):
            raise OSError(104, "Connection reset by peer")
        copy(path, target)

    with monkeypatch.context() as broken:
        broken.setattr(type(memory), "cp_file", staticmethod(lost_connection))
        with pytest.raises(OutputError, match=rf"reset by peer\); the new files are whole in {uri}/{PARTIAL}$"):
            replace(results[1], uri)
    new = {"last.json": b"new", "shards/a": b"new", "shards/b": b"new"}
    assert {f"{PARTIAL}/{name}": data for name, data in new.items()}.items() <= content(memory).items()
    replace(results[1], uri)
    assert content(memory) == new


def test_listing_of_a_file_may_have_no_details(
    tmp_path: Path, memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of adlfs, for Azure."""
    find = type(memory).find

    def find_as_adlfs(self: AbstractFileSystem, path: str, **options: Any) -> Any:
        return [path] if self.isfile(path) else find(self, path, **options)

    monkeypatch.setattr(type(memory), "find", find_as_adlfs)
    for text in ("old", "new"):
        replace_remote(write_result(tmp_path / text, text, text), "memory://bucket/out", NAMES)
        assert content(memory) == {"last.json": text.encode(), f"shards/{text}": text.encode()}


def test_folder_that_a_killed_replacement_left_is_removed(tmp_path: Path, memory: AbstractFileSystem) -> None:
    """As in HDFS, a file cannot have the name of a folder here."""
    for name in (f"{PARTIAL}/last.json", f"{PARTIAL}/shards/a", "shards/a", "shards/z"):
        memory.makedirs(f"/bucket/out/{name}".rpartition("/")[0], exist_ok=True)
        memory.pipe_file(f"/bucket/out/{name}", b"old")
    with staged_folder("memory://bucket/out", names=NAMES, overwrite=False) as folder:
        write_result(folder, "new", "b")
    assert content(memory) == {"last.json": b"new", "shards/b": b"new"}


def test_folder_that_cannot_be_written_is_named_before_the_work_for_it(
    memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError("Access Denied")

    with suppress(InterruptedError), staged_folder("memory://bucket/out", names=NAMES, overwrite=False):
        assert not content(memory)
        raise InterruptedError
    monkeypatch.setattr(type(memory), "pipe_file", refuse)
    denied = pytest.raises(OutputError, match=r"memory://bucket/out: cannot be written \(Access Denied; check the")
    with denied, staged_folder("memory://bucket/out", names=NAMES, overwrite=False):
        pytest.fail("the work has begun")


def test_file_that_cannot_be_written_is_named_before_the_work_for_it(
    memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError("Access Denied")

    def fail_to_remove(*args: Any, **options: Any) -> None:
        raise RuntimeError("Failed to remove")  # as adlfs does

    uri = "memory://bucket/out/scores.parquet"
    check_file_writable(uri)
    assert not content(memory)
    monkeypatch.setattr(type(memory), "rm_file", fail_to_remove)
    check_file_writable(uri)
    monkeypatch.setattr(type(memory), "pipe_file", refuse)
    with pytest.raises(OutputError, match=rf"{uri}{PARTIAL}: cannot be written \(Access Denied; check the"):
        check_file_writable(uri)


@pytest.mark.parametrize("name", ["../victim", "day=1/../../victim", "/victim", "."])
@pytest.mark.parametrize("uri", ["memory://bucket/out", "out"])
def test_shared_folder_touches_nothing_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: AbstractFileSystem, uri: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "victim").write_text("x")
    memory.pipe_file("/bucket/victim", b"x")
    place = SharedFolder(uri)
    with pytest.raises(DataError, match=f"{uri}: names a file outside of it"):
        place.remove(name)
    with pytest.raises(DataError, match=f"{uri}: names a file outside of it"), place.staged(name) as file:
        file.touch()
    assert (tmp_path / "victim").read_text() == "x"
    assert memory.cat_file("/bucket/victim") == b"x"


def test_error_inside_a_file_of_a_shared_folder_names_the_file_that_it_is_of(tmp_path: Path) -> None:
    place, lost = SharedFolder(tmp_path / "out"), tmp_path / "lost.parquet"
    with pytest.raises(UnreadableError, match=f"{lost}: cannot be read"), place.staged("scores.parquet"):
        lost.read_bytes()
    with pytest.raises(OutputError, match=r"out/scores\.parquet: the disk is full"), place.staged("scores.parquet"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert [path.name for path in (tmp_path / "out").rglob("*")] == [".work"]


def test_download_takes_the_names_that_are_asked_for(tmp_path: Path, memory: AbstractFileSystem) -> None:
    for key in ("model/config.json", "modelling.txt", "logs/train.log"):
        memory.pipe_file(f"/bucket/out/{key}", key.encode())
    download_folder("memory://bucket/out", tmp_path / "here", ("model", "metrics.json"))
    assert [path.name for path in (tmp_path / "here").rglob("*") if path.is_file()] == ["config.json"]

    memory.pipe_file("/bucket/out/model/../../stolen", b"x")
    with pytest.raises(DataError, match=r"names a file outside of it: 'model/../../stolen'"):
        download_folder("memory://bucket/out", tmp_path / "there", ("model",))
    assert not (tmp_path / "stolen").exists()


def test_file_that_cannot_be_copied_is_named(
    tmp_path: Path, memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise PermissionError("Access Denied")

    memory.pipe_file("/bucket/model/config.json", b"{}")
    monkeypatch.setattr(type(memory), "get_file", refuse)
    with pytest.raises(
        UnreadableError, match=r"memory://bucket/model/config\.json: cannot be read \(Access Denied; check the"
    ):
        download_folder("memory://bucket/model", tmp_path / "here")
    monkeypatch.setattr(type(memory), "put_file", refuse)
    with pytest.raises(
        OutputError, match=r"memory://bucket/out/shards/a: cannot be written \(Access Denied; check the"
    ):
        replace_remote(write_result(tmp_path / "new", "new", "a"), "memory://bucket/out", NAMES)


def test_connection_that_breaks_off_is_tried_again(
    tmp_path: Path, memory: AbstractFileSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory.pipe_file("/bucket/model/config.json", b"{}")
    get_file, failed = memory.get_file, list[bool]()

    def break_off_once(*args: Any, **options: Any) -> None:
        if not failed:
            failed.append(True)
            raise aiohttp.ClientPayloadError("Response payload is not completed")
        get_file(*args, **options)

    monkeypatch.setattr(type(memory), "get_file", staticmethod(break_off_once))
    download_folder("memory://bucket/model", tmp_path / "here")
    assert (tmp_path / "here/config.json").read_bytes() == b"{}"
    assert "model/config.json, attempt 1: Response payload is not completed" in caplog.text


def test_error_in_the_copy_of_a_folder_names_the_folder_that_it_is_of(memory: AbstractFileSystem) -> None:
    memory.pipe_file("/bucket/model/config.json", b"{}")
    named = r"^memory://bucket/model/config\.json: is damaged$"
    with pytest.raises(DataError, match=named), local_copy("memory://bucket/model") as folder:
        raise DataError(f"{folder}/config.json: is damaged")


@pytest.mark.parametrize("slash", ["", "/"])
def test_foreign_file_in_a_folder_of_a_result_is_found(slash: str) -> None:
    uri = "memory://results/out"
    for name in ("a.json", "train/00000.safetensors", "train/notes.txt"):
        filesystem(uri)[0].pipe_file(f"/results/out/{name}", b"{}")
    with pytest.raises(OutputError, match=r"/out/train/notes\.txt: was not written by dkan"):
        check_contents(uri + slash, {"train": r"\d+\.safetensors"})


def test_long_waits_for_a_bucket_are_reported_one_at_a_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes connections may never answer, and clients repeat their requests for minutes."""
    monkeypatch.setattr(failures, "NOTICE_SECONDS", 0.01)
    caplog.set_level("INFO")
    with readable("local"), readable("s3://bucket/rows"), readable("s3://bucket/rows/0.parquet"):
        with failures._may_tell:  # as while another wait is reported
            threading.Event().wait(0.1)
            assert not caplog.messages
        while len(caplog.messages) < 3:
            threading.Event().wait(0.01)
    assert all(message.startswith("still waiting for s3://bucket/rows") for message in caplog.messages)
    count = len(caplog.messages)
    waiting = [thread for thread in threading.enumerate() if thread.name == "dkan-notices"]
    for thread in waiting:
        thread.join()
    assert len(caplog.messages) <= count + len(waiting), "nothing is reported once the wait is over"
