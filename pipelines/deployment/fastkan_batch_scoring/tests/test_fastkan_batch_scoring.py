"""A loop over the parts of the plan, then the report, then the gate; tests/pipelines/test_batch_scoring.py runs it."""

from pathlib import Path
from typing import Any

import pytest
from kfp import compiler

from pipelines.compiled import inputs_of, package_of
from pipelines.factory import build_scoring_pipeline
from pipelines.lint.documents import read_documents
from pipelines.pods import Settings

PACKAGE = package_of("batch-scoring")


def scoring_tasks(path: Path) -> dict[str, dict[str, Any]]:
    (scoring,) = [
        part["dag"]["tasks"]
        for part in read_documents(path)[0]["components"].values()
        if "plan-scoring" in part.get("dag", {}).get("tasks", {})
    ]
    return dict(scoring)


def test_report_comes_before_the_gate_and_both_after_every_part() -> None:
    tasks = scoring_tasks(PACKAGE)
    (loop,) = [name for name, task in tasks.items() if "parameterIterator" in task]
    items = tasks[loop]["parameterIterator"]["items"]["inputParameter"]
    assert items == "pipelinechannel--plan-scoring-Output"
    waits = {name: task.get("dependentTasks", []) for name, task in tasks.items()}
    assert waits[loop] == ["plan-scoring"]
    assert loop in waits["summarize-scores"] and "summarize-scores" in waits["complete-scores"]


def test_every_step_gets_the_places_with_the_date_of_the_run() -> None:
    root = read_documents(PACKAGE)[0]["root"]["dag"]["tasks"]
    assert not root.pop("resolve-uris")["cachingOptions"].get("enableCache")
    (scoring,) = root.values()
    for name in ("data_uri", "output_uri"):
        source = scoring["inputs"]["parameters"][name]["taskOutputParameter"]
        assert source == {"producerTask": "resolve-uris", "outputParameterKey": name}


def test_form_needs_model_data_and_place() -> None:
    fields = inputs_of(PACKAGE)
    assert {name for name, field in fields.items() if not field.get("isOptional")} == {
        "model_uri", "data_uri", "output_uri"
    }  # fmt: skip
    assert fields["max_psi"]["defaultValue"] == fields["min_average_precision"]["defaultValue"] == 0


def test_factory_changes_the_form_and_limits_the_pods(tmp_path: Path) -> None:
    form: dict[str, dict[str, int | str]] = {"num_parts": {"default": 64}, "step_memory": {"default": "16Gi"}}
    pipeline = build_scoring_pipeline("nightly", settings=Settings(parallelism=16, volume=True), form=form)
    compiler.Compiler().compile(pipeline, str(tmp_path / "nightly.yaml"))
    fields = inputs_of(tmp_path / "nightly.yaml")
    assert fields["num_parts"]["defaultValue"] == 64 and fields["pvc_name"]["defaultValue"] == "dkan"
    assert fields["step_memory"] == inputs_of(PACKAGE)["step_memory"] | {"defaultValue": "16Gi"}
    tasks = scoring_tasks(tmp_path / "nightly.yaml").values()
    assert [task["iteratorPolicy"] for task in tasks if "parameterIterator" in task] == [{"parallelismLimit": 16}]
    with pytest.raises(ValueError, match="there is no parameter 'parts'"):
        build_scoring_pipeline(form={"parts": {"default": 64}})
