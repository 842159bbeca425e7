"""Preparation by many: what it refuses by name, and what it replaces."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import (
    ConfigError,
    DataError,
    OutputError,
    PrepareConfig,
    finish_preparation,
    fit_preparation,
    plan_preparation,
    prepare,
    prepare_part,
)
from dkan_core.data.format.manifest import read_manifest
from tests.data.stages import every_call, run
from tests.data.tables import CONFIG, contents, make_rows, replace_unnoticed, write


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "is nested too deeply"),
        ('{"format_version": 1', "is not valid JSON"),
        ('{"format_version": 4}', "is not a plan"),
        ('{"format_version": 1}', "is of another version of dkan"),
        ("[]", "is of another version of dkan"),
        ("seed", "was altered"),
        (b"\xff", "is not UTF-8"),
    ],
    ids=["nested", "half", "empty", "version", "list", "altered", "not UTF-8"],
)
def test_plan_that_cannot_be_trusted_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    uri = str(tmp_path / "out")
    plan_preparation(write(make_rows(900), tmp_path / "raw"), uri, CONFIG, parts=1)
    path = tmp_path / "out/.work/plan.json"
    content = path.read_text().replace('"seed": 0', '"seed": 1') if text == "seed" else text
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"plan\.json: {message}"):
        prepare_part(uri, "survey", 0)


def test_wrong_part_stage_and_number_of_parts_are_named(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", row_group_size=100)
    uri = str(tmp_path / "out")
    with pytest.raises(ConfigError, match=r"parts \(num_parts in Kubeflow\) must be at least 1, got 0"):
        plan_preparation(paths, uri, CONFIG, parts=0)
    with pytest.raises(ConfigError, match=r"parts \(num_parts in Kubeflow\) must be at most 64, got 65: each takes"):
        plan_preparation(paths, uri, CONFIG, parts=65)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=r"prepared_uri must be a path or URI .* got ' '"):
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
    with pytest.raises(DataError, match=r"part-002\.parquet: label column 'y' must hold 0, 1 or null; .*7 \(1 row\);"):
        prepare_part(uri, "survey", 2)


def test_what_only_the_whole_shows_is_found_in_fit(tmp_path: Path) -> None:
    # The statistics of the first file leave out NaN, and say nothing of its label.
    table = make_rows(900).set_column(3, "y", pa.array(np.repeat([np.nan, 0.0, 0.0], 300)))
    with pytest.raises(DataError, match=r"part-000\.parquet and 2 more files: .* 'y' has one class only in train"):
        run(write(table, tmp_path / "raw", files=3), tmp_path / "out", CONFIG, parts=3)


def test_source_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    paths = write(make_rows(900), tmp_path / "raw", files=3)
    uri = str(tmp_path / "out")
    plan_preparation(paths, uri, CONFIG, parts=3)
    os.utime(paths[1], (0, 0))
    prepare_part(uri, "survey", 0)
    with pytest.raises(DataError, match=r"part-001\.parquet: the source changed"):
        prepare_part(uri, "survey", 1)


@pytest.mark.parametrize("stage", ["survey", "encode"])
def test_source_that_is_replaced_by_one_of_the_same_size_and_time_is_an_error(tmp_path: Path, stage: str) -> None:
    paths = write(make_rows(900), tmp_path / "raw", files=3)
    calls = every_call(paths, str(tmp_path / "out"))
    for call in calls[: 1 if stage == "survey" else 5]:
        call()
    replace_unnoticed(paths[1])
    with pytest.raises(DataError, match=r"part-001\.parquet: the source changed"):
        calls[2 if stage == "survey" else 6]()


def test_shard_that_is_lost_meanwhile_is_an_error(tmp_path: Path) -> None:
    calls = every_call(write(make_rows(900), tmp_path / "raw", row_group_size=100), str(tmp_path / "out"))
    for call in calls[:-1]:
        call()
    next((tmp_path / "out/valid").iterdir()).unlink()
    with pytest.raises(DataError, match=r"valid/00000-of-00001\.safetensors: has changed since it was written"):
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
    with pytest.raises(OutputError, match="another preparation is in progress"):
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
            with pytest.raises(OutputError, match="which this command did not write"):
                plan_preparation(paths, str(out), CONFIG, parts=2, overwrite=overwrite)
        assert contents(out) == {name: b"mine"}
