"""The ``dkan`` command: help, settings, exit codes, and what a person or a log sees."""

import inspect
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import pyarrow.parquet as pq
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import dkan_core
from dkan_core import PrepareConfig, TrainConfig, TrainResult, cli, tune_learning_rate
from dkan_core.cli import app
from dkan_core.cli.planning import OF_RUNS
from dkan_core.config import Group, field_docs
from dkan_core.config.serving import ServeConfig
from tests import warm

Dkan = Callable[..., subprocess.CompletedProcess[str]]
QUICK = ["--epochs", "2", "--hidden", "4", "--device", "cpu", "--batch-size", "64"]


def run_in(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return warm.server().run(words, folder)


@pytest.fixture
def dkan(tmp_path: Path) -> Dkan:
    """Run the command in an empty folder."""
    return partial(run_in, tmp_path)


@pytest.mark.parametrize("command", ["prepare", "train", "evaluate", "explain", "predict"])
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0 and "--out" in result.output


@pytest.mark.parametrize(
    ("command", "config"),
    [("prepare", PrepareConfig), ("train", TrainConfig), ("tune-lr", TrainConfig), ("plan", TrainConfig)],
)
def test_every_setting_is_an_option_with_its_text(command: str, config: type) -> None:
    output = help_of(command)
    assert set(field_docs(config)) == {field.name for field in fields(config)}
    for name, text in field_docs(config).items():
        if name in WITHOUT.get(command, ()):
            continue
        first = re.sub(r"`(\w+)`", lambda other: f"--{other[1].replace('_', '-')}", text.split(".")[0])
        assert f"--{name.replace('_', '-')}" in output and first in output


COMMANDS: dict[str, Any] = {
    "prepare": PrepareConfig,
    "train": TrainConfig,
    "tune-lr": TrainConfig,
    "plan": TrainConfig,
    "serve": ServeConfig,
    "inspect": PrepareConfig,
    **dict.fromkeys(
        ["demo", "evaluate", "explain", "edit", "predict", "export", "drift", "register", "verify", "bench sync"]
    ),
}
"""Every command, and the config whose fields are options of it."""

WITHOUT = dict.fromkeys(("tune-lr", "plan"), OF_RUNS)
"""Fields of that config that are no options, as they have no effect."""


FLAG = re.compile(r"│ +--[\w-]+ +(-\w +)?[A-Z]")
"""A line of the help whose option takes no value."""


@cache
def help_of(command: str, option: str = "") -> str:
    """Return the help with every option."""
    shown = option or ("--help-all" if COMMANDS.get(command) is TrainConfig else "--help")
    result = CliRunner().invoke(app, [*command.split(), shown], env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert result.exit_code == 0
    return result.output


def panels(text: str) -> dict[str, str]:
    """Return the panels of a help text in their order, by title."""
    return dict(re.findall(r"^╭─ (.*?) ─+╮ *$(.*?)^╰", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_groups_options_in_the_order_of_work(command: str) -> None:
    found = panels(help_of(command))
    shown = [title for title in found if title not in ("Arguments", "Options")]
    assert shown and shown == [title for title in get_args(Group) if title in found]
    for field in fields(COMMANDS[command]) if COMMANDS[command] else ():
        if field.name in WITHOUT.get(command, ()):
            continue
        assert f"--{field.name.replace('_', '-')} " in found[field.metadata["group"]], field.name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_the_default_of_every_option_with_a_value(command: str) -> None:
    options = [line for body in panels(help_of(command)).values() for line in body.splitlines() if " --" in line[:9]]
    assert len(options) > 2
    for line in options:
        assert re.search(r"\[default: .*\]|\[required\]", line) or FLAG.match(line), line


@pytest.mark.parametrize("command", [name for name, kind in COMMANDS.items() if kind is TrainConfig])
def test_help_leaves_advanced_options_to_help_all(command: str) -> None:
    short, whole = (
        re.findall(r"^│ +(--[\w-]+)", help_of(command, each), re.MULTILINE) for each in ("-h", "--help-all")
    )
    advanced = [f"--{field.name.replace('_', '-')}" for field in fields(TrainConfig) if field.metadata["advanced"]]
    assert [name for name in whole if name not in short] == sorted(advanced, key=whole.index)
    assert len(short) < 0.6 * len(whole) and {"--epochs", "--batch-size", "--help-all"} <= set(short)
    found: Any = get_command(app)
    known = {name for parameter in found.commands[command].params for name in parameter.opts}
    assert {*advanced} <= known, "taken and completed, though not shown"


@pytest.mark.parametrize("command", WITHOUT)
def test_settings_without_effect_are_no_options_but_may_be_in_a_file(
    command: str, prepared: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.toml").write_text('resume = "auto"\npatience = 2\ntensorboard = true\n')
    for name in WITHOUT[command]:
        option = f"--{name.replace('_', '-')}"
        refused = CliRunner().invoke(app, [command, str(prepared), option, "1"])
        assert refused.exit_code == 2 and f"No such option: {option}" in refused.output
        assert f"{option} " not in help_of(command)
    words = [command, str(prepared), "--config", str(tmp_path / "train.toml"), "--epochs", "0"]
    refused = CliRunner().invoke(app, words)
    assert "epochs must be from 1 to" in str(refused.exception), "the file's settings were taken"


def test_help_tells_a_fixed_default_from_one_that_depends_on_the_data() -> None:
    text = help_of("train")
    assert re.search(r"--embedding-dim .*\[default: 8\]", text)
    assert re.search(r"--epochs .*\[default: \(from the number of rows\)\]", text)


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_examples_in_the_help_are_commands_that_exist(command: str) -> None:
    examples = re.findall(r"^ *\$ dkan (.*?) *$", help_of(command), re.MULTILINE)
    assert examples and all(example.startswith(command) for example in examples)
    for example in examples:
        found: Any = get_command(app)
        words = shlex.split(example)
        while hasattr(found, "commands"):
            found = found.commands[words.pop(0)]
        assert found.make_context(command, words).params


def test_every_command_is_looked_at() -> None:
    names = set(get_command(app).commands)  # type: ignore[attr-defined]
    assert names == {command.split()[0] for command in COMMANDS}


def test_defaults_of_the_sweep_are_those_of_its_function() -> None:
    ours, theirs = (inspect.signature(function).parameters for function in (cli.tune_lr, tune_learning_rate))
    assert all(ours[name].default == theirs[name].default for name in ("steps", "repeats"))


def test_version_is_that_of_the_package(dkan: Dkan) -> None:
    assert dkan("--version").stdout == f"dkan {dkan_core.__version__}\n"


@pytest.fixture(scope="module")
def whole_way(source: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Go from raw rows to predictions; return the folder, and what each command wrote to stderr."""
    folder = tmp_path_factory.mktemp("way")
    log = {}
    for words in (
        ["prepare", source, "--out", "data", "--label", "label"],
        ["train", "data", "--out", "run", *QUICK, *(["--tensorboard"] if find_spec("tensorboard") else [])],
        ["evaluate", "run/model", "data", "--split", "test", "--out", "eval", "--save-predictions"],
        ["predict", "run/model", source, "--out", "scores.parquet", "--column", "site"],
    ):
        done = run_in(folder, *words)
        assert done.returncode == 0, done.stderr
        log[str(words[0])] = done.stderr
    return folder, log


def test_whole_way_from_raw_rows_to_predictions(whole_way: tuple[Path, dict[str, str]], source: Path) -> None:
    folder, log = whole_way
    for text in log.values():
        assert "Traceback" not in text and "\x1b" not in text
    metrics = json.loads((folder / "eval/metrics.json").read_text())
    assert 0.5 < metrics["average_precision"] <= 1 and metrics["split"] == "test"
    assert "<svg" in (folder / "eval/report.html").read_text()
    predictions = pq.read_table(folder / "eval/predictions.parquet")
    assert predictions.column_names == ["label", "label_probability"] and len(predictions) == metrics["rows"]
    scores = pq.read_table(folder / "scores.parquet")
    assert scores.column_names == ["site", "label_probability"]
    assert scores["site"].to_pylist() == pq.read_table(source)["site"].to_pylist()


def test_log_has_one_plain_line_an_epoch(whole_way: tuple[Path, dict[str, str]]) -> None:
    log = whole_way[1]["train"]
    lines = re.findall(r"epoch (\S+)  step \d+  \d+ rows/s  loss \S+  AP \S+  best \S+", log)
    assert lines == ["1.00/2", "2.00/2"]


def test_tensorboard_writes_curves(whole_way: tuple[Path, dict[str, str]]) -> None:
    pytest.importorskip("tensorboard", reason="needs the tensorboard extra")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole_way[0] / "run/tensorboard")).Reload()
    assert len(events.Scalars("valid/average_precision")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 150])
def test_terminal_shows_a_bar_with_epoch_loss_and_average_precision(
    columns: int, prepared: Path, tmp_path: Path
) -> None:
    leader, follower = pty.openpty()
    words = ["train", str(prepared), "--out", str(tmp_path / "run"), *QUICK]
    env = {**os.environ, "COLUMNS": str(columns)}
    with os.fdopen(follower, "w") as terminal:
        process: subprocess.Popen[bytes] | warm.Forked
        if columns == 80:
            process = subprocess.Popen(
                [sys.executable, "-m", "dkan_core", *words], stderr=terminal, stdout=terminal, env=env
            )
        else:
            process = warm.server().start(words, env, terminal)
    output = b""
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:
            break
        output += data
    os.close(leader)
    assert process.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output.decode())
    last = "" if columns == 80 else r"AP 0\.\d{4}  "
    values = rf"[\d,]+ rows/s  loss 0\.\d{{4}}  {last}best AP 0\.\d{{4}} \d:\d\d:\d\d"
    assert re.search(rf"epoch 2\.0/2 .* 100% {values}", plain), plain
    assert all(len(line) <= columns for line in re.split(r"[\r\n]+", plain))
    assert plain.startswith("starting"), "a sign of life, before anything is imported that takes long"


def test_settings_come_from_a_file_and_options_go_before_them(dkan: Dkan, prepared: Path, tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text('epochs = 1\nhidden = [4]\nbatch_size = 64\ndevice = "cpu"\nseed = 3\n')
    done = dkan("train", prepared, "--out", "run", "--config", "train.toml", "--seed", "5")
    assert done.returncode == 0, done.stderr
    facts = json.loads((tmp_path / "run/metrics.json").read_text())["training"]
    assert facts["seed"] == 5 and facts["epochs"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "nowhere", "--out", "run"], "nowhere: no manifest.json there"),
        (["train", "{prepared}", "--out", "run", "--config", "typo.toml"], "unknown setting 'epoch'"),
        (["train", "{prepared}", "--out", "run", "--workers", "2000"], "workers must be from 1 to 1,024"),
        (["train", "{prepared}", "--out", "run", "--workers", "500", "--device", "cpu"], "train split has only"),
        (["train", "{prepared}", "--out", "run", "--dropout", "1.5"], "dropout must be from 0 to 0.99, got 1.5"),
        (["train", "{prepared}", "--out", "taken"], "taken: contains thesis.txt, which this command did not write"),
        (["evaluate", "nowhere", "{prepared}", "--out", "eval"], "nowhere: no config.json there"),
        (
            ["evaluate", "{model}", "{prepared}", "--out", "eval", "--split", "dev"],
            "has no split 'dev'; expected one of",
        ),
        (["predict", "{model}", "nowhere.parquet", "--out", "x.parquet"], "nowhere.parquet"),
    ],
)
def test_mistake_is_named_and_leaves_nothing(
    dkan: Dkan, prepared: Path, trained: TrainResult, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "typo.toml").write_text("epoch = 3\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    done = dkan(*[word.format(prepared=prepared, model=trained.model) for word in words])
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_interrupt_before_training_claims_no_model_of_the_run(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> TrainResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(dkan_core, "train", interrupted)
    found = CliRunner().invoke(app, ["train", str(prepared), "--out", str(tmp_path / "run"), "--overwrite"])
    assert found.exit_code == 130 and "if not, what was there is as it was" in " ".join(found.output.split())
