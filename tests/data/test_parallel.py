"""Preparation by many: the bytes of ``prepare``, whatever the parts, their order, repeats and deaths."""

import contextlib
import itertools
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dkan_core import (
    DataError,
    PrepareConfig,
    plan_preparation,
    prepare,
    prepare_part,
)
from dkan_core.data.format import shard_writer
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.preparation import parallel, plan, statistics, task
from dkan_core.utils.storage.shared_folder import SharedFolder
from tests import warm
from tests.data.stages import every_call, run
from tests.data.tables import CONFIG, contents, make_rows, write

GROUPED = PrepareConfig(label=("z", "y"), group="site", drop=("row",), numeric_dtype="float16", seed=3)


def rich_rows(rows: int) -> pa.Table:
    """Rows with NaN and infinity in different places, both zeros, a rare label value, and a group."""
    rng = np.random.default_rng(rows)
    x = make_rows(rows)["x"].to_numpy().copy()
    late = rng.normal(size=rows)
    late[-1], x[rows // 2], x[rows // 3] = np.inf, np.nan, np.inf
    table = make_rows(rows).set_column(0, "x", pa.array(x))
    table = table.append_column("late", pa.array(late))
    table = table.append_column("change", pa.array(rng.normal(size=rows).round(1)))
    table = table.append_column("z", pa.array(rng.choice(np.array([0, 1, None]), rows).tolist(), pa.float64()))
    return table.append_column("site", pa.array([f"site {n}" for n in rng.integers(0, rows // 3, rows)]))


@contextlib.contextmanager
def small(shard_bytes: int = 20_000, sample: int = 1 << 18) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_writer, "SHARD_BYTES", shard_bytes)
        for module in (statistics, task, parallel):
            patch.setattr(module, "sample_rows", lambda columns: sample)
        yield


@settings(max_examples=8)
@given(
    rows=st.integers(300, 1500),
    files=st.integers(1, 5),
    group=st.integers(20, 2000),
    parts=st.integers(1, 12) | st.just(parallel.MAX_PARTS),
    shard_bytes=st.integers(2000, 50_000),
    sample=st.sampled_from([100, 1 << 18]),
    config=st.sampled_from([CONFIG, GROUPED]),
    seed=st.integers(0, 1000),
)
@example(rows=900, files=1, group=100, parts=1, shard_bytes=5000, sample=100, config=GROUPED, seed=0)
@example(rows=900, files=1, group=100, parts=2, shard_bytes=5000, sample=100, config=CONFIG, seed=1)
@example(rows=900, files=2, group=100, parts=3, shard_bytes=5000, sample=100, config=GROUPED, seed=2)
@example(rows=900, files=3, group=100, parts=7, shard_bytes=5000, sample=100, config=CONFIG, seed=3)
@example(rows=900, files=1, group=900, parts=64, shard_bytes=5000, sample=100, config=GROUPED, seed=4)
def test_same_bytes_as_prepare_whatever_the_parts_and_their_order(
    tmp_path_factory: Any,
    rows: int,
    files: int,
    group: int,
    parts: int,
    shard_bytes: int,
    sample: int,
    config: PrepareConfig,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("case")
    paths = write(rich_rows(rows), folder / "raw", files=files, row_group_size=group)
    with small(shard_bytes, sample):
        alone = prepare(paths, folder / "alone", config)
        together = run(paths, folder / "together", config, parts, seed)
    assert together == alone
    assert contents(folder / "together") == contents(folder / "alone")
    assert not (folder / "together" / ".work").exists()


@pytest.mark.parametrize("parts", [1, 2, 3, 7, parallel.MAX_PARTS])
def test_parts_cover_every_row_group_once_and_are_about_even(tmp_path: Path, parts: int) -> None:
    paths = write(make_rows(), tmp_path / "raw", files=3, row_group_size=50)
    planned = plan_preparation(paths, str(tmp_path / "out"), CONFIG, parts=parts)
    assert planned == list(range(min(parts, 60)))
    sizes = [prepare_part(str(tmp_path / "out"), "survey", part) for part in planned]
    assert sum(sizes) == 3000
    assert max(sizes) - min(sizes) <= 100


class KilledError(BaseException):
    """Stands for the end of a process."""


@contextlib.contextmanager
def dies_at(write_number: int) -> Iterator[None]:
    """Let the n-th file that is written from now on end the process half-way."""
    count, whole = itertools.count(), SharedFolder.staged

    @contextlib.contextmanager
    def staged(self: SharedFolder, name: str) -> Iterator[Path]:
        if next(count) == write_number:
            aside = self._aside()
            (Path(str(aside)) / "left-over").write_bytes(b"half")
            raise KilledError
        with whole(self, name) as file:
            yield file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SharedFolder, "staged", staged)
        yield


def test_a_call_that_is_killed_at_any_file_is_made_again(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", files=2, row_group_size=100)
    uri, killed = str(tmp_path / "out"), 0
    with small(5000):
        prepare(paths, tmp_path / "alone", CONFIG)
        for call in every_call(paths, uri):
            for number in range(100):
                try:
                    with dies_at(number):
                        call()
                except KilledError:
                    killed += 1
                else:
                    break
            call()
    assert killed > 20
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


DIES_AT_FSYNC = (
    "import os, sys; os.fsync = lambda file: os.kill(os.getpid(), 9); from dkan_core.data.preparation.parallel import *"
)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1, "prepare_part(sys.argv[1], 'survey', 0)"),
        (4, "fit_preparation(sys.argv[1])"),
        (5, "prepare_part(sys.argv[1], 'encode', 0)"),
        (8, "prepare_part(sys.argv[1], 'assemble', 0)"),
        (11, "finish_preparation(sys.argv[1])"),
    ],
    ids=["survey", "fit", "encode", "assemble", "finish"],
)
def test_process_that_is_killed_before_its_file_is_whole_is_started_again(
    tmp_path: Path, number: int, text: str
) -> None:
    paths, uri = write(make_rows(900), tmp_path / "raw", files=2, row_group_size=100), str(tmp_path / "out")
    prepare(paths, tmp_path / "alone", CONFIG)
    for index, call in enumerate(every_call(paths, uri)):
        if index == number:
            process = warm.server().run(["-c", f"{DIES_AT_FSYNC}; {text}", uri])
            assert process.returncode == -signal.SIGKILL
        call()
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


def test_what_is_not_finished_is_no_result(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", row_group_size=100)
    uri = str(tmp_path / "out")
    for call in every_call(paths, uri)[:-1]:
        call()
        with pytest.raises(DataError, match=r"no manifest\.json"):
            read_manifest(tmp_path / "out")


def test_code_in_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/guides/data.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "plan_preparation" in block]
    write(make_rows(900).rename_columns(["x", "age", "city", "label", "row"]), tmp_path / "flights", files=4)
    exec(code.replace("s3://bucket", str(tmp_path)), {})
    prepare(tmp_path / "flights", tmp_path / "alone", PrepareConfig(label=("label",)))
    assert contents(tmp_path / "prepared") == contents(tmp_path / "alone")


def test_records_of_parts_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(make_rows(300), tmp_path / "raw", files=4)
    plan_preparation(paths, tmp_path / "out", CONFIG, parts=4)
    folder, planned = plan.open_plan(tmp_path / "out")
    assert isinstance(planned, plan.PreparationPlan)
    all_of_them = threading.Barrier(len(planned.parts), timeout=30)
    monkeypatch.setattr(folder, "read_json", lambda name: all_of_them.wait() >= 0 and name)
    assert plan.read_records(folder, planned, "survey") == [
        f"{planned.record('survey', part)}.json" for part in range(4)
    ]
