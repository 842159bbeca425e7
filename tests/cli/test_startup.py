"""What commands import before they do anything: time that a person waits for, and that every process pays for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core.__main__ import run

COMPUTING = {"torch", "sklearn", "scipy", "pandas", "matplotlib", "kfp", "jinja2"}
DATA = {"numpy", "pyarrow", "fsspec"}
SETTINGS = {"pydantic", "pydantic_core"}

# What the script `dkan` does, in a process of its own that then writes what it has imported.
CODE = """
import atexit, json, sys
sys.argv[0], listed = "dkan", sys.argv.pop(1)
atexit.register(lambda: open(listed, "w").write(json.dumps(sorted(sys.modules))))
from dkan_core.cli import main
main()
"""


def run_command(folder: Path, *words: str, code: int = 0, env: dict[str, str] | None = None) -> tuple[str, set[str]]:
    """Run a command that ends with a code; return what it printed, and the modules and packages that it imported."""
    listed = folder / "modules.json"
    command = [sys.executable, "-c", CODE, str(listed), *words]
    done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr * bool(code), set(json.loads(listed.read_text()))


@pytest.mark.parametrize(
    ("words", "printed", "absent"),
    [
        pytest.param("--version", "dkan ", COMPUTING | DATA | SETTINGS | {"asyncio"}, id="version"),
        pytest.param("--help", "prepare", COMPUTING | DATA | SETTINGS | {"asyncio"}, id="help"),
        pytest.param("train --help", "--epochs", COMPUTING | DATA, id="help of train"),
    ],
)
def test_help_imports_nothing_to_compute_with(tmp_path: Path, words: str, printed: str, absent: set[str]) -> None:
    output, modules = run_command(tmp_path, *words.split())
    assert printed in output
    assert not modules & absent


@pytest.mark.parametrize(
    ("line", "completed"), [("dkan tr", "train"), ("dkan train --ep", "--epochs"), ("dkan fit --v", "--version")]
)
def test_completion_imports_nothing_to_compute_with(tmp_path: Path, line: str, completed: str) -> None:
    # What bash asks with once `dkan --install-completion` was run.
    asked = {"_DKAN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    output, modules = run_command(tmp_path, env=asked)
    assert output.split() == [completed]
    assert not modules & (COMPUTING | DATA)


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("line", ["inspect {} --json - --quiet", "--version", "--help", "verify -h"])
def test_what_standard_output_does_not_take_is_said(source: Path, line: str, buffered: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "dkan_core", *line.format(source).split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONUNBUFFERED": buffered},
        )
    assert (done.returncode, done.stderr) == (
        2,
        "error: standard output: cannot be written (No space left on device)\n",
    )


def test_help_is_shown_in_any_encoding() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dkan_core", "train", "--help-all"],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"") and b"--hidden" in done.stdout


def test_preparing_imports_no_torch(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0.5, 1.5, 2.5, 3.5] * 50, "label": [0, 1] * 100}), tmp_path / "rows.parquet")
    _, modules = run_command(
        tmp_path, "prepare", f"{tmp_path}/rows.parquet", "--out", f"{tmp_path}/out", "--label=label"
    )
    assert (tmp_path / "out/manifest.json").exists()
    assert "pyarrow" in modules
    assert not modules & COMPUTING


OF_FOLDERS = ["train {} --out run", "train {} --out run --dry-run", "tune-lr {}", "plan {}"]
OF_MODELS = [
    "evaluate {} rows.parquet --out out",
    "explain {} prepared --out out",
    "predict {} rows.parquet --out scores.parquet",
    "export {} --out model.onnx",
    "serve {}",
    "drift {} rows.parquet",
    "edit {} --set edits.toml --out out",
    "register {} --registry http://registry.example",
]

# Forks a process for each command once the settings are imported, which all of them import.
FORKING = """
import json, os, sys
import dkan_core.config
from dkan_core.cli import main

for number, line in enumerate(json.load(sys.stdin)):
    if os.fork() == 0:
        os.dup2(os.open(f"{number}.err", os.O_WRONLY | os.O_CREAT), 2)
        sys.argv = ["dkan", *line.split()]
        try:
            main()
        except SystemExit as error:
            result = [error.code, sorted(sys.modules)]
        with open(f"{number}.json", "w") as listed:
            json.dump(result, listed)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def of_nothing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, set[str]]]:
    """Return the exit code of commands that are given what is missing, what they said, and what they imported."""
    folder = tmp_path_factory.mktemp("commands")
    lines = [*OF_FOLDERS, *OF_MODELS]
    given = json.dumps([line.format("nowhere") for line in lines])
    subprocess.run([sys.executable, "-c", FORKING], cwd=folder, input=given, text=True, check=True)
    found = {}
    for number, line in enumerate(lines):
        code, modules = json.loads((folder / f"{number}.json").read_text())
        found[line] = code, (folder / f"{number}.err").read_text(), set(modules)
    return found


@pytest.mark.parametrize("command", OF_FOLDERS)
def test_folder_that_is_missing_is_said_before_torch_is_imported(of_nothing: Any, command: str) -> None:
    code, error, modules = of_nothing[command]
    assert code == 2
    assert "error: nowhere: no manifest.json there; expected a folder that `dkan prepare` wrote" in error
    assert not modules & COMPUTING


@pytest.mark.parametrize("command", OF_MODELS)
def test_model_that_is_missing_is_said_before_torch_is_imported(of_nothing: Any, command: str) -> None:
    code, error, modules = of_nothing[command]
    assert code == 2
    assert "error: nowhere: no config.json there; expected a model that `dkan train` wrote" in error
    assert not modules & COMPUTING


# What ends without being taken apart says nothing of itself; what is registered for the end is done.
ENDING = """
import atexit, sys, threading, time
from dkan_core.cli.startup import run_process

class Left:
    def __del__(self):
        print("taken apart")

left = Left()

def late():
    time.sleep(0.2)
    print("thread done")

def command():
    atexit.register(print, "handler done")
    threading.Thread(target=late).start()
    print("command done")
    sys.exit({code!r})

run_process(command)
"""


@pytest.mark.parametrize(
    ("code", "expected", "last"),
    [
        pytest.param(0, 0, [], id="done"),
        pytest.param(None, 0, [], id="done, without a code"),
        pytest.param(2, 2, [], id="refused"),
        pytest.param("wrong", 1, ["taken apart"], id="by a message, as Python ends it"),
    ],
)
def test_process_ends_in_order_and_at_once(code: int | str | None, expected: int, last: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", ENDING.format(code=code)], capture_output=True, text=True, check=False)
    assert done.returncode == expected
    assert done.stdout.split("\n")[:-1] == ["command done", "thread done", "handler done", *last]
    assert done.stderr == ("wrong\n" if last else "")


@pytest.mark.parametrize(
    ("rows", "expected"), [pytest.param("rows.parquet", 0, id="done"), pytest.param("nothing", 2, id="refused")]
)
def test_closed_streams_change_nothing(tmp_path: Path, rows: str, expected: int) -> None:
    pq.write_table(pa.table({"x": [0.5, 1.5, 2.5, 3.5] * 50, "label": [0, 1] * 100}), tmp_path / "rows.parquet")
    words = [sys.executable, "-m", "dkan_core", "prepare", str(tmp_path / rows), "--out", str(tmp_path / "out")]
    command = ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words, "--label", "label"]
    assert subprocess.run(command, check=False).returncode == expected
    assert (tmp_path / "out" / "manifest.json").exists() == (expected == 0)


TERMINATED = """
import signal
from dkan_core import cli

def build_class():
    # pydantic does so where the signal comes while it builds the class of the settings.
    try:
        signal.raise_signal(signal.SIGTERM)
    except SystemExit as error:
        raise TypeError(f"Error building validator: {error!r}") from None

cli.app = build_class
cli.main()
"""


def test_command_that_is_terminated_while_it_starts_ends_as_at_any_other_time() -> None:
    done = subprocess.run([sys.executable, "-c", TERMINATED], capture_output=True, text=True, check=False)
    assert done.returncode == 143, done.stderr
    assert done.stderr == "error: SIGTERM or SIGHUP: Error building validator: SystemExit(143)\n"


# Signals arrive when the work is done: while Python waits for threads, and while handlers run.
LATE_SIGNALS = """
import atexit, signal, sys, threading
from dkan_core.cli.startup import run_process
from dkan_core.utils.signals import exit_on_hangup, exit_once

def command():
    signal.signal(signal.SIGTERM, exit_once)
    exit_on_hangup()
    for register in (threading._register_atexit, atexit.register):
        register(signal.raise_signal, signal.{name})
    sys.exit(0)

run_process(command)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 0), ("SIGHUP", 0), ("SIGINT", -2)])
def test_signal_after_the_end_of_a_command_shows_no_traceback(name: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE_SIGNALS.format(name=name)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_ctrl_c_during_the_first_imports_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        @property
        def main(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "dkan_core.cli", Interrupted())
    with pytest.raises(SystemExit, match="130"):
        run()
