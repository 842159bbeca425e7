"""The component marks scores as whole, or fails by the name of what is not as it should be."""

from pathlib import Path

import pytest

from components.deployment.complete_scores import complete_scores
from dkan_core import ConfigError, GateError, TrainResult, plan_scoring, score_part


def test_drift_and_low_scores_fail_and_the_rest_is_marked_complete(
    trained: TrainResult, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    plan_scoring(trained.model, source, out, labels=("label",))
    score_part(out, 0)
    with pytest.raises(GateError, match=r"PSI above max_psi 1e-09: .*'label' has"):
        complete_scores.python_func(str(out), max_psi=1e-9)
    with pytest.raises(ConfigError, match="got -1"):
        complete_scores.python_func(str(out), max_psi=-1.0)
    assert not (out / "_scoring.json").exists()
    assert complete_scores.python_func(str(out), max_psi=10.0, min_average_precision=0.5) == (569,)
    assert (out / "_scoring.json").exists()
