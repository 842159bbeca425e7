"""Batch scoring: a plan, a pod for each part, metrics and drift over all of them, and the gate."""

from collections.abc import Callable
from typing import NamedTuple

from kfp import dsl

from components.deployment.complete_scores import complete_scores
from components.deployment.plan_scoring import plan_scoring
from components.deployment.predict_parquet import predict_parquet
from components.deployment.summarize_scores import summarize_scores
from pipelines.form import REQUIRED, Values, as_pipeline, bind, merged, parameters_of
from pipelines.pods import Settings, configure_pod
from pipelines.steps import uris

PARAMETERS = merged(
    parameters_of(plan_scoring),
    parameters_of(complete_scores),
    changed={"model_uri": {"default": REQUIRED}},
)


class Outputs(NamedTuple):
    """Outputs of a batch scoring."""

    rows: int
    average_precision: float
    max_psi: float
    report: dsl.HTML


DESCRIBED = {
    "rows": "Rows that were scored.",
    "average_precision": "Average precision over all rows; 0 without label columns.",
    "max_psi": "Largest population stability index of a column or score; 0 if the model does not know its training's.",
    "report": "One self-contained page: metrics, and a table of the drift of each column and score.",
}


def build_score(settings: Settings, name: str) -> Callable[[Values], Outputs]:
    """Return a function that adds the tasks to score the files of a form's values."""

    def score(values: Values) -> Outputs:
        plan = configure_pod(bind(plan_scoring, values), values, settings, is_retried=False)
        with dsl.ParallelFor(plan.output, name="score", parallelism=settings.parallelism) as part:
            scored = configure_pod(bind(predict_parquet, values, part=part), values, settings).after(plan)
        summary = configure_pod(bind(summarize_scores, values), values, settings).after(scored)
        # After the summary, whose report shows why the gate failed.
        done = configure_pod(bind(complete_scores, values), values, settings, is_retried=False).after(summary)
        found = summary.outputs
        return Outputs(done.outputs["rows"], found["average_precision"], found["max_psi"], found["report"])

    # kfp's local runner passes a loop no task outputs but its items, so the date comes from outside.
    scoring = as_pipeline(
        score,
        name=f"{name}-parts",
        summary="Score with many pods at once, and hold the gate.",
        parameters=settings.form(PARAMETERS),
        returns=Outputs,
    )

    def score_dated(values: Values) -> Outputs:
        outputs = bind(scoring, uris.resolve(values, settings)).outputs
        return Outputs(**{name: outputs[name] for name in Outputs._fields})

    return score_dated
