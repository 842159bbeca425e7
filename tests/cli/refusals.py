"""Two small source files, changes that spoil them, and the check that ``dkan prepare`` refuses what they make of it."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.command import check, dkan

ROWS = 400
LABEL = ["--label", "label"]
SOME_NULL = pa.array([None, *[1] * (ROWS - 1)])
LISTS = [["a"]] * ROWS

Change = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """What is refused."""

    change: Change
    """What is done to the files."""

    message: str
    """What is said."""

    options: str | None = ""
    """Besides ``--label label``; none at all if there are none."""

    source: str = "{raw}"


def rows(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns = {"x": rng.normal(size=ROWS), "city": rng.choice(["Oslo", "Rome"], ROWS), "label": np.arange(ROWS) % 2}
    return pa.table(columns)


def write(path: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, path, **options)


def write_files(folder: Path) -> Path:
    """Write two sound files of two features and a label; return their folder."""
    folder.mkdir()
    for seed, name in enumerate(("a.parquet", "b.parquet")):
        write(folder / name, rows(seed))
    return folder


def second(change: Callable[[pa.Table], pa.Table]) -> Change:
    """Change the second of two files."""
    return lambda raw: write(raw / "b.parquet", change(rows(1)))


def both(change: Callable[[pa.Table], pa.Table]) -> Change:
    """Change both files."""

    def change_both(raw: Path) -> None:
        for seed, name in enumerate(("a.parquet", "b.parquet")):
            write(raw / name, change(rows(seed)))

    return change_both


def put(table: pa.Table, name: str, values: Any) -> pa.Table:
    values = values if isinstance(values, pa.Array) else pa.array(values)
    if name in table.schema.names:
        return table.set_column(table.schema.names.index(name), name, values)
    return table.append_column(name, values)


def with_column(name: str, values: Any) -> Change:
    return both(lambda table: put(table, name, values))


def not_utf8(name: str, *, encoded: bool = False) -> Change:
    """Put strings into a column that are no UTF-8, as writers leave them that do not look."""
    values = pa.array([b"ok", b"caf\xe9"] * (ROWS // 2), pa.binary())
    texts = pa.Array.from_buffers(pa.string(), ROWS, values.buffers())
    return both(lambda table: put(table, name, texts.dictionary_encode() if encoded else texts))


def nothing(raw: Path) -> None:
    """Leave the files as they are."""


def check_refused(case: Case, raw: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Spoil the files and check that the command names what is wrong, and leaves nothing behind."""
    case.change(raw)
    before = sorted(raw.parent.rglob("*"))
    options = [] if case.options is None else [*LABEL, *shlex.split(case.options.replace("{raw}", str(raw)))]
    source = case.source.replace("{raw}", str(raw))
    code = dkan("prepare", source, "--out", raw.parent / "out", *options, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, case.message)
    assert sorted(raw.parent.rglob("*")) == before
