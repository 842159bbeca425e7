"""``mlflow.json`` records the MLflow run of a folder, so that a resumed run and an evaluation find it."""

import os
from pathlib import Path

from dkan_core.utils.schemas import Schema, read_json
from dkan_core.utils.storage.files import json_text, read_if_there
from dkan_core.utils.storage.staging import staged_file

RECORD = "mlflow.json"

RUN_ID = "MLFLOW_RUN_ID"
"""MLflow's own variable with the id of the run to log to."""


class RunRecord(Schema):
    """Contents of ``mlflow.json``."""

    run_id: str
    """Of the run in MLflow."""

    experiment_id: str
    """Of its experiment."""


def write_record(folder: str | Path, record: RunRecord) -> None:
    """Write a record into a folder, local or remote."""
    with staged_file(f"{folder}/{RECORD}") as aside:
        aside.write_text(json_text(record.model_dump()), encoding="utf-8")


def known_run(*folders: str | Path) -> str | None:
    """Return the run that MLflow's variable names, or the one recorded in the first of some folders that has one.

    Raises:
        DataError: A record is damaged.
    """
    if named := os.environ.get(RUN_ID):
        return named
    for folder in folders:
        where = f"{folder}/{RECORD}"
        if text := read_if_there(where):
            return read_json(RunRecord, text, where).run_id
    return None
