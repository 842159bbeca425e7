"""The benchmark of what commands cost to start."""

from pathlib import Path

import pytest

from benchmarks import startup


@pytest.mark.parametrize("name", ["--version", "prepare"])
def test_command_runs_in_each_checkout(name: str, tmp_path: Path) -> None:
    startup.write_rows(tmp_path)
    (seconds,) = startup.measure(startup.COMMANDS[name], {startup.ROOT: tmp_path}, turns=1)
    assert seconds > 0
    assert name != "prepare" or (tmp_path / "prepared/manifest.json").exists()


def test_table_compares_with_the_other_checkout() -> None:
    assert "| `--help` | 1.00 | 0.25 | 0.25 |" in startup.markdown([("--help", [1.0, 0.25])])
    assert startup.markdown([("--help", [0.25])]).endswith("| `--help` | 0.25 |")
