"""One rule for what commands write: an earlier result stays without ``--overwrite``; results as JSON on stdout."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from dkan_core import TrainResult
from dkan_core.utils.storage import staging
from dkan_core.utils.storage.locks import held_aside
from tests.command import check, dkan

# Of the breast cancer rows: a few seconds for all commands.
OUTPUTS = {
    "evaluate": ("evaluate {model} {prepared} --no-explain --out eval", "eval/metrics.json"),
    "explain": ("explain {model} {prepared} --rows 50 --top 1 --out learned", "learned/explanation.html"),
    "explain rows": ("explain {model} --rows {few} --out why", "why/rows.html"),
    "predict": ("predict {model} {few} --out scores.parquet", "scores.parquet"),
    "predict to CSV": ("predict {model} {few} --out scores.csv", "scores.csv"),
    "export": ("export {model} --out model.onnx", "model.onnx"),
    "drift": ("drift {model} {few} --json drift.json", "drift.json"),
    "drift page": ("drift {model} {few} --html drift.html", "drift.html"),
    "inspect": ("inspect {few} --html page.html", "page.html"),
    "inspect to JSON": ("inspect {few} --json facts.json", "facts.json"),
    "verify": ("verify {prepared} --json verified.json", "verified.json"),
}
"""Commands, and the file that tells whether one was replaced."""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    tmp_path: Path,
    source: Path,
    prepared: Path,
    trained: TrainResult,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> Run:
    """Run a command in an empty folder; return its exit code, stdout and stderr."""
    few = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(source).slice(0, 60), few)
    monkeypatch.chdir(tmp_path)

    def run_words(line: str, *more: str) -> tuple[int, str, str]:
        words = [word.format(model=trained.model, prepared=prepared, few=few) for word in line.split()]
        capsys.readouterr()
        code = dkan(*words, *more, monkeypatch=monkeypatch)
        return code, *capsys.readouterr()

    return run_words


@pytest.mark.parametrize("name", OUTPUTS)
def test_earlier_result_stays_without_overwrite(name: str, run: Run, tmp_path: Path) -> None:
    line, file = OUTPUTS[name]
    assert run(line)[0] == 0
    first = (tmp_path / file).stat()
    code, _, error = run(line)
    check(code, error, "already (exists|holds an earlier result); pass --overwrite")
    assert ((tmp_path / file).stat().st_ino, (tmp_path / file).stat().st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert run(line, "--overwrite")[0] == 0
    assert (tmp_path / file).stat().st_ino != first.st_ino, "replaced by a new file, whole at any moment"


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("export {model} --out thesis.onnx", "thesis.onnx"),
        ("drift {model} {few} --json thesis.json", "thesis.json"),
        ("inspect {few} --html thesis.html", "thesis.html"),
        ("predict {model} {few} --out thesis.csv", "thesis.csv"),
    ],
)
def test_what_is_not_ours_stays_whatever_is_asked(line: str, taken: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / taken).write_text("years,of,work\n1,2,3\n")
    code, _, error = run(line, "--overwrite")
    check(code, error, rf"{taken}: (was not written by dkan|holds other data)")
    assert (tmp_path / taken).read_text() == "years,of,work\n1,2,3\n"


@pytest.mark.parametrize("text", ['{"mine": 1}', '{\n  "format_version": 2,\n  "rows": 3\n}'])
def test_json_that_is_no_result_stays_whatever_is_asked(text: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(text)
    code, _, error = run("verify {prepared} --json mine.json --overwrite")
    check(code, error, r"mine\.json: was not written by dkan")
    assert (tmp_path / "mine.json").read_text() == text


@pytest.mark.parametrize("file", ["metrics.json", "model/result.json", "../run/result.json"])
@pytest.mark.parametrize("line", ["evaluate {model} {prepared} --out run", "train {prepared} --out run"])
def test_json_is_not_written_into_the_output(line: str, file: str, run: Run, tmp_path: Path) -> None:
    code, _, error = run(f"{line} --json run/{file}")
    check(code, error, rf"--json run/{file} lies in run, where the command writes; name a file elsewhere")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("prepare {few} --label label --out prepared", "prepared/train/notes.txt"),
        ("prepare {few} --label label --out prepared --workers 1", "prepared/test/deep/00000-of-00001.safetensors"),
        ("explain {model} {prepared} --rows 50 --top 1 --out learned", "learned/curves/notes.txt"),
    ],
)
def test_folder_with_other_files_inside_is_not_replaced(line: str, taken: str, run: Run, tmp_path: Path) -> None:
    assert run(line)[0] == 0
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).write_text("mine")
    code, _, error = run(line, "--overwrite")
    check(code, error, rf"{taken}: was not written by dkan, and {'/'.join(taken.split('/')[:2])} would be replaced")
    assert (tmp_path / taken).read_text() == "mine"
    (tmp_path / taken).unlink()
    assert run(line, "--overwrite")[0] == 0


@pytest.mark.parametrize("name", [name for name, (_, file) in OUTPUTS.items() if "/" not in file])
def test_file_that_appears_meanwhile_is_not_replaced(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, file = OUTPUTS[name]

    @contextmanager
    def appears(target: Path) -> Iterator[Path]:
        with held_aside(target) as aside:
            target.write_text("mine")
            yield aside

    monkeypatch.setattr(staging, "held_aside", appears)
    code, _, error = run(line)
    check(code, error, rf"{file}: (already exists|was not written by dkan|holds other data)")
    assert (tmp_path / file).read_text() == "mine" and {*os.listdir(tmp_path)} == {"few.parquet", file}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("predict {model} {few} --out s.xlsx", r"s\.xlsx: predictions are written as Parquet or CSV; let the name end"),
        (
            "predict {model} {few} --out s.csv --reasons 2",
            r"s\.csv: reasons are lists, which CSV cannot hold",
        ),
        ("predict {model} {few} --out=", "'' names no file to write"),
        ("export {model} --out model.pt", r"model\.pt: models are exported as ONNX; let the name end in \.onnx"),
        (
            "drift {model} {few} --json drift.txt",
            r"drift\.txt: results are written as JSON; let the name end",
        ),
        ("inspect {few} --html page.pdf", r"page\.pdf: pages are written as HTML; let the name end in \.html"),
        ("inspect {few} --json .", r"\.: is a folder; expected a file"),
        # Said before rows are looked for.
        ("inspect nowhere --html few.parquet/page.html", r"few\.parquet/page\.html: cannot be written"),
        ("drift {model} nowhere --html few.parquet/page.html", r"few\.parquet/page\.html: cannot be written"),
    ],
)
def test_name_that_promises_another_format_is_refused(line: str, message: str, run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, _, error = run(line)
    check(code, error, message)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("value", "kind", "named"),
    [
        (b"\xff", pa.binary(), "bytes"),
        (timedelta(seconds=1), pa.duration("s"), "durations"),
        (bytes(16), pa.uuid(), "UUIDs"),
    ],
    ids=["bytes", "durations", "UUIDs"],
)
def test_what_csv_has_no_type_for_is_refused(
    value: object, kind: pa.DataType, named: str, run: Run, tmp_path: Path
) -> None:
    rows = pq.read_table(tmp_path / "few.parquet")
    pq.write_table(rows.append_column("key", pa.array([value] * len(rows), kind)), tmp_path / "keyed.parquet")
    code, _, error = run("predict {model} keyed.parquet --column key --out s.csv")
    check(code, error, rf"s\.csv: column 'key' holds {named}, which CSV cannot; name a \.parquet file")


def test_csv_holds_what_parquet_does(run: Run, tmp_path: Path) -> None:
    for name in ("s.parquet", "s.csv"):
        assert run(f"predict {{model}} {{few}} --column site --out {name}")[0] == 0
    text, exact = pcsv.read_csv(tmp_path / "s.csv"), pq.read_table(tmp_path / "s.parquet")
    assert text.column_names == exact.column_names == ["site", "label_probability"]
    assert text["label_probability"].to_numpy() == pytest.approx(exact["label_probability"].to_numpy(), rel=1e-7)
    assert [value or None for value in text["site"].to_pylist()] == exact["site"].to_pylist()


JSON = {
    "prepare": ("prepare {few} --label label --out prepared", "rows"),
    "a dry run": ("prepare {few} --label label --out prepared --dry-run", "would"),
    "train": ("train {prepared} --epochs 1 --hidden 4 --device cpu --strategy single --out run", "average_precision"),
    "evaluate": ("evaluate {model} {prepared} --no-explain --out eval", "average_precision"),
    "explain": ("explain {model} {prepared} --rows 50 --top 1 --out learned", "importance"),
    "explain rows": ("explain {model} --rows {few} --out why", "rows"),
    "predict": ("predict {model} {few} --out scores.parquet", "rows"),
    "export": ("export {model} --out model.onnx", "largest_difference"),
    "drift": ("drift {model} {few}", "columns"),
    "inspect": ("inspect {few}", "columns"),
    "verify": ("verify {prepared}", "shards"),
}
"""Commands, and a key of their result. Those that measure for longer have tests of their own."""


@pytest.mark.parametrize("name", JSON)
def test_json_on_standard_output_is_all_that_is_there(name: str, run: Run, tmp_path: Path) -> None:
    line, key = JSON[name]
    code, out, error = run(line, "--json", "-")
    assert code == 0, error
    result = json.loads(out)
    assert key in result and next(iter(result)) == "dkan_version"
    assert not (tmp_path / "-").exists()
