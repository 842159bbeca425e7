"""The component shows what the Kubeflow UI can draw; the pipeline's end-to-end test fills it for real."""

from pathlib import Path

import pytest
from kfp import dsl

from components.evaluation.evaluate_fastkan import evaluate_fastkan
from dkan_core.errors import UserError


def test_outputs_are_of_the_types_the_ui_draws() -> None:
    types = {name: output.type for name, output in evaluate_fastkan.component_spec.outputs.items()}
    assert types == {
        "metrics": "system.Metrics@0.0.1",
        "classification": "system.ClassificationMetrics@0.0.1",
        "report": "system.HTML@0.0.1",
        "summary": "system.Markdown@0.0.1",
        "average_precision": "Float",
        "previous_average_precision": "Float",
        "comparable": "Boolean",
    }


def test_missing_model_is_an_error_and_leaves_no_report(tmp_path: Path) -> None:
    report = dsl.HTML(uri=str(tmp_path / "report"))
    with pytest.raises(UserError, match="no-model"):
        evaluate_fastkan.python_func(
            dsl.Dataset(uri=str(tmp_path / "prepared")),
            dsl.Model(uri=str(tmp_path / "no-model")),
            dsl.Metrics(uri=str(tmp_path / "metrics")),
            dsl.ClassificationMetrics(uri=str(tmp_path / "classification")),
            report,
            dsl.Markdown(uri=str(tmp_path / "summary")),
        )
    assert not list(tmp_path.rglob("report.html"))
