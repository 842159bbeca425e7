"""Evaluation, the gate, and publishing behind it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kfp import dsl

from components.deployment.publish_model import publish_model
from components.evaluation.approve_model import approve_model
from components.evaluation.evaluate_fastkan import evaluate_fastkan
from pipelines.form import Parameter, Values, as_pipeline, bind, merged, parameters_of
from pipelines.pods import Settings, configure_pod

RESULTS = ("average_precision", "previous_average_precision", "comparable")
GATE = parameters_of(approve_model, leave_out=RESULTS)
PARAMETERS = merged(parameters_of(evaluate_fastkan, leave_out=("split",)), GATE, parameters_of(publish_model))


class Outputs(NamedTuple):
    """What a pipeline hands to whoever runs it."""

    average_precision: float
    approved: bool
    model: dsl.Model
    report: dsl.HTML


DESCRIBED = {
    "average_precision": "Average precision on the test split.",
    "approved": "Whether the model passed the gate.",
    "model": "Run folder: the best model under model/, its metrics, the history and the logs.",
    "report": "One self-contained page: curves, calibration, thresholds, training history.",
}


def build_finish(settings: Settings) -> Callable[[Values, Any, Any], Outputs]:
    """Return what evaluates a model, decides, and publishes it."""
    artifacts = (
        Parameter(name="model", type=dsl.Input[dsl.Model], description="Run folder of the approved model."),
        Parameter(name="metrics", type=dsl.Input[dsl.Metrics], description="Its test metrics."),
    )

    def publish(values: Values) -> None:
        configure_pod(bind(publish_model, values), values, settings)

    # A task behind a condition gets its resources from parameters only through a pipeline of its own.
    publishing = as_pipeline(
        publish,
        name="publish-approved",
        summary="Publish the approved model.",
        parameters=[*artifacts, *settings.form(parameters_of(publish_model))],
    )

    def finish(values: Values, prepared: Any, model: Any) -> Outputs:
        evaluated = bind(evaluate_fastkan, values, prepared=prepared, model=model, split="test")
        results = configure_pod(evaluated, values, settings).outputs
        scores = {name: results[name] for name in RESULTS}
        approved = configure_pod(bind(approve_model, values, **scores), values, settings).output
        with dsl.If(approved == True, name="approved"):  # noqa: E712 - kfp compares the output when it runs
            bind(publishing, values, model=model, metrics=results["metrics"])
        return Outputs(results["average_precision"], approved, model, results["report"])

    return finish
