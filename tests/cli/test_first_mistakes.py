"""What newcomers do wrong first: each message says what was found, and what to do instead; nothing is written."""

import gzip
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, TrainResult, prepare
from dkan_core.cli.results import suggest
from dkan_core.cli.train import _split_option
from dkan_core.training.launcher.run_log import describe_patience
from tests.command import check, dkan

ROWS = 200
LATE = (np.arange(ROWS) % 4 == 0).astype(np.int8)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with Parquet, CSV, a file with a typo in it and somebody's results, which is the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    answers = np.where(LATE == 1, "yes", "no").tolist()
    paid = np.where(np.arange(ROWS) % 3, 1.0 - LATE, np.nan)
    table = pa.table({"x": np.arange(ROWS) / 7, "late": LATE, "paid": paid, "answer": answers, "sign": 2 * LATE - 1})
    pq.write_table(table, tmp_path / "rows/a.parquet")
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/rows.csv").write_text("x,late\n1,0\n")
    (tmp_path / "typo.toml").write_text("epoch = 3\n")
    pq.write_table(table, tmp_path / "thesis.parquet")
    (tmp_path / "notes.parquet").write_text("years of work")
    return tmp_path


PREPARE, TRAIN = ["--out", "prepared"], ["--out", "run"]
MISTAKES = {
    "no label": (
        "prepare rows --out prepared",
        r"--label; columns of two values: late \(25\.0% are 1 in \w+\.parquet\), paid .*, sign \(--positive -1 or 1\)",
    ),
    "typo in a column": ("prepare rows --out prepared --label latte", r"'latte' does not exist; did you mean 'late'"),
    "label of text": ("prepare rows --out prepared --label answer", r"'answer' must hold 0, 1 or null; found 'no'"),
    "CSV": ("prepare texts/rows.csv --out prepared --label late", r"is text, not Parquet; convert it first: python -c"),
    "folder of CSV": (
        "prepare texts --out prepared --label late",
        r"no Parquet .*convert .*texts/rows\.csv: python -c",
    ),
    "no such file": ("prepare row --out prepared --label late", r"row: no such file or folder"),
    "two splits": (
        "prepare rows --out prepared --label late --split-column x --split-by-time paid",
        r"split_column 'x' already determines the splits; remove split_by_time 'paid'",
    ),
    "split that does not add up": (
        "prepare rows --out prepared --label late --split 70/20/20",
        r"must add up to 100.*got '70/20/20'",
    ),
    "typo in a file": ("train prepared --out run --config typo.toml", r"typo\.toml: .*'epoch' \(did you mean 'epochs'"),
    "no such settings": ("train prepared --out run --config none.toml", r"none\.toml: no such file"),
    "training on a file": (
        "train rows/a.parquet --out run",
        r"raw Parquet: prepare it first, with `dkan prepare rows/a",
    ),
    "training on a folder": ("train rows --out run", r"raw Parquet: prepare it first, with `dkan prepare rows --out"),
    "no such model": ("predict run/model rows --out s.parquet", r"run/model: no config\.json there"),
    "model and data swapped": (
        "predict rows/a.parquet {model} --out s.parquet",
        r"/model: is a model; name the model first, then the data",
    ),
    "run and folder of data swapped": (
        "evaluate rows {model}/.. --out eval",
        r"/model/\.\.: is a model; name the model first, then the data",
    ),
    "model and data swapped for an explanation": (
        "explain {prepared} {model} --out why",
        r"/model: is a model; name the model first, then the data",
    ),
    "rows and model swapped for an explanation": (
        "explain rows/a.parquet --rows {model} --out why",
        r"/model: is a model; name the model first, then the data",
    ),
    "earlier model that is missing": (
        "evaluate {model} rows --out eval --previous run/modle",
        r"run/modle: no config\.json there",
    ),
    "model and data swapped for drift": (
        "drift rows {model}",
        r"/model: is a model; name the model first, then the data",
    ),
    "spreadsheet of predictions": ("predict {model} rows --out s.xlsx", r"s\.xlsx: .*let the name end in \.parquet"),
    "predictions over data": ("predict {model} rows --out thesis.parquet", r"thesis\.parquet: holds other data"),
    "predictions over text": (
        "predict {model} rows --out notes.parquet",
        r"was not written by dkan, and would be replaced; choose another place",
    ),
    "predictions over a source": ("predict {model} rows --out rows/a.parquet", r"is one of the sources"),
    "prepared data in the place of raw": (
        "predict {model} {prepared} --out s.parquet",
        r"no Parquet files there .*; it is prepared data: name the raw Parquet",
    ),
    "loud and quiet": ("prepare rows --out prepared --label late -q -v", r"--quiet and --verbose: choose one"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_says_what_to_do_instead(
    mistake: str, here: Path, prepared: Path, trained: TrainResult, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    line, message = MISTAKES[mistake]
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    code = dkan(
        *(word.format(model=trained.model, prepared=prepared) for word in line.split()), monkeypatch=monkeypatch
    )
    check(code, capsys.readouterr().err, message)
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("texts/rows.csv", "x,late\n1.5,0\n"),
        ('it\'s $1 "new".TSV', "x\tlate\n1.5\t0\n"),
        ("as.csv.d/ünï.csv", '"x";"late"\n1.5;0\n'),
        ("decimal commas.csv", '"x";late\n1,5;0\n'),
        ("tabs.csv", "x\tlate\n1.5\t0\n"),
        ("bars.csv.gz", "x|late\n1.5|0\n"),
        ("from Excel.csv", "x\tlate\n1,5\t0\n".encode("utf-16")),
    ],
)
def test_command_that_converts_text_makes_parquet_beside_it(
    name: str, text: str | bytes, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (here / name).parent.mkdir(exist_ok=True)
    content = text if isinstance(text, bytes) else text.encode()
    (here / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert dkan("inspect", name, monkeypatch=monkeypatch) == 2
    words = shlex.split(capsys.readouterr().err.partition("convert it first: ")[2])
    assert words[:2] == ["python", "-c"]
    subprocess.run([sys.executable, *words[1:]], check=True)
    made = (here / name.removesuffix(".gz")).with_suffix(".parquet")
    assert pq.read_table(made).to_pylist() == [{"x": 1.5, "late": 0}]


@pytest.mark.parametrize(
    "content",
    [b"", b"no gzip", gzip.compress(b"x;late\n" * 1000)[:20]],
    ids=["empty", "no gzip", "cut short"],  # the bytes hold the time, which differs between the jobs of a run
)
def test_text_that_cannot_be_read_is_refused_as_text(
    content: bytes, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (here / "rows.csv.gz").write_bytes(content)
    code = dkan("inspect", "rows.csv.gz", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, "is text, not Parquet; convert it first: python -c")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "abc"], r"'--epochs': .*'abc'"),
        (["--learning-rate", "fast"], r"'--learning-rate': .*'fast'"),
        (["--model", "forest"], r"'--model': 'forest' is not one of 'auto'"),
        (["--hidden", "64,32"], "'64,32'; repeat the option for several values: --hidden 64 --hidden 32"),
        (["--epochs", "1,2"], r"an integer, got '1,2'\W*$"),
    ],
)
def test_value_of_another_type_is_shown(
    words: list[str], message: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    code = dkan("train", "prepared", *TRAIN, *words, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prepare rows --out prepared --lable late", "No such option: --lable (Possible options: --label"),
        ("prepare rows --out prepared --target late", "No such option: --target (Possible options: --label)"),
        ("train prepared --out run --gpus 2", "No such option: --gpus (Possible options: --device, --workers)"),
        ("predict model rows --out scores.parquet --gpus 2", "No such option: --gpus"),
        ("fit prepared --out run", "No such command 'fit'. Did you mean 'train'?"),
        ("bench fit", "No such command 'fit'. ╰"),
        (
            "train prepared --resume --out run",
            "Missing option '--out'. --resume needs a value such as auto, and took this option as one.",
        ),
    ],
)
def test_words_of_other_programs_lead_to_ours(
    line: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert dkan(*line.split(), monkeypatch=monkeypatch) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_dry_runs_say_what_would_be_done_and_write_nothing(
    here: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    before = sorted(here.rglob("*"))
    words = ["--label", "late", "--drop", "paid", "--drop", "sign", "--dry-run"]
    assert dkan("prepare", "rows", *PREPARE, *words, monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out
    assert "would prepare 200 rows of 1 file" in said and "numeric features (1): x" in said
    assert "categorical features (1): answer" in said and "Split at random, row by row (70/10/20)." in said
    assert (
        dkan("train", prepared, *TRAIN, "--device", "cpu", "--epochs", "2", "--dry-run", monkeypatch=monkeypatch) == 0
    )
    assert re.search(r"would train on \d+ rows.*\n.*\n.*2 epochs of batches of 128", capsys.readouterr().out)
    assert dkan("train", prepared, "--out", "rows", "--dry-run", monkeypatch=monkeypatch) == 2, "as without --dry-run"
    assert sorted(here.rglob("*")) == before


def test_dry_run_names_columns_on_one_line_whatever_they_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pq.write_table(
        pa.table({"two\nlines": [0.5, 1.5], "\x1b[31mred": [2.5, 1.5], "late": [0, 1]}), tmp_path / "x.parquet"
    )
    words = ["--label", "late", "--out", tmp_path / "out", "--dry-run"]
    assert dkan("prepare", tmp_path / "x.parquet", *words, monkeypatch=monkeypatch) == 0
    assert r"numeric features (2): two\nlines, \x1b[31mred" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("launch", [[], ["--launch", "torchrun", "--nproc", "2"]], ids=["here", "torchrun"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--init-from", "nowhere"], "init_from nowhere: no model there; expected a folder that `dkan train` wrote"),
        (["--init-from", "{model}", "--members", "9"], "members 9: the model of init_from has 4, which stays as it is"),
        (["--init-from", "run"], "init_from run: is in the folder of this run, which replaces it"),
    ],
)
def test_dry_run_reads_the_model_that_training_would_start_from(
    words: list[str],
    message: str,
    launch: list[str],
    here: Path,
    prepared: Path,
    trained: TrainResult,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    shutil.copytree(Path(trained.model).parent, "run")
    words = [word.format(model=trained.model) for word in [*TRAIN, *words, "--overwrite", "--device", "cpu"]]
    assert dkan("train", prepared, *words, *launch, "--dry-run", monkeypatch=monkeypatch) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "auto", "--hidden", "9"], "was trained with hidden .*8.*, not .*9"),
        (["--resume", "nowhere", "--overwrite"], "resume nowhere: there is no checkpoint at nowhere"),
        (["--resume", "nowhere"], "run: already holds an earlier result; pass --overwrite"),
    ],
)
def test_dry_run_reads_the_checkpoint_that_training_would_resume_from(
    words: list[str],
    message: str,
    here: Path,
    prepared: Path,
    trained: TrainResult,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    run = Path(trained.model).parent
    shutil.copytree(run, "run")
    fsspec.filesystem("memory").put("run/", "/dry/run/", recursive=True)
    for more in (["--dry-run"], [], ["--dry-run", "--out", "memory://dry/run/"]):
        given = ["--config", run / "config.toml", *words, *more]
        code = dkan("train", prepared, *TRAIN, *given, monkeypatch=monkeypatch)
        check(code, capsys.readouterr().err, message)


def test_dry_run_shows_the_architecture_of_the_model_that_training_would_start_from(
    here: Path, prepared: Path, trained: TrainResult, monkeypatch: pytest.MonkeyPatch, capsys: Any, caplog: Any
) -> None:
    words = [*TRAIN, "--init-from", trained.model, "--quality", "best", "--device", "cpu", "--dry-run"]
    assert dkan("train", prepared, *words, monkeypatch=monkeypatch) == 0
    assert "4 networks of 8 hidden units; " in capsys.readouterr().out
    assert "quality best has no effect: the model of init_from keeps its 4 members" in caplog.text


def test_dry_run_of_a_preparation_names_features_of_every_kind(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    rows = pq.read_table(here / "rows/a.parquet")
    when = pa.array(range(len(rows)), pa.int32()).cast(pa.date32())
    wider = rows.append_column("when", when).append_column("tags", pa.array([[1, 2]] * len(rows)))
    pq.write_table(wider, here / "wider.parquet")
    assert dkan("prepare", "wider.parquet", *PREPARE, "--label", "late", "--dry-run", monkeypatch=monkeypatch) == 0
    said = capsys.readouterr().out.splitlines()
    assert "dates and times (1): when" in said and "lists of IDs (1): tags" in said


def test_dry_run_of_an_additive_model_names_its_kind(
    here: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = ["--model", "additive", "--members", "3", "--device", "cpu", "--dry-run"]
    assert dkan("train", prepared, "--out", "additive", *words, monkeypatch=monkeypatch) == 0
    assert re.search(r"an additive model of 3 members; \d+ epochs? of batches", capsys.readouterr().out)


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("ex:+", "monotone: 'ex' is not a numeric column of the data; expected one of 'mean_area', .*'mean_texture'"),
        ("Mean_Area:+", "monotone: 'Mean_Area' is not a numeric column of the data; did you mean 'mean_area'"),
        ("x", r"monotone must be columns with the sign of their curve, such as age:\+ .never falls. or age:-"),
    ],
)
def test_a_column_that_cannot_be_monotone_is_found_before_the_run_begins(
    here: Path,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    asked: str,
    message: str,
    dry_run: list[str],
) -> None:
    words = ["--model", "additive", "--monotone", asked, "--device", "cpu", *dry_run]
    code = dkan("train", prepared, "--out", "additive", *words, monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (here / "additive").exists()


@pytest.mark.parametrize(("option", "lines"), [("--quiet", 0), ("--verbose", 1)])
def test_quiet_says_nothing_of_what_goes_well(here: Path, option: str, lines: int) -> None:
    from tests import warm

    # With few rows in valid there is a warning.
    words = ["prepare", "rows", *PREPARE, "--split", "30/50/20", "--label", "late", "--drop", "answer", option]
    done = warm.server().run(words, here)
    assert done.returncode == 0, done.stderr
    assert (len(done.stderr.splitlines()) >= lines) if lines else done.stderr == ""


def test_next_command_is_shown_only_to_a_person(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    for terminal, rank in ((False, "0"), (True, "0"), (True, "1")):
        monkeypatch.setattr("dkan_core.utils.progress.on_terminal", lambda terminal=terminal: terminal)
        monkeypatch.setenv("RANK", rank)
        with caplog.at_level("INFO", "dkan_core"):
            suggest("dkan", "train", "my rows", "--out", "run")
    assert caplog.messages == ["next: dkan train 'my rows' --out run"]


@pytest.mark.parametrize(("split", "option"), [("60/20/20", []), ("80/20/0", ["--split", "valid"])])
def test_evaluation_is_suggested_on_a_split_that_there_is(here: Path, split: str, option: list[str]) -> None:
    prepare("rows", "prepared", PrepareConfig(label=("late",), drop=("answer",), split=split))
    assert _split_option("prepared") == option
    assert _split_option("removed meanwhile") == []


def test_early_stopping_says_what_it_stopped_for() -> None:
    history = [
        {"epoch": 0.5 * number, "average_precision": value} for number, value in enumerate([0.1, 0.4, 0.4, 0.3], 1)
    ]
    assert (
        "the 2 evaluations after epoch 1.00 were no better than its average precision of 0.4000"
        in describe_patience(history)
    )


def test_additive_model_of_ids_is_refused_before_anything_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ids = pa.array([[row % 7, row % 3] for row in range(ROWS)])
    pq.write_table(pa.table({"ids": ids, "late": LATE}), here / "ids.parquet")
    assert dkan("prepare", "ids.parquet", "--out", "of-ids", "--label", "late", monkeypatch=monkeypatch) == 0
    for more in (["--dry-run"], []):
        words = ["--out", "additive", "--model", "additive", "--device", "cpu", *more]
        assert dkan("train", "of-ids", *words, monkeypatch=monkeypatch) == 2
        assert "column 'ids' holds IDs, which have no curve" in capsys.readouterr().err
        assert not (here / "additive").exists()
