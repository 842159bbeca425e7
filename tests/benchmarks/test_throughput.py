"""The benchmark of single stages measures every one of them."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import throughput


@pytest.mark.slow
def test_every_stage_has_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "TURNS", 1)
    app = typer.Typer()
    app.command()(throughput.main)
    command = ["--rows", "2000", "--features", "3", "--out", str(tmp_path / "figures.json")]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0 and "| prepare, 2,000 rows x 3 columns |" in done.output
    results = json.loads((tmp_path / "figures.json").read_text())["results"]
    kinds = ["prepare", "gather shuffled batches", "forward and backward", "forward and backward", "train", "train"]
    assert all(result["what"].startswith(kind) for result, kind in zip(results, kinds, strict=True))
