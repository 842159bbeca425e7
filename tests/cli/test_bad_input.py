"""Bad sources through ``dkan prepare``: exit code 2, the wrong thing named, nothing left behind."""

import gzip
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyarrow.parquet.encryption import CryptoFactory, EncryptionConfiguration, KmsClient, KmsConnectionConfig

from tests.cli.refusals import (
    LABEL,
    LISTS,
    ROWS,
    Case,
    both,
    check_refused,
    not_utf8,
    nothing,
    put,
    rows,
    second,
    with_column,
    write,
    write_files,
)
from tests.command import check, dkan


def truncated(raw: Path) -> None:
    content = (raw / "b.parquet").read_bytes()
    (raw / "b.parquet").write_bytes(content[: len(content) // 2])


def flipped_bit(raw: Path) -> None:
    write(raw / "b.parquet", rows(1), write_page_checksum=True, compression="none", use_dictionary=False)
    content = bytearray((raw / "b.parquet").read_bytes())
    content[1000] ^= 1
    (raw / "b.parquet").write_bytes(content)


def name_not_utf8(raw: Path) -> None:
    content = (raw / "b.parquet").read_bytes()
    assert b"city" in content
    (raw / "b.parquet").write_bytes(content.replace(b"city", b"cit\x80"))


def wide_integers(raw: Path) -> None:
    """Say in the footer that integers have 128 bits, which no type of Arrow has."""
    integers = rows().select(["label"])
    write(raw / "b.parquet", integers)
    stored = integers.schema.serialize().to_pybytes()
    wide = stored.replace((64).to_bytes(4, "little"), (128).to_bytes(4, "little"))
    content = (raw / "b.parquet").read_bytes()
    (raw / "b.parquet").write_bytes(content.replace(b64encode(stored), b64encode(wide)))


class Keys(KmsClient):  # type: ignore[misc]  # pyarrow has no types
    """Keeps the keys of columns as they are."""

    def __init__(self, config: Any) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return b64encode(key_bytes)


def encrypted_column(raw: Path) -> None:
    kept = EncryptionConfiguration("key", column_keys={"key": ["x"]}, plaintext_footer=True)
    properties = CryptoFactory(Keys).file_encryption_properties(KmsConnectionConfig(), kept)
    write(raw / "b.parquet", rows(1), encryption_properties=properties)


def emptied(raw: Path) -> None:
    for path in raw.iterdir():
        path.unlink()


def pipe(raw: Path) -> None:
    os.mkfifo(raw / "c.parquet")


CASES = {
    "no such path": Case(nothing, r"raw/none\.parquet: no such file or folder", source="{raw}/none.parquet"),
    "no such folder": Case(nothing, r"raw/none: no such file or folder", source="{raw}/none"),
    "glob without a match": Case(nothing, r"raw/\*\.pq: no Parquet files", source="{raw}/*.pq"),
    "folder without Parquet": Case(emptied, r"raw: no Parquet files there"),
    "unknown scheme": Case(nothing, r"nfs9://host/x: .*nfs9", source="nfs9://host/x"),
    "archive": Case(
        nothing,
        r"raw\.zip: rows are not read from archives; unpack",
        source="zip://a.parquet::{raw}/raw.zip",
    ),
    "file system that is not there": Case(
        nothing, r"reference://x: cannot be read \(.* argument", source="reference://x"
    ),
    "no rows": Case(both(lambda t: t.slice(0, 0)), r"a\.parquet: no rows in any source file"),
    "text of other encoding": Case(not_utf8("city"), r"a\.parquet: column 'city' holds text that is not UTF-8"),
    "dictionary of other encoding": Case(not_utf8("city", encoded=True), r"column 'city' holds text that is not"),
    "pipe in a folder": Case(pipe, r"raw/c\.parquet: is not a regular file"),
    "pipe": Case(pipe, r"raw/c\.parquet: is not a regular file", source="{raw}/c.parquet"),
    "device": Case(nothing, r"/dev/zero: is not a regular file", source="/dev/zero"),
    "empty source": Case(nothing, r"'' names no file or folder", source=""),
    "source of NUL": Case(nothing, r"names no file or folder", source="{raw}\0"),
    "name too long": Case(nothing, r"raw/x{300}: no such file or folder", source="{raw}/" + "x" * 300),
    "out with a name too long": Case(nothing, r"raw/x{300}: cannot be written \(Fi", "--out {raw}/" + "x" * 300),
    "empty out": Case(nothing, r"'' names no folder to write to", "--out ''"),
    "column missing": Case(second(lambda t: t.drop_columns("x")), r"b\.parquet: column 'x' is missing; .*a\.parquet"),
    "column of another spelling": Case(
        second(lambda t: t.rename_columns({"x": "X"})),
        r"b\.parquet: column 'x' is missing; .*a\.parquet has it: rename 'X', if it is that; or write it to all",
    ),
    "column extra": Case(
        second(lambda t: put(t, "y", LISTS)),
        r"a\.parquet: column 'y' is missing; .*b\.parquet has it: write it to all files",
    ),
    "other type": Case(second(lambda t: put(t, "x", ["1"] * ROWS)), r"b\.parquet: column 'x' is string; .* double"),
    "duplicate column": Case(second(lambda t: t.append_column("x", t["x"])), r"b\.parquet: column 'x' occurs 2 times"),
    "truncated": Case(truncated, r"b\.parquet: not a complete Parquet file"),
    "empty file": Case(
        lambda raw: (raw / "b.parquet").write_bytes(b""), r"b\.parquet: not a complete Parquet file \(it is empty\)"
    ),
    "no Parquet inside": Case(
        lambda raw: (raw / "b.parquet").write_text("x,y\r\n1,2\r\n"),
        r"b\.parquet: not a complete Parquet file \(it is text, which begins with 'x,y'\)",
    ),
    "packed": Case(
        lambda raw: (raw / "b.parquet").write_bytes(gzip.compress((raw / "a.parquet").read_bytes())),
        r"b\.parquet: not a complete Parquet file \(it is compressed as a whole with gzip; unpack it\)",
    ),
    "neither text nor Parquet": Case(
        lambda raw: (raw / "b.parquet").write_bytes(bytes(range(256))),
        r"b\.parquet: not a complete Parquet file \(Parquet magic bytes not found",
    ),
    "name of other encoding": Case(name_not_utf8, r"b\.parquet: not a complete Parquet file .*'utf-8'"),
    "unknown type": Case(wide_integers, r"b\.parquet: not a complete Parquet file .*more than 64 bits"),
    "encrypted column": Case(encrypted_column, r"b\.parquet: has encrypted columns"),
    "flipped bit": Case(flipped_bit, r"b\.parquet: cannot be read to the end"),
    "null among lists of a fixed size": Case(
        with_column("z", pa.array([[1, 2], None] * (ROWS // 2), pa.list_(pa.int64(), 2))),
        r"cannot be read to the end .*; write null among lists of a fixed size as lists of any size",
    ),
    "null feature": Case(with_column("z", pa.nulls(ROWS, pa.float64())), r"'z' holds no value .* --drop z"),
    "null text": Case(with_column("a z", pa.nulls(ROWS, pa.string())), r"'a z' holds no value .* with --drop 'a z'"),
    "several columns without use": Case(
        both(
            lambda t: put(
                put(put(t, "k", list(range(2**60, 2**60 + ROWS))), "a z", [str(uuid4()) for _ in range(ROWS)]),
                "n",
                [float("nan")] * ROWS,
            )
        ),
        (
            r"3 columns cannot be used: 'k' has .* floats; 'n' holds no value in \d+ rows of train; 'a z' looks like "
            r".*; leave them out with --drop k --drop n --drop 'a z'"
        ),
    ),
    "several columns without a value": Case(
        both(lambda t: put(put(t, "n", pa.nulls(ROWS, pa.int8())), "a z", pa.nulls(ROWS, pa.string()))),
        r"2 columns hold no value in any row: 'n', 'a z'; leave them out with --drop n --drop 'a z'",
    ),
    "several columns of other types": Case(
        both(lambda t: put(put(t, "b", [b"z"] * ROWS), "z", LISTS)),
        (
            r"column 'b' is binary, column 'z' is list<.*; a feature is a number, string, boolean, date, time, .*; "
            r"leave them out with --drop b --drop z"
        ),
    ),
    "null type": Case(with_column("z", pa.nulls(ROWS)), r"column 'z' has no values; leave it out with --drop z\b"),
    "NaN feature": Case(with_column("z", [float("nan")] * ROWS), r"'z' holds no value"),
    "identifier": Case(
        both(lambda t: put(t, "$key", [f"{value:.17}" for value in t["x"].to_pylist()])),
        r"'\$key' looks like an identifier .*; convert them to numbers if they are quantities, or .* --drop '\$key'",
    ),
    "integers that floats cannot tell apart": Case(
        with_column("the key", pa.array(range(2**60, 2**60 + ROWS))),
        r"'the key' has \d+ different values, which are only \d+ as 64-bit floats; .* --drop 'the key'",
    ),
    "decimals that floats cannot tell apart": Case(
        with_column("price", pa.array([Decimal(f"1234567890123456.{n:03}") for n in range(ROWS)])),
        r"'price' has \d+ different values, which are only \d+ as 64-bit floats; .* --drop price",
    ),
    "feature of lists": Case(with_column("z", LISTS), r"'z' is list<.*a feature is a number"),
    "binary feature": Case(with_column("z", pa.array([b"z"] * ROWS)), r"'z' is binary; a feature is a number"),
}
if int(pa.__version__.partition(".")[0]) >= 26:
    del CASES["null among lists of a fixed size"]  # Arrow reads them: https://github.com/apache/arrow/issues/35692


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two sound files of two features and a label."""
    return write_files(tmp_path / "raw")


@pytest.mark.parametrize("case", CASES)
def test_bad_source_is_refused_by_name(case: str, raw: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    check_refused(CASES[case], raw, monkeypatch, capsys)


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
    assert done.stdout == ""
    assert list((tmp_path / "out").iterdir()) == []


def test_sound_files_are_accepted(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes above are what is refused, not the files they start from."""
    assert dkan("prepare", raw, "--out", tmp_path / "out", *LABEL, monkeypatch=monkeypatch) == 0
    assert (tmp_path / "out/manifest.json").exists()


FOREIGN = "out: contains {}, which this command did not write"
OUT: dict[str, tuple[str, list[str], str]] = {
    "something else": ("notes.txt", [], FOREIGN.format(r"notes\.txt")),
    "something else, overwrite": ("notes.txt", ["--overwrite"], FOREIGN.format(r"notes\.txt")),
    "own folder named train": ("train/mine.parquet", ["--overwrite"], FOREIGN.format("train")),
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
