"""Pipeline ``smoke``: every step once, on real data that the image carries: minutes, without GPU or bucket."""

from pipelines.factory import build_pipeline
from pipelines.steps import prepare

fastkan_smoke = build_pipeline(
    "fastkan-smoke",
    preparation=prepare.SAMPLE,
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
