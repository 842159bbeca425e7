"""Pipeline ``single-node-pvc``: prepared data and checkpoints on a shared volume, which no step copies."""

from typing import Any

from kfp import dsl

from pipelines.factory import define_pipeline
from pipelines.pods import VOLUME_PATH, Settings
from pipelines.steps import evaluate

ON_VOLUME = define_pipeline(
    "fastkan-single-node-pvc",
    settings=Settings(volume=True),
    form={
        "prepared_uri": {"default": f"{VOLUME_PATH}/prepared"},
        "checkpoint_uri": {"default": f"{VOLUME_PATH}/checkpoints"},
    },
)


@dsl.pipeline(name=ON_VOLUME.name, display_name=ON_VOLUME.display_name)
@ON_VOLUME.form
def fastkan_single_node_pvc(**values: Any) -> evaluate.Outputs:
    """Train FastKAN on tabular Parquet data, with everything on a shared volume; publish what is good enough."""
    return ON_VOLUME.tasks(values)
