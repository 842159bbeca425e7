"""Preparation: from Parquet at a URI, by one pod or many, or from the sample that comes with dkan."""

from typing import Any, NamedTuple

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from components.data_processing.fingerprint_parquet import fingerprint_parquet
from components.data_processing.finish_preparation import finish_preparation
from components.data_processing.fit_preparation import fit_preparation
from components.data_processing.plan_preparation import plan_preparation
from components.data_processing.prepare_parquet import prepare_parquet
from components.data_processing.prepare_part import prepare_part
from components.data_processing.sample_parquet import sample_parquet
from pipelines.form import REQUIRED, Values, as_pipeline, bind, merged, parameters_of
from pipelines.pods import Settings, configure_pod
from pipelines.steps import PipelineStep

OF_DATA = ("data_uri", "prepared_uri", "data_fingerprint", "source")
# Label of the sample data that write_sample takes from scikit-learn.
SAMPLE_LABEL = "malignant"


class Prepared(NamedTuple):
    """Outputs of a preparation by many pods."""

    prepared: dsl.Dataset


def fingerprint(values: Values, settings: Settings) -> Any:
    """Return the fingerprint of the source files and of the settings that preparation depends on."""
    return configure_pod(bind(fingerprint_parquet, values), values, settings, is_control=True, is_retried=False).output


def _prepare_once(settings: Settings, _: str) -> Any:
    def prepare(values: Values, checked: Any) -> Any:
        known_by = fingerprint(values, settings)
        task = bind(prepare_parquet, values, data_fingerprint=known_by).after(checked)
        return configure_pod(task, values, settings, cached=True, is_retried=False).outputs["prepared"], known_by

    return prepare


def parallel_preparation(settings: Settings, name: str) -> BaseComponent:
    """Return the pipeline within the pipeline ``name`` that prepares with many pods."""

    def every_part(values: Values, plan: Any, stage: str, before: Any) -> Any:
        # A task rather than a pipeline, which would need one more driver pod for each part.
        with dsl.ParallelFor(plan.output, name=stage, parallelism=settings.parallelism) as part:
            task = configure_pod(bind(prepare_part, values, stage=stage, part=part), values, settings)
            return task.after(before)

    def by_many(values: Values) -> Prepared:
        plan = configure_pod(bind(plan_preparation, values), values, settings, is_retried=False)
        surveyed = every_part(values, plan, "survey", plan)
        fitted = configure_pod(bind(fit_preparation, values), values, settings, is_retried=False).after(surveyed)
        encoded = every_part(values, plan, "encode", fitted)
        assembled = every_part(values, plan, "assemble", encoded)
        written = configure_pod(bind(finish_preparation, values), values, settings).after(assembled)
        # Writing the manifest is never cached, as the data may have been built again. The second call is cached, as
        # training's cache key includes the artifact's number, which must be the same for the same data.
        again = bind(finish_preparation, values, fingerprint=written.outputs["Output"])
        return Prepared(configure_pod(again, values, settings, cached=True).outputs["prepared"])

    # kfp's local runner passes a loop no task outputs but its items, so the fingerprint comes from outside.
    return as_pipeline(
        by_many,
        name=f"{name}-preparation",
        summary="Prepare with many pods at once.",
        parameters=settings.form(parameters_of(plan_preparation)),
        returns=Prepared,
    )


def _prepare_in_parallel(settings: Settings, name: str) -> Any:
    preparation = parallel_preparation(settings, name)

    def prepare(values: Values, checked: Any) -> Any:
        known_by = fingerprint(values, settings)
        task = bind(preparation, values, data_fingerprint=known_by).after(checked)
        return task.outputs["prepared"], known_by

    return prepare


def _prepare_sample(settings: Settings, _: str) -> Any:
    def prepare(values: Values, checked: Any) -> Any:
        sample = configure_pod(sample_parquet(), values, settings, cached=True)
        task = bind(prepare_parquet, values, source=sample.outputs["source"], label=SAMPLE_LABEL).after(checked)
        return configure_pod(task, values, settings, cached=True, is_retried=False).outputs["prepared"], "sample"

    return prepare


# Required in a form, though not by the component, which also takes Parquet from an upstream step.
NEEDED = {name: {"default": REQUIRED} for name in ("data_uri", "label")}

ONCE = PipelineStep(
    parameters=merged(parameters_of(prepare_parquet, leave_out=("data_fingerprint",)), changed=NEEDED),
    build=_prepare_once,
)
IN_PARALLEL = PipelineStep(
    parameters=parameters_of(plan_preparation, leave_out=("data_fingerprint",)), build=_prepare_in_parallel
)
SAMPLE = PipelineStep(parameters=parameters_of(prepare_parquet, leave_out=(*OF_DATA, "label")), build=_prepare_sample)
