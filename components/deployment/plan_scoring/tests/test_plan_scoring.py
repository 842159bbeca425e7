"""The component takes a model from a URI or an upstream step, and names as the form has them."""

from pathlib import Path

import pytest
from kfp import dsl

from components.deployment.plan_scoring import plan_scoring
from dkan_core import ConfigError, DataError, TrainResult
from dkan_core.batch_scoring.plan import open_plan


def test_model_comes_from_a_uri_or_an_upstream_step(trained: TrainResult, source: Path, tmp_path: Path) -> None:
    for name, options in {
        "by uri": {"model_uri": trained.model},
        "of a step": {"model": dsl.Model(uri=str(Path(trained.model).parent))},
    }.items():
        out = str(tmp_path / name)
        assert plan_scoring.python_func(str(source), out, columns="site, label", label="label ", **options) == [0]
        plan = open_plan(out)[1]
        assert (plan.columns, plan.labels) == (["site", "label"], ["label"])


def test_no_model_is_an_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json"):
        plan_scoring.python_func(str(source), str(tmp_path / "out"), model_uri=str(tmp_path))
    with pytest.raises(ConfigError, match="model_uri must name a model or a run folder, got ''"):
        plan_scoring.python_func(str(source), str(tmp_path / "out"))
