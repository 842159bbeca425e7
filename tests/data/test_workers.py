"""Preparation by several workers: the bytes of one go, whatever their number and whenever it is killed."""

import errno
import itertools
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dkan_core import ConfigError, DataError, PrepareConfig, prepare, prepare_part
from dkan_core.data.format import shard_writer
from dkan_core.data.preparation import prepare as preparation
from dkan_core.data.preparation import workers
from dkan_core.data.source import reading
from dkan_core.errors import UnreadableError
from dkan_core.utils.storage.shared_folder import WORK, SharedFolder
from tests import warm
from tests.data.killed import KILLED_AT_FSYNC
from tests.data.tables import CONFIG, contents, make_rows, write

PARTS = 9


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 3000)
    return write(make_rows(900), tmp_path / "raw", files=3, row_group_size=100)


@pytest.mark.parametrize("count", [1, 3])
def test_number_of_workers_changes_no_byte(source: list[Path], tmp_path: Path, count: int) -> None:
    fingerprint = prepare(source, tmp_path / "alone", CONFIG).fingerprint
    assert prepare(source, tmp_path / "out", CONFIG, workers=count).fingerprint == fingerprint
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


class KilledError(BaseException):
    """What stands for a kill inside this process."""


def test_each_part_that_was_whole_before_a_kill_is_done_once(
    source: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(source, tmp_path / "alone", CONFIG)
    staged = SharedFolder.staged
    done = Counter[tuple[str, int]]()
    files = killed = 0

    def count(out: Any, stage: Any, part: int) -> int:
        rows = prepare_part(out, stage, part)
        done[stage, part] += 1
        return rows

    def die(place: SharedFolder, name: str) -> Any:
        nonlocal files
        files += 1
        if files > 11:
            raise KilledError
        return staged(place, name)

    monkeypatch.setattr(workers, "prepare_part", count)
    monkeypatch.setattr(SharedFolder, "staged", die)
    while True:
        files = 0
        try:
            prepare(source, tmp_path / "out", CONFIG, workers=2)
        except KilledError:
            killed += 1
        else:
            break
    assert killed > 3
    assert len(done) == done.total() == 3 * PARTS
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


KILLED = f"""{KILLED_AT_FSYNC}
from dkan_core import PrepareConfig, prepare
from dkan_core.data.format import shard_writer
shard_writer.SHARD_BYTES = 3000
prepare(sys.argv[3:], sys.argv[2], PrepareConfig(label=("y",), weight="row"), workers=2)
"""


@pytest.mark.parametrize("files", [7, 45])
def test_killed_process_is_continued(source: list[Path], tmp_path: Path, files: int) -> None:
    killed = warm.server().run(["-c", KILLED, files, tmp_path / "out", *source])
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "out" / "manifest.json").exists()
    prepare(source, tmp_path / "out", CONFIG, workers=2)
    prepare(source, tmp_path / "alone", CONFIG)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


LARGE = f"""{KILLED_AT_FSYNC}
from dkan_core import PrepareConfig, prepare
from dkan_core.data.format import shard_writer
from dkan_core.data.preparation import prepare as preparation
shard_writer.SHARD_BYTES = 3000
preparation.RESUMABLE_VALUES = int(sys.argv[3])
prepare(sys.argv[4:], sys.argv[2], PrepareConfig(label=("y",), weight="row"))
"""


@pytest.mark.parametrize(("values", "continues"), [(2700, True), (2701, False)])
def test_only_large_data_are_prepared_so_that_the_same_command_continues(
    source: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: int, *, continues: bool
) -> None:
    killed = warm.server().run(["-c", LARGE, 12, tmp_path / "out", values, *source])
    assert killed.returncode == -signal.SIGKILL
    kept = [*(tmp_path / "out").glob(f"{WORK}/*/survey/*.json")]
    assert bool(kept) == continues
    monkeypatch.setattr(preparation, "RESUMABLE_VALUES", values)
    prepare(source, tmp_path / "out", CONFIG)
    prepare(source, tmp_path / "alone", CONFIG, workers=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_rows_that_cannot_be_prepared_leave_the_place_free(source: list[Path], tmp_path: Path) -> None:
    bad = write(pa.table({"x": [1.0, 2.0, 3.0] * 50, "y": [0, 1, 7] * 50}), tmp_path / "bad")
    with pytest.raises(DataError, match=r"label column 'y' must hold 0, 1 or null; found .*7 \(50 rows\)"):
        prepare(bad, tmp_path / "out", PrepareConfig(label=("y",)), workers=2)
    prepare(source, tmp_path / "out", CONFIG, workers=2)


def test_lost_connection_keeps_the_parts_that_are_whole(
    source: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike rows that are refused, a file that cannot be reached for a while may be read by the next attempt."""
    prepare(source, tmp_path / "alone", CONFIG)
    reads, next_batch = itertools.count(), reading.next_batch

    def reset_once(batches: Iterator[pa.RecordBatch], plain: pa.Schema, path: str) -> pa.RecordBatch | None:
        return next_batch(iter(_lose_connection, None) if next(reads) == 20 else batches, plain, path)

    monkeypatch.setattr(reading, "next_batch", reset_once)
    with pytest.raises(UnreadableError, match=r"cannot be read to the end \(.*Connection reset by peer"):
        prepare(source, tmp_path / "out", CONFIG, workers=1)
    assert list((tmp_path / "out" / WORK).glob("**/survey/*.json")), "parts that are whole"
    prepare(source, tmp_path / "out", CONFIG, workers=1)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def _lose_connection() -> None:
    raise OSError(errno.ECONNRESET, "Connection reset by peer")


def test_negative_number_of_workers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="workers must be at least 0, got -1"):
        prepare("rows.parquet", tmp_path / "out", CONFIG, workers=-1)
