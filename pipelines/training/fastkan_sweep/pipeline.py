"""Pipeline ``sweep``: several runs with other settings, of which the best by validation is published."""

from pipelines.factory import build_pipeline
from pipelines.steps import train

fastkan_sweep = build_pipeline("fastkan-sweep", training=train.SWEEP)
