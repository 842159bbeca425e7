"""Pipeline ``parallel-prepare``: many pods prepare, one pod with all GPUs trains."""

from pipelines.factory import build_pipeline
from pipelines.pods import Settings
from pipelines.steps import prepare

# Of at most 64: enough to keep a bucket busy, and few enough that a cluster starts their drivers without delay.
PARTS_AT_A_TIME = 16

fastkan_parallel_prepare = build_pipeline(
    "fastkan-parallel-prepare", preparation=prepare.IN_PARALLEL, settings=Settings(parallelism=PARTS_AT_A_TIME)
)
