"""Copies among source files are found without reading files that differ."""

from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from dkan_core import prepare
from dkan_core.data.source.copies import find_original, warn_of_copies
from dkan_core.data.source.sources import Footer, SourceFile
from tests.data.tables import CONFIG, make_rows


def test_they_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files of equal size and footer, which holds no statistics, may still differ."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for name, seed in (("a", 0), ("b", 1), ("c", 0), ("d", 1)):
        pq.write_table(
            make_rows(seed=seed).select(["x", "y", "row"]),
            folder / f"{name}.parquet",
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )
    assert len({path.stat().st_size for path in folder.iterdir()}) == 1
    prepare(folder, tmp_path / "out", CONFIG)
    warnings = [record.getMessage() for record in caplog.records if "copies among" in record.getMessage()]
    assert len(warnings) == 1 and warnings[0].endswith(
        f": {folder}/c.parquet (of {folder}/a.parquet), {folder}/d.parquet (of {folder}/b.parquet)"
    )


def test_files_that_begin_differently_are_not_read_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files of one size, as of uncompressed numbers, would else be read whole from a bucket."""
    fs, asked = fsspec.filesystem("memory"), list[int]()
    cat_file = type(fs).cat_file

    def count_bytes(self: Any, path: str, start: int, end: int) -> bytes:
        asked.append(end - start)
        content: bytes = cat_file(self, path, start=start, end=end)
        return content

    monkeypatch.setattr(type(fs), "cat_file", count_bytes)
    files = [SourceFile(path=f"memory://copies/{name}", rows=1, bytes=1 << 22, modified="") for name in "abc"]
    for file, head in zip(files, (b"a", b"b", b"a"), strict=True):
        fs.pipe_file(file.path, head.ljust(file.bytes))
    footer = Footer(groups=[1], digest="")
    warn_of_copies(files[:2], [footer] * 2)
    assert 0 < sum(asked) < 1 << 18
    copy, gone = files[2], files[1].model_copy(update={"path": "nowhere://bucket/b"})
    assert find_original(copy, [gone, files[1]]) is None
    assert find_original(copy, [gone, files[1], files[0]]) == files[0].path
