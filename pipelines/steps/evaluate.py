"""Evaluation and the gate; a model that passes it is published."""

from collections.abc import Callable
from typing import Any, NamedTuple

from kfp import dsl

from components.evaluation.approve_model import approve_model
from components.evaluation.evaluate_fastkan import evaluate_fastkan
from pipelines.form import Values, bind, merged, parameters_of
from pipelines.pods import Settings, configure_pod
from pipelines.steps import publish

RESULTS = ("average_precision", "previous_average_precision", "comparable")
PARAMETERS = merged(
    parameters_of(evaluate_fastkan, leave_out=("split",)),
    parameters_of(approve_model, leave_out=RESULTS),
    publish.PARAMETERS,
)


class Outputs(NamedTuple):
    """Outputs of a pipeline."""

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


def build_evaluate(settings: Settings) -> Callable[[Values, Any, Any], Outputs]:
    """Return a function that adds the tasks to evaluate a model, decide, and publish it."""
    publishing = publish.build_publish(settings)

    def evaluate(values: Values, prepared: Any, model: Any) -> Outputs:
        evaluated = bind(evaluate_fastkan, values, prepared=prepared, model=model, split="test")
        results = configure_pod(evaluated, values, settings).outputs
        scores = {name: results[name] for name in RESULTS}
        approved = configure_pod(
            bind(approve_model, values, **scores), values, settings, is_control=True, is_retried=False
        ).output
        with dsl.If(approved == True, name="approved"):  # noqa: E712 - kfp compares the output when it runs
            bind(publishing, values, model=model, metrics=results["metrics"])
        return Outputs(results["average_precision"], approved, model, results["report"])

    return evaluate
