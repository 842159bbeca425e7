"""Pipeline ``single-node-pvc``: prepared data and checkpoints on a shared volume, which no step copies."""

from pipelines.factory import build_pipeline
from pipelines.pods import VOLUME_PATH, Settings

fastkan_single_node_pvc = build_pipeline(
    "fastkan-single-node-pvc",
    settings=Settings(volume=True),
    form={
        "prepared_uri": {"default": f"{VOLUME_PATH}/prepared"},
        "checkpoint_uri": {"default": f"{VOLUME_PATH}/checkpoints"},
    },
)
