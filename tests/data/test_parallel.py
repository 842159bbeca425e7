"""Preparation by many: the bytes of ``prepare``, whatever the parts, their order, repeats and deaths."""

import contextlib
import itertools
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dkan_core import (
    ConfigError,
    DataError,
    OutputError,
    PrepareConfig,
    PreparedData,
    finish_preparation,
    fit_preparation,
    plan_preparation,
    prepare,
    prepare_part,
)
from dkan_core.data import parallel, shards, statistics
from dkan_core.data.manifest import read_manifest
from dkan_core.data.workplace import Workplace
from tests.data.tables import CONFIG, contents, make_rows, write

GROUPED = PrepareConfig(label=("z", "y"), group="site", drop=("row",), numeric_dtype="float16", seed=3)


def rich_rows(rows: int) -> pa.Table:
    """Rows with NaN and infinity in different places, a rare label value, and a group."""
    rng = np.random.default_rng(rows)
    x = make_rows(rows)["x"].to_numpy().copy()
    late = rng.normal(size=rows)
    late[-1], x[rows // 2], x[rows // 3] = np.inf, np.nan, np.inf
    table = make_rows(rows).set_column(0, "x", pa.array(x))
    table = table.append_column("late", pa.array(late))
    table = table.append_column("z", pa.array(rng.choice([0, 1, None], rows).tolist(), pa.float64()))
    return table.append_column("site", pa.array([f"site {n}" for n in rng.integers(0, rows // 3, rows)]))


def run(
    sources: Any, out: Path | str, config: PrepareConfig, parts: int, seed: int = 0, **options: Any
) -> PreparedData:
    """Take every stage, its parts in any order and some of them twice."""
    uri, shuffle = str(out), random.Random(seed)
    planned = plan_preparation(sources, uri, config, parts=parts, **options)

    def stage(name: Any) -> None:
        twice = planned + shuffle.sample(planned, len(planned) // 2)
        for part in shuffle.sample(twice, len(twice)):
            prepare_part(uri, name, part)

    stage("survey")
    fit_preparation(uri)
    stage("encode")
    stage("assemble")
    return finish_preparation(uri)


@contextlib.contextmanager
def small(shard_bytes: int = 20_000, sample: int = 1 << 18) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_BYTES", shard_bytes)
        patch.setattr(statistics, "sample_rows", lambda columns: sample)
        patch.setattr(parallel, "sample_rows", lambda columns: sample)
        yield


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(300, 1500),
    files=st.integers(1, 5),
    group=st.integers(20, 2000),
    parts=st.integers(1, 12) | st.just(1000),
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


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 500])
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
    count, whole = itertools.count(), Workplace.staged

    @contextlib.contextmanager
    def staged(self: Workplace, name: str) -> Iterator[Path]:
        if next(count) == write_number:
            aside = self._aside()
            (Path(str(aside)) / "left-over").write_bytes(b"half")
            raise KilledError
        with whole(self, name) as file:
            yield file

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Workplace, "staged", staged)
        yield


def every_call(paths: list[Path], uri: str) -> list[Callable[[], object]]:
    parts = range(3)
    each = {
        stage: [lambda stage=stage, part=part: prepare_part(uri, stage, part) for part in parts]
        for stage in ("survey", "encode", "assemble")
    }
    return [
        lambda: plan_preparation(paths, uri, CONFIG, parts=3),
        *each["survey"],
        lambda: fit_preparation(uri),
        *each["encode"],
        *each["assemble"],
        lambda: finish_preparation(uri),
    ]


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


def test_what_is_not_finished_is_no_result(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", row_group_size=100)
    uri = str(tmp_path / "out")
    for call in every_call(paths, uri)[:-1]:
        call()
        with pytest.raises(DataError, match=r"no manifest\.json"):
            read_manifest(tmp_path / "out")


def test_stage_that_comes_too_early_says_what_is_missing(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", row_group_size=100)
    uri = str(tmp_path / "out")
    for early in (
        lambda: prepare_part(uri, "survey", 0),
        lambda: fit_preparation(uri),
        lambda: finish_preparation(uri),
    ):
        with pytest.raises(DataError, match="plan_preparation comes first"):
            early()
    plan_preparation(paths, uri, CONFIG, parts=3)
    prepare_part(uri, "survey", 1)
    with pytest.raises(DataError, match="parts 0, 2 of 3 not surveyed yet"):
        fit_preparation(uri)
    for early in (lambda: prepare_part(uri, "encode", 0), lambda: finish_preparation(uri)):
        with pytest.raises(DataError, match="fit_preparation comes first"):
            early()
    for part in range(3):
        prepare_part(uri, "survey", part)
    fit_preparation(uri)
    prepare_part(uri, "encode", 0)
    prepare_part(uri, "encode", 1)
    with pytest.raises(DataError, match="part 2 of 3 not encoded yet"):
        prepare_part(uri, "assemble", 0)
    prepare_part(uri, "encode", 2)
    prepare_part(uri, "assemble", 0)
    with pytest.raises(DataError, match="parts 1, 2 of 3 not assembled yet"):
        finish_preparation(uri)


def test_wrong_part_stage_and_number_of_parts_are_named(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", row_group_size=100)
    uri = str(tmp_path / "out")
    with pytest.raises(ConfigError, match="parts must be at least 1, got 0"):
        plan_preparation(paths, uri, CONFIG, parts=0)
    with pytest.raises(ConfigError, match=r"prepared_uri must be a folder or URI .* got ' '"):
        plan_preparation(paths, " ", CONFIG, parts=3)
    plan_preparation(paths, uri, CONFIG, parts=3)
    with pytest.raises(ConfigError, match="part must be from 0 to 2, got 3"):
        prepare_part(uri, "survey", 3)
    with pytest.raises(ConfigError, match="stage must be one of survey, encode, assemble, got 'scatter'"):
        prepare_part(uri, "scatter", 0)  # type: ignore[arg-type]


def test_bad_rows_are_named_by_their_own_file(tmp_path: Path) -> None:
    table = make_rows(900)
    y = table["y"].to_numpy().copy()
    y[800] = 7
    paths = write(table.set_column(3, "y", pa.array(y)), tmp_path / "raw", files=3)
    uri = str(tmp_path / "out")
    plan_preparation(paths, uri, CONFIG, parts=3)
    prepare_part(uri, "survey", 0)
    with pytest.raises(DataError, match=r"part-002\.parquet: label column 'y' must hold 0, 1 or null; .*7 1 times"):
        prepare_part(uri, "survey", 2)


def test_what_only_the_whole_shows_is_found_in_fit(tmp_path: Path) -> None:
    table = make_rows(900).set_column(3, "y", pa.array(np.zeros(900, np.int8)))
    with pytest.raises(DataError, match=r"3 files from .* 'y' has one class only in train"):
        run(write(table, tmp_path / "raw", files=3), tmp_path / "out", CONFIG, parts=3)


def test_source_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", files=3)
    uri = str(tmp_path / "out")
    plan_preparation(paths, uri, CONFIG, parts=3)
    os.utime(paths[1], (0, 0))
    prepare_part(uri, "survey", 0)
    with pytest.raises(DataError, match=r"part-001\.parquet: the source changed"):
        prepare_part(uri, "survey", 1)


def test_shard_that_is_lost_meanwhile_is_an_error(tmp_path: Path) -> None:
    calls = every_call(write(make_rows(900), tmp_path / "raw", row_group_size=100), str(tmp_path / "out"))
    for call in calls[:-1]:
        call()
    next((tmp_path / "out/valid").iterdir()).unlink()
    with pytest.raises(DataError, match=r"valid/00000-of-00001\.safetensors: is not as it was written"):
        calls[-1]()


def test_only_the_same_data_and_settings_replace_an_earlier_result_unasked(tmp_path: Path) -> None:
    paths, out = write(make_rows(900), tmp_path / "raw", files=3), tmp_path / "out"
    run(paths, out, CONFIG, parts=3)
    before = contents(out)
    run(paths, out, CONFIG, parts=2)
    assert contents(out) == before
    other = PrepareConfig(label=("y",), seed=1)
    for sources, config in ((paths, other), (paths[:2], CONFIG), (paths, PrepareConfig(label=("y",), drop=("row",)))):
        with pytest.raises(OutputError, match=r"overwrite=True"):
            plan_preparation(sources, str(out), config, parts=3)
    assert contents(out) == before
    prepare(paths, tmp_path / "alone", other)
    run(paths, out, other, parts=3, overwrite=True)
    assert contents(out) == contents(tmp_path / "alone")


def test_earlier_result_stays_until_the_new_data_are_checked(tmp_path: Path) -> None:
    paths, out = write(make_rows(900), tmp_path / "raw", files=3), tmp_path / "out"
    earlier = prepare(paths, out, CONFIG)
    wrong = write(make_rows(900).set_column(3, "y", pa.array(np.zeros(900, np.int8))), tmp_path / "wrong")
    with pytest.raises(DataError):
        run(wrong, out, CONFIG, parts=3, overwrite=True)
    assert read_manifest(out) == earlier
    assert all((out / shard.path).stat().st_size == shard.bytes for shard in earlier.splits["train"].shards)


def test_another_preparation_under_way_is_given_up_only_when_asked(tmp_path: Path) -> None:
    paths, out = write(make_rows(900), tmp_path / "raw", files=3), tmp_path / "out"
    for call in every_call(paths, str(out))[:-2]:
        call()
    with pytest.raises(OutputError, match="another preparation is under way"):
        plan_preparation(paths, str(out), CONFIG, parts=2)
    run(paths, out, CONFIG, parts=2, overwrite=True)
    prepare(paths, tmp_path / "alone", CONFIG)
    assert contents(out) == contents(tmp_path / "alone")


def test_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", files=3)
    for name in ("train/rows.csv", "notes.txt"):
        out = tmp_path / name[:5]
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="something else"):
                plan_preparation(paths, str(out), CONFIG, parts=2, overwrite=overwrite)
        assert contents(out) == {name: b"mine"}


def test_finish_again_returns_the_result(tmp_path: Path) -> None:
    paths, out = write(make_rows(900), tmp_path / "raw", files=3), tmp_path / "out"
    made = run(paths, out, CONFIG, parts=2)
    assert finish_preparation(str(out)) == made


def test_code_in_the_documentation_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "plan_preparation" in block]
    write(make_rows(900).rename_columns(["x", "age", "city", "label", "row"]), tmp_path / "flights", files=4)
    exec(code.replace("s3://bucket", str(tmp_path)), {})
    prepare(tmp_path / "flights", tmp_path / "alone", PrepareConfig(label=("label",)))
    assert contents(tmp_path / "prepared") == contents(tmp_path / "alone")
