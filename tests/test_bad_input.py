"""Bad sources and settings through ``dkan prepare``: exit code 2, the wrong thing named, nothing left behind."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command import check, dkan

ROWS = 400
Change = Callable[[Path], object]


def rows(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {"x": rng.normal(size=ROWS), "city": rng.choice(["Oslo", "Rome"], ROWS), "label": np.arange(ROWS) % 2}
    return pa.table(columns)


def write(path: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, path, **options)


def second(change: Callable[[pa.Table], pa.Table]) -> Change:
    """Change the second of two files."""
    return lambda raw: write(raw / "b.parquet", change(rows(1)))


def both(change: Callable[[pa.Table], pa.Table]) -> Change:
    """Change both files."""
    return lambda raw: [write(raw / name, change(rows(seed))) for seed, name in enumerate(("a.parquet", "b.parquet"))]


def put(table: pa.Table, name: str, values: Any) -> pa.Table:
    values = values if isinstance(values, pa.Array) else pa.array(values)
    if name in table.schema.names:
        return table.set_column(table.schema.names.index(name), name, values)
    return table.append_column(name, values)


def with_column(name: str, values: Any) -> Change:
    return both(lambda table: put(table, name, values))


def truncated(raw: Path) -> None:
    content = (raw / "b.parquet").read_bytes()
    (raw / "b.parquet").write_bytes(content[: len(content) // 2])


def flipped_bit(raw: Path) -> None:
    write(raw / "b.parquet", rows(1), write_page_checksum=True, compression="none", use_dictionary=False)
    content = bytearray((raw / "b.parquet").read_bytes())
    content[1000] ^= 1
    (raw / "b.parquet").write_bytes(content)


def emptied(raw: Path) -> None:
    for path in raw.iterdir():
        path.unlink()


def not_utf8(name: str, *, encoded: bool = False) -> Change:
    """Put strings into a column that are no UTF-8, as writers leave them that do not look."""
    values = pa.array([b"ok", b"caf\xe9"] * (ROWS // 2), pa.binary())
    texts = pa.Array.from_buffers(pa.string(), ROWS, values.buffers())
    return both(lambda table: put(table, name, texts.dictionary_encode() if encoded else texts))


def pipe(raw: Path) -> None:
    os.mkfifo(raw / "c.parquet")


def config_file(content: str) -> Change:
    return lambda raw: (raw.parent / "settings.toml").write_text(content)


def nothing(raw: Path) -> None:
    """Leave the files as they are."""


LABEL = ["--label", "label"]
CONFIG = ["--config", "{raw}/../settings.toml"]
SOME_NULL = pa.array([None, *[1] * (ROWS - 1)])
LISTS = [[1]] * ROWS

# What is changed in the files; the options; the source, where it is not the folder; what the message says.
PREPARE: dict[str, tuple[Change, list[str], str | None, str]] = {
    "no such path": (nothing, LABEL, "{raw}/none.parquet", r"raw/none\.parquet: no such file or folder"),
    "no such folder": (nothing, LABEL, "{raw}/none", r"raw/none: no such file or folder"),
    "glob without a match": (nothing, LABEL, "{raw}/*.pq", r"raw/\*\.pq: no Parquet files"),
    "folder without Parquet": (emptied, LABEL, None, r"raw: no Parquet files there"),
    "unknown scheme": (nothing, LABEL, "nfs9://host/x", r"nfs9://host/x: .*nfs9"),
    "no rows": (both(lambda t: t.slice(0, 0)), LABEL, None, r"a\.parquet: no rows in any source file"),
    "no label": (nothing, [], None, r"label: name at least one"),
    "label missing": (
        nothing,
        ["--label", "lable"],
        None,
        r"label column 'lable' does not exist; did you mean 'label'",
    ),
    "label with 2": (with_column("label", [0, 1, 1, 2] * 100), LABEL, None, r"'label' .*0, 1 or null; .*2 200 times"),
    "label of text": (
        with_column("label", ["yes", "no"] * 200),
        LABEL,
        None,
        r"'label' .*0, 1 or null; .*'yes' 400 times",
    ),
    "label with NaN": (
        with_column("label", [0.0, 1.0, float("nan"), 1.0] * 100),
        LABEL,
        None,
        r"'label'.*nan 200 times",
    ),
    "label of lists": (
        with_column("label", LISTS),
        LABEL,
        None,
        r"label column 'label' is list.*expected 0, 1 or null",
    ),
    "label of nulls": (
        with_column("label", pa.nulls(ROWS)),
        LABEL,
        None,
        r"'label' has one class only in train: no measured",
    ),
    "one class": (with_column("label", [1] * ROWS), LABEL, None, r"'label' has one class only in train: 1 [\d]+ times"),
    "one class in test": (
        both(
            lambda t: put(
                put(t, "label", [0, 1, 0, 1, 1] * 80), "part", ["train", "train", "valid", "valid", "test"] * 80
            )
        ),
        [*LABEL, "--split-column", "part"],
        None,
        r"'label' has one class only in test: 1 160 times",
    ),
    "text of other encoding": (
        not_utf8("city"),
        LABEL,
        None,
        r"a\.parquet: column 'city' holds text that is not UTF-8",
    ),
    "dictionary of other encoding": (
        not_utf8("city", encoded=True),
        LABEL,
        None,
        r"column 'city' holds text that is not",
    ),
    "group of other encoding": (
        not_utf8("g"),
        [*LABEL, "--group", "g"],
        None,
        r"column 'g' holds text that is not UTF-8",
    ),
    "split of other encoding": (not_utf8("s"), [*LABEL, "--split-column", "s"], None, r"column 's' holds text that is"),
    "label of other encoding": (not_utf8("label"), LABEL, None, r"column 'label' holds text that is not UTF-8"),
    "pipe in a folder": (pipe, LABEL, None, r"raw/c\.parquet: is no regular file"),
    "pipe": (pipe, LABEL, "{raw}/c.parquet", r"raw/c\.parquet: is no regular file"),
    "device": (nothing, LABEL, "/dev/zero", r"/dev/zero: is no regular file"),
    "empty source": (nothing, LABEL, "", r"'' names no file or folder"),
    "source of NUL": (nothing, LABEL, "{raw}\0", r"names no file or folder"),
    "name too long": (nothing, LABEL, "{raw}/" + "x" * 300, r"raw/x{300}: no such file or folder"),
    "out with a name too long": (
        nothing,
        [*LABEL, "--out", "{raw}/" + "x" * 300],
        None,
        r"raw/x{300}: cannot be written \(Fi",
    ),
    "empty out": (nothing, [*LABEL, "--out", ""], None, r"'' names no folder to write to"),
    "one label for two roles": (nothing, [*LABEL, "--drop", "label"], None, r"'label' is named for two roles"),
    "column missing": (
        second(lambda t: t.drop_columns("x")),
        LABEL,
        None,
        r"b\.parquet: column 'x' is missing; .*a\.parquet",
    ),
    "column extra": (
        second(lambda t: put(t, "y", LISTS)),
        LABEL,
        None,
        r"b\.parquet: column 'y' is extra; .*a\.parquet",
    ),
    "other type": (
        second(lambda t: put(t, "x", ["1"] * ROWS)),
        LABEL,
        None,
        r"b\.parquet: column 'x' is string; .* double",
    ),
    "duplicate column": (
        second(lambda t: t.append_column("x", t["x"])),
        LABEL,
        None,
        r"b\.parquet: column 'x' stands there 2 times",
    ),
    "truncated": (truncated, LABEL, None, r"b\.parquet: not a whole Parquet file"),
    "empty file": (
        lambda raw: (raw / "b.parquet").write_bytes(b""),
        LABEL,
        None,
        r"b\.parquet: not a whole Parquet file",
    ),
    "no Parquet inside": (
        lambda raw: (raw / "b.parquet").write_text("x,y\n1,2\n"),
        LABEL,
        None,
        r"b\.parquet: not a whole",
    ),
    "flipped bit": (flipped_bit, LABEL, None, r"b\.parquet: cannot be read to its end"),
    "null feature": (with_column("z", pa.nulls(ROWS, pa.float64())), LABEL, None, r"'z' holds no value .* --drop z"),
    "null text": (with_column("z", pa.nulls(ROWS, pa.string())), LABEL, None, r"'z' holds no value .* --drop z"),
    "null type": (
        with_column("z", pa.nulls(ROWS)),
        LABEL,
        None,
        r"'z' is null; a feature is a number, string or boolean",
    ),
    "NaN feature": (with_column("z", [float("nan")] * ROWS), LABEL, None, r"'z' holds no value"),
    "identifier": (
        both(lambda t: put(t, "key", [f"{value:.17}" for value in t["x"].to_pylist()])),
        LABEL,
        None,
        r"'key' looks like an identifier .* --drop key",
    ),
    "integers that floats cannot tell apart": (
        with_column("key", pa.array(range(2**60, 2**60 + ROWS))),
        LABEL,
        None,
        r"'key' has \d+ different values, which are only \d+ as 64-bit floats: .* --drop key",
    ),
    "decimals that floats cannot tell apart": (
        with_column("price", pa.array([Decimal(f"1234567890123456.{n:03}") for n in range(ROWS)])),
        LABEL,
        None,
        r"'price' has \d+ different values, which are only \d+ as 64-bit floats: .* --drop price",
    ),
    "feature of lists": (with_column("z", LISTS), LABEL, None, r"'z' is list<.*a feature is a number"),
    "time feature": (with_column("z", pa.array(range(ROWS), pa.timestamp("s"))), LABEL, None, r"'z' is timestamp"),
    "no feature": (nothing, [*LABEL, "--drop", "x", "--drop", "city"], None, r"no feature column is left"),
    "drop missing": (
        nothing,
        [*LABEL, "--drop", "cty"],
        None,
        r"drop column 'cty' does not exist; did you mean 'city'",
    ),
    "group missing": (
        nothing,
        [*LABEL, "--group", "patient"],
        None,
        r"group column 'patient' does not exist; columns are x",
    ),
    "group null": (
        with_column("g", SOME_NULL),
        [*LABEL, "--group", "g"],
        None,
        r"a\.parquet: group column 'g' is null in 1 row",
    ),
    "group of lists": (with_column("g", LISTS), [*LABEL, "--group", "g"], None, r"group column 'g' is list"),
    "group of bytes": (
        with_column("g", [b"\xff"] * ROWS),
        [*LABEL, "--group", "g"],
        None,
        r"group column 'g' is binary",
    ),
    "group and split column": (
        nothing,
        [*LABEL, "--group", "x", "--split-column", "city"],
        None,
        r"'city' already decides",
    ),
    "split value": (
        nothing,
        [*LABEL, "--split-column", "city"],
        None,
        r"a\.parquet: split column 'city' must hold .*Oslo",
    ),
    "split type": (nothing, [*LABEL, "--split-column", "x"], None, r"split column 'x' is double; expected a string"),
    "split null": (
        with_column("part", pa.array([None, *["train"] * (ROWS - 1)])),
        [*LABEL, "--split-column", "part"],
        None,
        r"split column 'part' must hold .*None \(1 rows\)",
    ),
    "no valid rows": (
        with_column("part", ["train"] * ROWS),
        [*LABEL, "--split-column", "part"],
        None,
        r"no rows in the valid split",
    ),
    "split of two": (nothing, [*LABEL, "--split", "80/20"], None, r"split must be three whole percentages .*'80/20'"),
    "weight negative": (
        with_column("w", [-1.0, *[1.0] * 399]),
        [*LABEL, "--weight", "w"],
        None,
        r"a\.parquet: weight .*'w' .*1 rows",
    ),
    "weight null": (with_column("w", SOME_NULL), [*LABEL, "--weight", "w"], None, r"a\.parquet: weight .*'w' .*1 rows"),
    "weight of text": (
        nothing,
        [*LABEL, "--weight", "city"],
        None,
        r"weight column 'city' is string; expected a number",
    ),
    "numeric dtype": (nothing, [*LABEL, "--numeric-dtype", "int8"], None, r"int8"),
    "unknown option": (nothing, [*LABEL, "--lable", "x"], None, r"--lable"),
    "unknown setting": (
        config_file("labels = ['label']"),
        [*LABEL, *CONFIG],
        None,
        r"unknown setting 'labels'; known are label",
    ),
    "setting of another type": (config_file("seed = 'one'"), [*LABEL, *CONFIG], None, r"seed must be int, got 'one'"),
    "config not TOML": (config_file("seed ="), [*LABEL, *CONFIG], None, r"config file .*settings\.toml: "),
    "config missing": (nothing, [*LABEL, *CONFIG], None, r"config file .*settings\.toml: no such file"),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two sound files of two features and a label."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for seed, name in enumerate(("a.parquet", "b.parquet")):
        write(folder / name, rows(seed))
    return folder


@pytest.mark.parametrize("case", PREPARE)
def test_prepare(case: str, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    change, options, source, message = PREPARE[case]
    change(raw)
    before = sorted(tmp_path.rglob("*"))
    options = [option.replace("{raw}", str(raw)) for option in options]
    source = ("{raw}" if source is None else source).replace("{raw}", str(raw))
    code = dkan("prepare", source, "--out", tmp_path / "out", *options, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert sorted(tmp_path.rglob("*")) == before


WITHOUT_RIGHTS = [
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
]


@pytest.mark.parametrize("case", ["file", "folder", "folder in a folder", "output"])
def test_what_may_not_be_read_or_written_is_named(case: str, raw: Path, tmp_path: Path) -> None:
    (raw / "more").mkdir()
    locked = {"file": raw / "b.parquet", "folder": raw, "folder in a folder": raw / "more", "output": tmp_path / "out"}[
        case
    ]
    (tmp_path / "out").mkdir()
    locked.chmod(0)
    rights = WITHOUT_RIGHTS if os.geteuid() == 0 else []
    if rights and (shutil.which(rights[0]) is None or subprocess.run([*rights, "true"], check=False).returncode):
        pytest.skip("root cannot give up its rights here")
    command = [sys.executable, "-m", "dkan_core", "prepare", str(raw), "--out", str(tmp_path / "out"), *LABEL]
    done = subprocess.run([*rights, *command], capture_output=True, text=True, check=False)
    locked.chmod(0o755)
    check(done.returncode, done.stderr, rf"{locked}: .*Permission denied")
    assert list((tmp_path / "out").iterdir()) == []


def test_sound_files_are_accepted(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes above are what is refused, not the files they start from."""
    assert dkan("prepare", raw, "--out", tmp_path / "out", *LABEL, monkeypatch=monkeypatch) == 0
    assert (tmp_path / "out/manifest.json").exists()


OUT: dict[str, tuple[str, list[str], str]] = {
    "something else": ("notes.txt", [], r"out: already holds something else \(notes\.txt\)"),
    "something else, overwrite": ("notes.txt", ["--overwrite"], r"out: already holds something else \(notes\.txt\)"),
    "own folder named train": ("train/mine.parquet", ["--overwrite"], r"out: already holds something else \(train\)"),
    "earlier result": ("manifest.json", [], r"out: already holds an earlier result; pass --overwrite"),
}


@pytest.mark.parametrize("case", OUT)
def test_out_folder_is_left_alone(case: str, raw: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    name, options, message = OUT[case]
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    (tmp_path / "out" / name).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code = dkan("prepare", raw, "--out", tmp_path / "out", *LABEL, *options, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "out" / name).read_text() == "mine"


def test_out_that_is_a_file_is_left_alone(raw: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "out").write_text("mine")
    code = dkan("prepare", raw, "--out", tmp_path / "out", *LABEL, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, r"out: is a file; expected a folder")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("case", ["truncated", "label with 2", "unknown setting"])
def test_as_a_process(case: str, raw: Path, tmp_path: Path) -> None:
    change, options, _, message = PREPARE[case]
    change(raw)
    options = [option.replace("{raw}", str(raw)) for option in options]
    command = [sys.executable, "-m", "dkan_core", "prepare", str(raw), "--out", str(tmp_path / "out"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    check(done.returncode, done.stderr, message)
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()
