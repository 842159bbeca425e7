"""Which trackers a run has, by its settings and its environment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dkan_core.config import TrainConfig
from dkan_core.errors import redact
from dkan_core.tracking import trainjob
from dkan_core.tracking.background import BackgroundTracker
from dkan_core.tracking.mlflow.client import URI, impatient_client, is_mlflow_wanted
from dkan_core.tracking.tensorboard import TensorBoardTracker
from dkan_core.tracking.tracker import RunEnd, TrackedRun, Tracker, Trackers


@contextmanager
def follow_run(run: TrackedRun) -> Iterator[Tracker]:
    """Yield the tracker that is to be told of a run's progress and evaluations, and of its end if it ends in order."""
    with impatient_client():
        trackers = Trackers(chosen_trackers(run.config))
        trackers.started(run)
        try:
            yield trackers
        except BaseException as error:
            is_stopped = isinstance(error, (SystemExit, KeyboardInterrupt))
            trackers.finished(RunEnd(status="stopped" if is_stopped else "failed"))
            raise


def chosen_trackers(config: TrainConfig) -> list[Tracker]:
    """Return the trackers of a run, each in a thread of its own."""
    found: list[Tracker] = []
    if config.tensorboard:
        found.append(BackgroundTracker(TensorBoardTracker(), "TensorBoard"))
    if os.environ.get(trainjob.URL):
        found.append(BackgroundTracker(trainjob.TrainJobTracker(), "the TrainJob's status"))
    if is_mlflow_wanted(config.tracking):
        # Imported only for runs that use it.
        from dkan_core.tracking.mlflow.run import MlflowTracker

        found.append(BackgroundTracker(MlflowTracker(), f"MLflow at {redact(os.environ[URI])}"))
    return found
