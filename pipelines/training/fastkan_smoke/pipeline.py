"""Pipeline ``smoke``: every step once, on real data that the image carries: minutes, without GPU or bucket."""

from typing import Any

from kfp import dsl

from pipelines.factory import define_pipeline
from pipelines.pods import Settings
from pipelines.steps import evaluate, prepare

SMOKE = define_pipeline(
    "fastkan-smoke",
    preparation=prepare.SAMPLE,
    # Taken from an earlier run, steps would say nothing of the cluster as it is now.
    settings=Settings(caching=False),
    form={
        "epochs": {"default": 10},
        "hidden": {"default": "32"},
        "members": {"default": 4},
        "split": {"default": "60/20/20"},
        "min_average_precision": {"default": 0.9},
        "cpu": {"default": "1"},
        "memory": {"default": "4Gi"},
        "step_cpu": {"default": "1"},
        "step_memory": {"default": "4Gi"},
    },
)


@dsl.pipeline(name=SMOKE.name, display_name=SMOKE.display_name)
@SMOKE.form
def fastkan_smoke(**values: Any) -> evaluate.Outputs:
    """Check that a cluster can run dkan: train FastKAN on a small data set that the image contains."""
    return SMOKE.tasks(values)
