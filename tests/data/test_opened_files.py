"""How often source files are opened: of many small ones, and of those in a bucket, that takes most of the time."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, TrainResult, evaluate, prepare
from dkan_core.data.source import files, parquet_files
from dkan_core.data.source.files import AT_ONCE, stamp, stamps
from dkan_core.data.source.parquet_files import Stamped, open_in_order, open_stamped
from tests.data.tables import CONFIG, contents, make_rows, write

START_SECONDS = 240


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[list[str]]:
    fs = fsspec.filesystem("memory")
    paths = write(make_rows(), tmp_path / "raw", files=40)
    for path in paths:
        fs.pipe_file(f"/opened/{path.name}", path.read_bytes())
    yield [f"memory://opened/{path.name}" for path in paths]
    fs.rm("/opened", recursive=True)


def count_opened(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return what gets the thread that opens a file, each time that one is opened."""
    opened = []

    class Counted(pq.ParquetFile):  # type: ignore[misc]
        def __init__(self, *given: Any, **named: Any) -> None:
            opened.append(threading.current_thread())
            super().__init__(*given, **named)

    monkeypatch.setattr(pq, "ParquetFile", Counted)
    return opened


@pytest.mark.parametrize("place", ["local", "bucket", "local, without text"])
def test_file_is_opened_once_for_its_columns_and_once_in_each_pass(
    place: str, bucket: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_opened(monkeypatch)
    rows = make_rows().drop_columns("city") if place.endswith("without text") else make_rows()
    paths: Any = bucket if place == "bucket" else write(rows, tmp_path / "rows", files=40)
    prepare(paths, tmp_path / "out", CONFIG)
    assert len(opened) == 3 * len(paths)
    if place == "bucket":
        prepare(write(rows, tmp_path / "rows", files=40), tmp_path / "alone", CONFIG)
        alone = contents(tmp_path / "alone")
        assert all(alone[name] == data for name, data in contents(tmp_path / "out").items() if name != "manifest.json")


def test_small_file_of_a_bucket_is_fetched_at_once(
    bucket: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, asked = fsspec.filesystem("memory"), Counter[str]()

    def count(name: str, call: Any, path: str, *args: Any, **options: Any) -> Any:
        asked[name] += path.startswith("/opened/part-")
        return call(path, *args, **options)

    for name in ("info", "cat_file", "open"):
        monkeypatch.setattr(type(fs), name, staticmethod(partial(count, name, getattr(fs, name))))
    prepare("memory://opened", tmp_path / "out", CONFIG)
    each = {name: times // len(bucket) for name, times in asked.items()}
    assert each == {"info": 3, "cat_file": 3}, "once for its columns and once in each pass"


def test_times_are_read_with_the_files_opened_ahead(
    bucket: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = count_opened(monkeypatch)
    prepare(bucket, tmp_path / "out", replace(CONFIG, weight=None, split_by_time="row"))
    assert len(opened) == 4 * len(bucket)
    # The first of each pass says how long the footers are.
    assert opened.count(threading.current_thread()) == 4


def test_rows_that_are_evaluated_are_opened_once_in_each_pass(
    trained: TrainResult, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for number, path in enumerate(paths):
        pq.write_table(pq.read_table(source).slice(200 * number, 200), path)
    opened = count_opened(monkeypatch)
    evaluate(trained.model, paths, tmp_path / "out", explain=False, worst_errors=0)
    assert len(opened) == 2 * len(paths)


def test_files_of_a_bucket_are_opened_at_once_and_given_in_their_order(bucket: list[str]) -> None:
    together = threading.Barrier(AT_ONCE, timeout=START_SECONDS)
    asked = Counter[str]()

    def open_one(path: str) -> Stamped:
        asked[path] += 1
        if path in bucket[1 : 1 + AT_ONCE]:
            together.wait()
        return open_stamped(path)

    expected = [open_stamped(path).parquet.metadata for path in bucket]
    found = [opened.parquet.metadata for opened in open_in_order(open_one, bucket, bucket[0])]
    assert all(one.equals(other) for one, other in zip(found, expected, strict=True))
    assert asked == Counter(bucket)


def test_file_that_cannot_be_opened_is_named_after_those_before_it(bucket: list[str], tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/opened/part-017.parquet", b"nothing")
    fsspec.filesystem("memory").pipe_file("/opened/part-018.parquet", b"nothing")
    found = list[Stamped]()
    with pytest.raises(DataError, match=r"part-017\.parquet: not a complete Parquet file"):
        found.extend(open_in_order(open_stamped, bucket, bucket[0]))
    assert len(found) == 17


def test_files_with_long_footers_are_opened_one_by_one(bucket: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_files, "AHEAD_BYTES", 1000)
    threads = set()

    def open_one(path: str) -> Stamped:
        threads.add(threading.current_thread())
        return open_stamped(path)

    assert len(list(open_in_order(open_one, bucket, bucket[0]))) == len(bucket)
    assert threads == {threading.current_thread()}


def test_bucket_is_asked_for_several_stamps_at_once(bucket: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(AT_ONCE, timeout=START_SECONDS)

    def stamp_together(path: str) -> tuple[int, str]:
        if path in bucket[:AT_ONCE]:
            together.wait()
        return stamp(path)

    expected = [stamp(path) for path in bucket]
    monkeypatch.setattr(files, "stamp", stamp_together)
    assert stamps(bucket) == expected
