"""New rows join prepared data whole or not at all, and are encoded as what is there."""

import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import ConfigError, DataError, PrepareConfig, append_rows, prepare
from dkan_core.data.format import shard_writer
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.verification import verify
from dkan_core.data.preparation import statistics
from tests import warm
from tests.command import dkan
from tests.data.killed import KILLED_AT_FSYNC
from tests.data.tables import contents, make_rows, read, write

CONFIG = PrepareConfig(label=("y",), weight="row")
OLD, NEW = 900, 300


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Path], list[Path]]:
    """Files of old and of new rows, which are numbered on."""
    monkeypatch.setattr(shard_writer, "SHARD_BYTES", 3000)
    rows = make_rows(OLD + NEW)
    city = pa.array(["Paris" if n % 3 else None for n in range(NEW)])
    new = rows.slice(OLD).set_column(rows.column_names.index("city"), "city", city)
    return write(rows.slice(0, OLD), tmp_path / "old", files=2), write(new, tmp_path / "then", files=2)


def everything(folder: Path) -> dict[str, dict[int, bytes]]:
    """Return each row's arrays by split and number."""
    found = {}
    for split in read_manifest(folder).splits:
        arrays = read(folder, split)
        rows = zip(arrays["weight"], *(arrays[name] for name in ("numeric", "categorical", "labels")), strict=True)
        found[split] = {int(row): b"".join(part.tobytes() for part in parts) for row, *parts in rows}
    return found


def test_every_row_is_there_once_and_the_encoding_stays(raw: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    old, new = raw
    out = tmp_path / "out"
    before = prepare(old, out, CONFIG)
    rows, shards = everything(out), contents(out)
    after = append_rows(new, out, like=out)
    assert after == read_manifest(out) and after.preprocessor == before.preprocessor
    assert after.fingerprint != before.fingerprint and after.seed == before.seed
    joined = everything(out)
    assert sorted(number for split in joined.values() for number in split) == [*range(OLD + NEW)]
    assert all(rows[split].items() <= joined[split].items() for split in rows)
    assert {name: shards[name] for name in shards if name != "manifest.json"}.items() <= contents(out).items()
    assert verify(out).shards == sum(len(split.shards) for split in after.splits.values())
    assert sum(split.classes["y"]["1"] for split in after.splits.values()) == (OLD + NEW) // 2
    # As they are where all files are prepared at once.
    prepare([*old, *new], tmp_path / "whole", PrepareConfig(like=str(out), weight="row"))
    assert everything(tmp_path / "whole") == joined
    assert not (out / ".work").exists()


def test_rows_may_be_few_and_of_one_class_and_be_added_again_and_again(
    raw: tuple[list[Path], list[Path]], tmp_path: Path
) -> None:
    old, _ = raw
    prepare(old, tmp_path / "out", CONFIG)
    for count in range(1, 4):
        rows = make_rows(5, seed=count)
        ones = rows.set_column(rows.column_names.index("y"), "y", pa.array(np.ones(5, np.int8)))
        after = append_rows(write(ones, tmp_path / f"day-{count}"), tmp_path / "out")
        assert sum(split.rows for split in after.splits.values()) == OLD + 5 * count
    verify(tmp_path / "out")


KILLED = f"""{KILLED_AT_FSYNC}
from dkan_core import append_rows
from dkan_core.data.format import shard_writer
shard_writer.SHARD_BYTES = 3000
append_rows(sys.argv[3:], sys.argv[2])
"""


def test_killed_at_any_point_the_data_are_old_or_new(
    raw: tuple[list[Path], list[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = raw
    out = tmp_path / "out"
    before = prepare(old, out, CONFIG).fingerprint
    prepare(old, tmp_path / "alone", CONFIG)
    wanted = append_rows(new, tmp_path / "alone")

    class KilledError(BaseException):
        """What stands for a kill inside this process."""

    left = 0

    def die(handle: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KilledError

    kills = 0
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", die)
        for kills in range(1, 1000):
            left = kills
            try:
                append_rows(new, out)
                break
            except KilledError:
                assert read_manifest(out).fingerprint in (before, wanted.fingerprint)
                if read_manifest(out).fingerprint == wanted.fingerprint:
                    break
                verify(out)
    assert kills > len([shard for split in wanted.splits.values() for shard in split.shards if "append" in shard.path])
    assert everything(out) == everything(tmp_path / "alone")
    assert read_manifest(out) == wanted


def test_a_killed_process_leaves_what_the_next_one_replaces(raw: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    old, new = raw
    out = tmp_path / "out"
    before = prepare(old, out, CONFIG).fingerprint
    assert warm.server().run(["-c", KILLED, 5, out, *new]).returncode == -signal.SIGKILL
    assert read_manifest(out).fingerprint == before and list(out.rglob("append-*"))
    # Of other rows, fewer shards come: none of the killed process stays.
    append_rows(write(make_rows(9, seed=3), tmp_path / "few"), out)
    listed = {shard.path for split in read_manifest(out).splits.values() for shard in split.shards}
    assert {str(path.relative_to(out)) for path in out.rglob("*.safetensors")} == listed


def test_drift_is_measured_against_the_new_rows_too(raw: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    old, new = raw
    out, config = tmp_path / "out", PrepareConfig(label=("y",), group="row")
    before = prepare(old, out, config).preprocessor.counts
    after = append_rows(new, out).preprocessor.counts
    assert after != before
    whole = prepare([*old, *new], tmp_path / "whole", replace(config, like=str(out)))
    assert after == whole.preprocessor.counts


@pytest.mark.parametrize(("sampled", "then_sampled"), [(100, OLD), (OLD, 100)])
def test_rows_weigh_the_same_where_only_a_sample_is_counted(
    raw: tuple[list[Path], list[Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampled: int,
    then_sampled: int,
) -> None:
    old, new = raw
    monkeypatch.setattr(statistics, "MIN_SAMPLE_ROWS", 1)
    monkeypatch.setattr(statistics, "SAMPLE_ROWS", sampled)
    prepare(old, tmp_path / "out", CONFIG)
    monkeypatch.setattr(statistics, "SAMPLE_ROWS", then_sampled)
    after = append_rows(new, tmp_path / "out")
    assert after.preprocessor.counts is not None
    for counts in after.preprocessor.counts.values():
        assert sum(counts) == pytest.approx(after.splits["train"].rows, rel=0.1)


def test_infinite_values_among_new_rows_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    prepare(write(make_rows(OLD), tmp_path / "old"), tmp_path / "out", CONFIG)
    rows = make_rows(NEW)
    infinite = rows.set_column(rows.column_names.index("x"), "x", pa.array([np.inf] * NEW))
    append_rows(write(infinite, tmp_path / "new"), tmp_path / "out")
    assert "infinite values treated as missing in 1 column: 'x' (300 rows)" in caplog.text


def test_file_that_was_written_anew_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its rows may be those that are there, corrected."""
    prepare(write(make_rows(OLD), tmp_path / "night"), tmp_path / "out", CONFIG)
    append_rows(write(make_rows(NEW, seed=1), tmp_path / "other"), tmp_path / "out")
    assert "and stay" not in caplog.text
    append_rows(write(make_rows(NEW), tmp_path / "night"), tmp_path / "out")
    assert re.search(r"/night\S*': rows of an earlier version are there already, and stay", caplog.text)


def test_copy_of_an_earlier_file_is_refused(tmp_path: Path) -> None:
    [old] = write(make_rows(OLD), tmp_path / "old", files=1)
    prepare(old, tmp_path / "out", CONFIG)
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(old.read_bytes())
    with pytest.raises(DataError, match=r"copy\.parquet: its rows are already there \(it is a copy of .*old"):
        append_rows(copy, tmp_path / "out")
    # What the earlier file holds now is not what is there.
    copy.write_bytes(write(make_rows(OLD, seed=1), tmp_path / "old", files=1)[0].read_bytes())
    append_rows(copy, tmp_path / "out")
    assert sum(split.rows for split in read_manifest(tmp_path / "out").splits.values()) == 2 * OLD


def test_what_does_not_fit_is_refused_and_changes_nothing(raw: tuple[list[Path], list[Path]], tmp_path: Path) -> None:
    old, new = raw
    out = tmp_path / "out"
    prepare(old, out, CONFIG)
    before = contents(out)
    prepare(new, tmp_path / "other", PrepareConfig(label=("y",), weight="row"))
    rows = make_rows(50)
    lacking = write(rows.drop(["city"]), tmp_path / "lacking")
    wrong = write(rows.set_column(rows.column_names.index("y"), "y", pa.array([5] * 50)), tmp_path / "wrong")
    with pytest.raises(ConfigError, match="has another encoding than"):
        append_rows(new, out, like=tmp_path / "other")
    with pytest.raises(DataError, match="column 'city' is missing"):
        append_rows(lacking, out)
    with pytest.raises(DataError, match=r"label column 'y' must hold 0, 1 or null; found 5.*; those of .* are 0 and 1"):
        append_rows(wrong, out)
    with pytest.raises(DataError, match="its rows are already there"):
        append_rows(old, out)
    with pytest.raises(DataError, match=r"no manifest\.json there"):
        append_rows(new, tmp_path / "nothing")
    assert {name: each for name, each in contents(out).items() if not name.startswith(".")} == before
    prepare(old, tmp_path / "timed", PrepareConfig(label=("y",), split_by_time="row"))
    with pytest.raises(ConfigError, match=r"split by row \(time\)"):
        append_rows(new, tmp_path / "timed")


def test_command_appends(
    raw: tuple[list[Path], list[Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    old, new = raw
    out = tmp_path / "out"
    prepare(old, out, PrepareConfig(label=("y",), group="row"))
    before = contents(out)
    assert dkan("prepare", *new, "--append", out, "--dry-run", monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert f"would add {NEW} rows of 2 files" in said and f"which has {OLD} rows\nlabels: y\n" in said
    assert contents(out) == before
    assert dkan("prepare", *new, "--append", out, "--like", out, monkeypatch=monkeypatch) == 0
    assert sum(split.rows for split in read_manifest(out).splits.values()) == OLD + NEW
    for arguments, message in (
        (["--append", out, "--out", tmp_path / "x"], "give --out or --append, not both"),
        (["--append", out, "--seed", "3"], "seed: --append uses the setting of"),
        (["--append", out, "--workers", "2"], "--append takes no --workers"),
        (["--append", out, "--dry-run"], "its rows are already there"),
        ([], "give --out"),
    ):
        assert dkan("prepare", *new, *arguments, monkeypatch=monkeypatch) == 2
        assert message in capsys.readouterr().err
