"""Builds pipelines: puts their steps in order, with settings that can only be set when a pipeline is compiled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from pipelines.form import Parameter, Values, form, merged
from pipelines.pods import Settings
from pipelines.steps import PipelineStep, TrainingStep, evaluate, prepare, score, train, uris

SUMMARY = "Train FastKAN on tabular Parquet data for binary or multi-label classification; publish what is good enough."
SCORING_SUMMARY = "Score tabular Parquet with a trained FastKAN, file by file by many pods; measure drift; hold a gate."
EVERY_STEP = {
    "step_cpu": {"description": "CPU limit of every step."},
    "step_memory": {"description": "Memory limit of every step."},
    "step_node_selector": {"description": "Labels that nodes must have for every step. Empty: any node."},
    "step_tolerations": {"description": "Tolerations of every step, as in a pod's spec. Empty: none."},
}
# One field for both seeds of preparation and training, which have descriptions of their own.
SEED = {"description": "Decides split, shuffle, initialization, batch order and dropout."}


Outputs = TypeVar("Outputs")
"""NamedTuple of a pipeline's outputs."""


@dataclass(frozen=True, kw_only=True)
class Definition(Generic[Outputs]):
    """What a pipeline consists of, for a function under ``@dsl.pipeline``."""

    name: str
    """Its name in Kubeflow; checkpoints are kept under it."""

    parameters: list[Parameter]
    """Its form."""

    tasks: Callable[[Values], Outputs]
    """Creates its tasks from the values of the form, and returns its outputs."""

    returns: type[Outputs]
    """Type of the outputs."""

    described: Mapping[str, str] = field(repr=False)
    """Description of each output."""

    @property
    def display_name(self) -> str:
        """Its name in the Kubeflow UI."""
        return self.name.replace("-", " ").replace("fastkan", "FastKAN")

    def form(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Give a function the form, whose values it gets by name; its docstring is the description's first line."""
        return form(self.parameters, self.returns, self.described)(function)

    def pipeline(self, summary: str) -> BaseComponent:
        """Return the pipeline, with ``summary`` as the first line of its description."""

        def pipeline(**values: Any) -> Any:
            return self.tasks(values)

        pipeline.__doc__ = summary
        return dsl.pipeline(name=self.name, display_name=self.display_name)(self.form(pipeline))


def define_pipeline(
    name: str,
    *,
    preparation: PipelineStep = prepare.ONCE,
    training: TrainingStep = train.ONCE,
    settings: Settings | None = None,
    form: Mapping[str, Mapping[str, Any]] | None = None,
) -> Definition[evaluate.Outputs]:
    """Define a pipeline: prepare, train, evaluate, approve, publish; the arguments are those of ``build_pipeline``."""
    settings = settings or Settings()
    prepare_data = preparation.build(settings, name)
    train_model = training.build(settings, name)
    evaluate_model = evaluate.build_evaluate(settings)

    def tasks(values: Values) -> evaluate.Outputs:
        values = uris.resolve(values, settings)
        prepared, fingerprint = prepare_data(values, train.check(training.check, values, settings))
        return evaluate_model(values, prepared, train_model({**values, "data_fingerprint": fingerprint}, prepared))

    return Definition(
        name=name,
        parameters=merged(
            settings.form(merged(preparation.parameters, training.parameters, evaluate.PARAMETERS)),
            changed={"seed": SEED, **(form or {})},
        ),
        tasks=tasks,
        returns=evaluate.Outputs,
        described=evaluate.DESCRIBED,
    )


def define_scoring_pipeline(
    name: str,
    *,
    settings: Settings | None = None,
    form: Mapping[str, Mapping[str, Any]] | None = None,
) -> Definition[score.Outputs]:
    """Define a pipeline: plan, score in parts, metrics and drift, gate; as ``build_scoring_pipeline`` does."""
    settings = settings or Settings()
    return Definition(
        name=name,
        parameters=merged(merged(settings.form(score.PARAMETERS), changed=EVERY_STEP), changed=form),
        tasks=score.build_score(settings, name),
        returns=score.Outputs,
        described=score.DESCRIBED,
    )


def build_pipeline(
    name: str = "fastkan-training",
    *,
    summary: str = SUMMARY,
    preparation: PipelineStep = prepare.ONCE,
    training: TrainingStep = train.ONCE,
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
    definition = define_pipeline(name, preparation=preparation, training=training, settings=settings, form=form)
    return definition.pipeline(summary)


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
    return define_scoring_pipeline(name, settings=settings, form=form).pipeline(summary)
