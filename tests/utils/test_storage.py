"""Outputs appear whole or not at all: exceptions, SIGKILL, a full disk, somebody else's folder."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec import AbstractFileSystem

from dkan_core import DataError, OutputError
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import DkanError
from dkan_core.utils.storage.files import write_atomic, write_json
from dkan_core.utils.storage.outputs import PARTIAL
from dkan_core.utils.storage.paths import path_inside
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.staging import output_lock, staged_file, staged_folder
from tests import warm

NAMES = ("part", "end.json")
SCORES = pa.schema([("p", pa.float32())])


class BoomError(Exception):
    """What goes wrong inside a block."""


def fill(folder: Path, text: str) -> None:
    (folder / "part").mkdir()
    (folder / "part/a").write_text(text)
    (folder / "end.json").write_text(text)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("state", ["absent", "empty", "nested"])
def test_result_appears_at_the_end_of_the_block_only(tmp_path: Path, state: str) -> None:
    out = tmp_path / ("a/b/out" if state == "nested" else "out")
    if state == "empty":
        out.mkdir()
    with staged_folder(out, names=NAMES, overwrite=False) as folder:
        fill(folder, "new")
        assert not (out / "part").exists()
        assert not (out / "end.json").exists()
    assert files(out) == {"part/a": "new", "end.json": "new"}
    assert sorted(os.listdir(out)) == ["end.json", "part"]


@pytest.mark.parametrize("error", [BoomError, OSError, KeyboardInterrupt, MemoryError])
def test_exception_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with staged_folder(tmp_path / "out", names=NAMES, overwrite=False) as folder:
            fill(folder, "new")
            raise error

    with pytest.raises((error, OutputError)):
        fail()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("staged", ["folder", "file"])
def test_failure_to_read_is_not_called_one_to_write(tmp_path: Path, staged: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match=f"{tmp_path}/source: cannot be read \\(No such file"), stage(out, staged):
        (tmp_path / "source").read_text()
    with pytest.raises(OutputError, match=f"{out}: cannot be written \\(No"), stage(out, staged) as place:
        (place / "a/b").write_text("x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("staged", ["folder", "file"])
def test_limit_of_the_process_is_not_called_a_failure_to_write(tmp_path: Path, staged: str, named: bool) -> None:
    message = r"^Too many open files: raise the limit .*ulimit -n"
    names = [str(tmp_path / "out/rank-0.log")] if named else []
    with pytest.raises(DkanError, match=message) as caught, stage(tmp_path / "out", staged):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), *names)
    assert caught.value.exit_code == 1 and os.listdir(tmp_path) == []


def test_file_in_a_read_only_folder_is_named_as_it_was_asked_for(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    out = small_disk / "scores.csv"
    with pytest.raises(OutputError, match=f"^{out}: cannot be written \\(Read-only"), staged_file(out):
        pass


def stage(out: Path, staged: str) -> AbstractContextManager[Path]:
    return staged_folder(out, names=NAMES, overwrite=False) if staged == "folder" else staged_file(out)


def test_exception_leaves_the_earlier_result_untouched(tmp_path: Path) -> None:
    fill(tmp_path, "old")

    def fail() -> None:
        with staged_folder(tmp_path, names=NAMES, overwrite=True) as folder:
            fill(folder, "new")
            raise BoomError

    with pytest.raises(BoomError):
        fail()
    assert files(tmp_path) == {"part/a": "old", "end.json": "old"}


def test_earlier_result_is_replaced_when_asked(tmp_path: Path) -> None:
    fill(tmp_path, "old")
    (tmp_path / "part/b").write_text("of the earlier result only")
    with pytest.raises(OutputError, match="--overwrite"), staged_folder(tmp_path, names=NAMES, overwrite=False):
        pass
    with staged_folder(tmp_path, names=NAMES, overwrite=True) as folder:
        fill(folder, "new")
    assert files(tmp_path) == {"part/a": "new", "end.json": "new"}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("own", ["notes.txt", "part/photo.jpg"])
def test_folder_of_somebody_else_is_refused_untouched(tmp_path: Path, own: str, overwrite: bool) -> None:
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("mine")
    with (
        pytest.raises(OutputError, match="which this command did not write"),
        staged_folder(tmp_path, names=NAMES, overwrite=overwrite),
    ):
        pass
    assert files(tmp_path) == {own: "mine"}


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("where", ["{}", "memory:/{}"])
def test_folder_inside_with_a_file_of_somebody_else_is_not_replaced(tmp_path: Path, where: str, when: str) -> None:
    out = where.format(tmp_path)
    fs, root = fsspec.core.url_to_fs(out)
    for name in ("part/a", "part/.a.0123456789abcdef.partial", "end.json", *["part/b"] * (when == "before")):
        fs.makedirs(f"{root}/part", exist_ok=True)
        fs.pipe_file(f"{root}/{name}", b"old")

    def replace() -> None:
        with staged_folder(out, names=NAMES, overwrite=True, contents={"part": "a"}) as folder:
            fill(folder, "new")
            fs.pipe_file(f"{root}/part/b", b"old")

    with pytest.raises(OutputError, match=f"^{out}/part/b: was not written by dkan, and {out}/part would be replaced"):
        replace()
    assert fs.cat_file(f"{root}/part/a") == fs.cat_file(f"{root}/part/b") == b"old"
    fs.rm_file(f"{root}/part/b")
    with staged_folder(out, names=NAMES, overwrite=True, contents={"part": "a"}) as folder:
        fill(folder, "new")
    assert fs.cat_file(f"{root}/part/a") == b"new"


def test_out_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputError, match="is a file"), staged_folder(tmp_path / "out", names=NAMES, overwrite=True):
        pass


@pytest.mark.parametrize("out", [None, 3, b"scores"])
def test_out_that_is_no_path_is_refused(out: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a text, None would be the name of a folder."""
    monkeypatch.chdir(tmp_path)
    message = f"expected a path or URI, got a value of type {type(out).__name__}"
    with pytest.raises(DataError, match=message), staged_folder(out, names=NAMES, overwrite=True) as folder:
        fill(folder, "new")
    with pytest.raises(DataError, match=message), staged_file(out) as aside:
        aside.write_text("new")
    assert not any(tmp_path.iterdir())


def test_staged_file_is_whole_or_nothing(tmp_path: Path) -> None:
    out = tmp_path / "folder/out.txt"

    def fail() -> None:
        with staged_file(out) as aside:
            aside.write_text("half")
            raise BoomError

    with pytest.raises(BoomError):
        fail()
    assert os.listdir(out.parent) == []
    for text in ("first", "second"):
        with staged_file(out) as aside:
            aside.write_text(text)
        assert files(out.parent) == {"out.txt": text}
    with pytest.raises(OutputError, match="is a folder"), staged_file(out.parent):
        pass


def test_name_as_long_as_file_systems_allow_can_be_written(tmp_path: Path) -> None:
    out = tmp_path / f"{'分' * 83}.csv"
    with staged_file(out) as aside:
        aside.write_text("x")
    assert len(os.fsencode(out.name)) == 253 and os.listdir(tmp_path) == [out.name]


def test_planted_links_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    for name in (".out.txt.partial", ".out.txt.0123456789abcdef.partial"):
        (tmp_path / name).symlink_to(victim)
    with staged_file(tmp_path / "out.txt") as aside:
        aside.write_text("scores")
    write_atomic(tmp_path / "out.txt", "more")
    assert victim.read_text() == "mine" and not (tmp_path / "out.txt").is_symlink()


def test_two_writers_of_a_file_both_leave_a_whole_one(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    with staged_file(out) as first:
        first.write_text("first")
        with staged_file(out) as second:
            second.write_text("second" * 1000)
        assert out.read_text() == "second" * 1000
    assert files(tmp_path) == {"out.txt": "first"}


def hold(code: str, path: Path) -> subprocess.Popen[str]:
    """Run code in a process that says when it is ready, and ends when its input does."""
    imports = "import sys\nfrom dkan_core.utils.storage.staging import output_lock, staged_file, staged_folder"
    code = f"{imports}\n{code}\n    print('ready', flush=True)\n    sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def test_what_a_killed_writer_left_is_removed_and_a_living_one_is_let_be(tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    dead, living = (
        hold("with staged_file(sys.argv[1]) as aside:\n    aside.write_text('half')", out) for _ in range(2)
    )
    dead.kill()
    dead.communicate()
    assert len(os.listdir(tmp_path)) == 2
    write_atomic(out, "whole")
    assert len(os.listdir(tmp_path)) == 2, "what the dead one left is gone, what the living one writes is not"
    living.communicate()
    assert files(tmp_path) == {"out.txt": "half"}


def test_lock_that_cannot_be_removed_does_not_hide_why_a_command_failed(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fail() -> None:
        with output_lock(out):
            out.rename(tmp_path / "moved")
            out.touch()  # there is no folder any more to remove a file from
            raise BoomError

    with pytest.raises(BoomError):
        fail()


def test_output_in_use_is_refused_with_its_holder_until_that_dies(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = hold("with staged_folder(sys.argv[1], names=['end.json'], overwrite=True):", out)
    for _ in range(2):
        with (
            pytest.raises(OutputError, match=rf"out: process {process.pid} on .* is writing there"),
            staged_folder(out, names=NAMES, overwrite=True),
        ):
            pass
    assert (out / PARTIAL).exists()
    process.kill()
    process.communicate()
    with staged_folder(out, names=NAMES, overwrite=False) as folder:
        fill(folder, "new")
    assert sorted(os.listdir(out)) == ["end.json", "part"]


def test_write_atomic_replaces_or_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "x.json", {"a": float("nan")})

    def no_sync(handle: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", no_sync)
    with pytest.raises(OutputError, match=r"x\.json: cannot be written \(Input/output error\)"):
        write_atomic(tmp_path / "x.json", "new")
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.fixture
def memory() -> Iterator[AbstractFileSystem]:
    """An empty file system in memory, whose keys are any text, as those of a bucket."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield fs
    fs.store.clear()


@pytest.mark.parametrize("key", ["../../outside", "a/../../outside", "/outside"])
def test_remote_file_cannot_leave_its_folder(tmp_path: Path, memory: AbstractFileSystem, key: str) -> None:
    memory.pipe_file("/bucket/data/sound", b"1")
    memory.pipe_file(f"/bucket/data/{key}", b"1")
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("sound", "1")
        archive.writestr(key, "1")
    for uri in ("memory://bucket/data", f"zip://::{tmp_path}/data.zip"):
        with pytest.raises(DataError, match=f"{re.escape(uri)}: names a file outside of it: '{key}'"), local_copy(uri):
            pass


def test_name_from_a_file_stays_in_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    (folder / "link").symlink_to(tmp_path)
    (folder / "loop").symlink_to(folder / "loop")
    assert path_inside(folder, "train/a") == folder / "train/a"
    for name in ("", ".", "..", "../data2", "/etc/passwd", "train/../../x", "link/x", "a\0b"):
        with pytest.raises(DataError, match="names a file outside of it"):
            path_inside(folder, name)


@pytest.fixture(scope="module")
def larger_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough rows that ``prepare`` can be killed at many moments."""
    rng = np.random.default_rng(0)
    columns = {f"x{index}": rng.random(300_000, dtype=np.float32) for index in range(10)}
    folder = tmp_path_factory.mktemp("larger")
    pq.write_table(pa.table({**columns, "label": rng.integers(0, 2, 300_000)}), folder / "rows.parquet")
    return folder


def prepare_command(source: Path, out: Path) -> list[object]:
    return ["prepare", source, "--out", out, "--label", "label"]


def test_killed_prepare_leaves_no_manifest_and_runs_again(larger_source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    killed = 0
    for delay in (0.0, 0.02, 0.1, 0.25, 0.5):
        process = warm.server().popen(prepare_command(larger_source, out), dict(os.environ))
        wait_for_staging(out, process)
        time.sleep(delay)
        process.kill()
        process.wait()
        if process.returncode == -signal.SIGKILL:
            killed += 1
            assert not (out / "manifest.json").exists()
        else:
            shutil.rmtree(out)
    assert killed >= 2
    done = warm.server().run(prepare_command(larger_source, out))
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(out)
    assert sum(open_split(out, manifest, split).rows for split in manifest.splits) == 300_000
    assert sorted(os.listdir(out)) == ["manifest.json", "test", "train", "valid"]


def wait_for_staging(out: Path, process: warm.Forked) -> None:
    while process.poll() is None and not (out / PARTIAL).exists():
        time.sleep(0.005)


def test_full_disk_is_a_clear_error_and_leaves_nothing(larger_source: Path, small_disk: Path) -> None:
    out = small_disk / "out"
    done = warm.server().run(prepare_command(larger_source, out))
    assert done.returncode == 2, done.stderr
    assert f"error: {out}: the disk is full; nothing half-written was left" in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(small_disk) == []


def test_full_disk_while_a_file_is_written(small_disk: Path) -> None:
    def fill_up() -> None:
        with staged_file(small_disk / "scores.parquet") as aside, pq.ParquetWriter(aside, SCORES) as writer:
            for seed in range(100):
                scores = np.random.default_rng(seed).random(100_000, dtype=np.float32)
                writer.write_batch(pa.record_batch({"p": scores}))

    with pytest.raises(OutputError, match="the disk is full"):
        fill_up()
    assert os.listdir(small_disk) == []
