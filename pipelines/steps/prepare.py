"""Preparation: from Parquet at a URI, by one pod or many, or from the sample that comes with dkan."""

from typing import Any

from components.data_processing.fingerprint_parquet import fingerprint_parquet
from components.data_processing.prepare_parquet import prepare_parquet
from components.data_processing.sample_parquet import sample_parquet
from pipelines.cluster import Settings, place
from pipelines.form import REQUIRED, Values, asked_by, fill, merged
from pipelines.steps.step import Step

PLACES = ("data_uri", "prepared_uri", "data_fingerprint", "source")
SAMPLE_LABEL = "malignant"


def fingerprint(values: Values, settings: Settings) -> Any:
    """Return the fingerprint of the source files and of what preparation depends on."""
    names = [parameter.name for parameter in asked_by(prepare_parquet, leave_out=PLACES)]
    also = "; ".join(f"{name}={values[name]}" for name in names)
    task = place(fingerprint_parquet(data_uri=values["data_uri"], also=also), values, settings)
    return task.output


def _prepare_once(settings: Settings, _: str) -> Any:
    def prepare(values: Values) -> Any:
        task = fill(prepare_parquet, values, data_fingerprint=fingerprint(values, settings))
        return place(task, values, settings, cached=True).outputs["prepared"]

    return prepare


def _prepare_sample(settings: Settings, _: str) -> Any:
    def prepare(values: Values) -> Any:
        sample = place(sample_parquet(), values, settings, cached=True)
        task = fill(prepare_parquet, values, source=sample.outputs["source"], label=SAMPLE_LABEL)
        return place(task, values, settings, cached=True).outputs["prepared"]

    return prepare


NEEDED = {name: {"default": REQUIRED} for name in ("data_uri", "label")}
"""What a form cannot do without, though the component can: it also takes Parquet of an upstream step."""

ONCE = Step(
    asks=merged(asked_by(prepare_parquet, leave_out=("data_fingerprint",)), changed=NEEDED), build=_prepare_once
)
SAMPLE = Step(asks=asked_by(prepare_parquet, leave_out=(*PLACES, "label")), build=_prepare_sample)
