"""The serving benchmark: what wrk says, and a server that is really asked."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import serving
from dkan_core import TrainResult
from dkan_core.model.saved_model import SavedModel

PRINTED = """Running 4s test @ http://127.0.0.1:39861/v1/models/model:predict
  Latency Distribution
     50%  {p50}
     99%    1.99s{space}
  91 requests in 4.04s, 385.52KB read
{wrong}Requests/sec:     22.55
"""


@pytest.mark.parametrize(
    ("p50", "wrong", "found"),
    [
        ("850.00us", "", serving.Measured(22.55, 0.85, 1990.0, 0)),
        ("12.50ms", "  Non-2xx or 3xx responses: 7\n", serving.Measured(22.55, 12.5, 1990.0, 7)),
    ],
)
def test_figures_of_wrk_are_read(p50: str, wrong: str, found: serving.Measured) -> None:
    assert serving.parse(PRINTED.format(p50=p50, wrong=wrong, space=" ")) == found


def test_without_wrk_it_says_so(trained: TrainResult, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    result = CliRunner().invoke(serving.app, [trained.model, str(source)])
    assert result.exit_code == 1 and "wrk is not installed, so nothing was measured" in result.output


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_server_is_measured(trained: TrainResult, source: Path) -> None:
    preprocessor = SavedModel(Path(trained.model)).preprocessor
    with serving.served(trained.model) as port:
        found = serving.measure(port, serving.request_body(preprocessor, str(source), rows=3), 1, connections=4)
    assert found.requests_per_second > 0 and 0 < found.p50_ms <= found.p99_ms and not found.errors
