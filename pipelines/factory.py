"""The pipeline's steps in order, and the factory for what can only be set when it is compiled."""

from collections.abc import Mapping
from typing import Any

from kfp.dsl.base_component import BaseComponent

from pipelines.form import Values, as_pipeline, merged
from pipelines.pods import Settings
from pipelines.steps import PipelineStep, finish, prepare, score, train

SUMMARY = "Train FastKAN on tabular Parquet data for binary or multi-label classification; publish what is good enough."
SCORING_SUMMARY = "Score tabular Parquet with a trained FastKAN, file by file by many pods; measure drift; hold a gate."
EVERY_STEP = {
    "step_cpu": {"description": "CPU limit of every step."},
    "step_memory": {"description": "Memory limit of every step."},
}
# One field for the seeds of preparation and training, which each describe their own.
SEED = {"description": "Decides split, shuffle, initialization, batch order and dropout."}


def build_pipeline(
    name: str = "fastkan-training",
    *,
    summary: str = SUMMARY,
    preparation: PipelineStep = prepare.ONCE,
    training: PipelineStep = train.ONCE,
    settings: Settings | None = None,
    form: Mapping[str, Mapping[str, Any]] | None = None,
) -> BaseComponent:
    """Build a pipeline: prepare, train, evaluate, approve, publish.

    Args:
        name: What Kubeflow calls it; checkpoints are kept under it.
        summary: First line of its description.
        preparation: How data are prepared.
        training: How a model is trained.
        settings: What cannot be changed once it is compiled.
        form: Changes to its parameters by name, such as ``{"num_gpus": {"default": "4"}}``.

    Returns:
        What ``kfp.compiler.Compiler().compile`` takes.

    Raises:
        ValueError: ``form`` changes a parameter that there is none of.
    """
    settings = settings or Settings()
    prepare_data = preparation.build(settings, name)
    train_model = training.build(settings, name)
    finish_run = finish.build_finish(settings)

    def body(values: Values) -> finish.Outputs:
        prepared, fingerprint = prepare_data(values)
        return finish_run(values, prepared, train_model({**values, "data_fingerprint": fingerprint}, prepared))

    return as_pipeline(
        body,
        name=name,
        display_name=_display_name(name),
        summary=summary,
        parameters=merged(
            settings.form(merged(preparation.parameters, training.parameters, finish.PARAMETERS)),
            changed={"seed": SEED, **(form or {})},
        ),
        returns=finish.Outputs,
        described=finish.DESCRIBED,
    )


def build_scoring_pipeline(
    name: str = "fastkan-batch-scoring",
    *,
    summary: str = SCORING_SUMMARY,
    settings: Settings | None = None,
    form: Mapping[str, Mapping[str, Any]] | None = None,
) -> BaseComponent:
    """Build a pipeline: plan, score in parts, metrics and drift, gate.

    Args:
        name: What Kubeflow calls it.
        summary: First line of its description.
        settings: What cannot be changed once it is compiled; ``parallelism`` limits the pods that score at a time.
        form: Changes to its parameters by name, such as ``{"num_parts": {"default": 64}}``.

    Returns:
        What ``kfp.compiler.Compiler().compile`` takes.

    Raises:
        ValueError: ``form`` changes a parameter that there is none of.
    """
    settings = settings or Settings()
    return as_pipeline(
        score.build_score(settings),
        name=name,
        display_name=_display_name(name),
        summary=summary,
        parameters=merged(merged(settings.form(score.PARAMETERS), changed=EVERY_STEP), changed=form),
        returns=score.Outputs,
        described=score.DESCRIBED,
    )


def _display_name(name: str) -> str:
    return name.replace("-", " ").replace("fastkan", "FastKAN")
