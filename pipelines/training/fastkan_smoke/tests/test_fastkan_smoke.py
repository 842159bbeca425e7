"""The smoke test, run on this machine without any argument: it passes its own gate."""

import subprocess
import sys
from pathlib import Path

from pipelines.compiled import inputs_of, package_of

ROOT = Path(__file__).parents[4]


def test_form_needs_nothing() -> None:
    assert all(field.get("isOptional") for field in inputs_of(package_of("smoke")).values())


def test_every_step_succeeds(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipelines", "run", "--pipeline", "smoke", "--out", str(tmp_path / "out")]
    command += ["--param", f"publish_uri={tmp_path / 'best'}"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "not approved" not in process.stdout
    assert "| average_precision | 0.9" in (tmp_path / "best" / "README.md").read_text().split("test metric")[1]
