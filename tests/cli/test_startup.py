"""What commands import before they do anything: time that a person waits for, and that every process pays for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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


def run_command(folder: Path, *words: str, **env: str) -> tuple[str, set[str]]:
    """Run a command; return what it printed, and the modules and packages that it has imported."""
    listed = folder / "modules.json"
    command = [sys.executable, "-c", CODE, str(listed), *words]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=True)
    return done.stdout, set(json.loads(listed.read_text()))


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


@pytest.mark.parametrize(("line", "completed"), [("dkan tr", "train"), ("dkan train --ep", "--epochs")])
def test_completion_imports_nothing_to_compute_with(tmp_path: Path, line: str, completed: str) -> None:
    # What bash asks with once `dkan --install-completion` was run.
    asked = {"_DKAN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    output, modules = run_command(tmp_path, **asked)
    assert output.split() == [completed]
    assert not modules & (COMPUTING | DATA)


def test_preparing_imports_no_torch(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0.5, 1.5, 2.5, 3.5] * 50, "label": [0, 1] * 100}), tmp_path / "rows.parquet")
    _, modules = run_command(
        tmp_path, "prepare", f"{tmp_path}/rows.parquet", "--out", f"{tmp_path}/out", "--label=label"
    )
    assert (tmp_path / "out/manifest.json").exists()
    assert "pyarrow" in modules
    assert not modules & COMPUTING
