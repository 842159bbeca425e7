"""Runs of one sweep under one parent in MLflow, though each is started in its own pod.

The first run creates the parent, which the others find by a tag. MLflow has no atomic "create if missing", so several
runs may create one. Every run therefore takes the parent with the smallest id, looks again at its end, and removes
a parent that it created in vain. In the end there is one parent, and every run is under it.
"""

import os
import re
from typing import Any

VARIABLE = "DKAN_SWEEP"
"""Names the sweep that a run belongs to, such as the id of a pipeline's run."""

SWEEP_TAG, CREATOR_TAG = "dkan.sweep", "dkan.created_by"
PARENT_TAG = "mlflow.parentRunId"


def sweep_name() -> str:
    """Return the sweep that this process belongs to; empty for none."""
    return re.sub(r"[^\w.-]", "_", os.environ.get(VARIABLE, ""))


def join_sweep(client: Any, run_id: str, experiment_id: str, sweep: str) -> str:
    """Put a run under the parent of its sweep, and create that where there is none; return its id."""
    creators = _parents(client, experiment_id, sweep)
    if not creators:
        tags = {SWEEP_TAG: sweep, CREATOR_TAG: run_id}
        created = client.create_run(experiment_id, tags=tags, run_name=f"sweep {sweep}")
        creators = {created.info.run_id: run_id, **_parents(client, experiment_id, sweep)}
    parent = min(creators)
    client.set_tag(run_id, PARENT_TAG, parent)
    for other, creator in creators.items():
        if other != parent and creator == run_id:
            client.delete_run(other)
    return parent


def _parents(client: Any, experiment_id: str, sweep: str) -> dict[str, str]:
    """Return the runs that are parent of a sweep, each with the run that has created it."""
    found = client.search_runs([experiment_id], f"tags.`{SWEEP_TAG}` = '{sweep}'")
    return {run.info.run_id: run.data.tags.get(CREATOR_TAG, "") for run in found}
