"""Pipeline ``batch-scoring``: a trained model scores raw Parquet, file by file by many pods, behind a gate."""

from typing import Any

from kfp import dsl

from pipelines.factory import define_scoring_pipeline
from pipelines.pods import PARTS_AT_A_TIME, Settings
from pipelines.steps import score

BATCH_SCORING = define_scoring_pipeline("fastkan-batch-scoring", settings=Settings(parallelism=PARTS_AT_A_TIME))


@dsl.pipeline(name=BATCH_SCORING.name, display_name=BATCH_SCORING.display_name)
@BATCH_SCORING.form
def fastkan_batch_scoring(**values: Any) -> score.Outputs:
    """Score tabular Parquet with a trained FastKAN, file by file by many pods; measure drift; hold a gate."""
    return BATCH_SCORING.tasks(values)
