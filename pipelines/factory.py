"""The pipeline's steps in order, and the factory for what can only be set when it is compiled."""

from collections.abc import Mapping
from typing import Any

from kfp.dsl.base_component import BaseComponent

from pipelines.cluster import Settings
from pipelines.form import Values, as_pipeline, merged
from pipelines.steps import finish, prepare, train
from pipelines.steps.step import Step

SUMMARY = "Train FastKAN on tabular Parquet data for binary or multi-label classification; publish what is good enough."
SEED = {"description": "Decides split, shuffle, initialization, batch order and dropout."}


def build_pipeline(
    name: str = "fastkan-training",
    *,
    summary: str = SUMMARY,
    preparation: Step = prepare.ONCE,
    training: Step = train.ONCE,
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
        display_name=name.replace("-", " ").replace("fastkan", "FastKAN"),
        summary=summary,
        parameters=merged(
            settings.form(merged(preparation.asks, training.asks, finish.ASKS)), changed={"seed": SEED, **(form or {})}
        ),
        returns=finish.Outputs,
        described=finish.DESCRIBED,
    )
