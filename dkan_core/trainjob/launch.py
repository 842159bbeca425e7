"""``train_on_nodes`` creates or finds the TrainJob of a run, follows it, and cleans up."""

import json
import logging
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dkan_core.config import NodesConfig, TrainConfig, check_config
from dkan_core.data.format.manifest import MANIFEST, manifest_text, no_manifest
from dkan_core.errors import ClusterUnreachableError, ConfigError, DataError, DkanError, TrainingError
from dkan_core.training.history import HISTORY, read_history
from dkan_core.training.launcher.run_folder import CONTENTS, WRITTEN, check_run_folder
from dkan_core.training.launcher.train import TrainResult
from dkan_core.training.setup.early_checks import check_names, check_split
from dkan_core.trainjob.body import arguments, job_name, settle, train_job
from dkan_core.trainjob.cluster import Cluster, check_sdk, index_of
from dkan_core.trainjob.logs import LogFollower
from dkan_core.utils.file_names import METRICS, MODEL_FOLDER
from dkan_core.utils.schemas import parse_json
from dkan_core.utils.signals import exit_once, handle_signal
from dkan_core.utils.storage.files import read_if_there
from dkan_core.utils.storage.paths import is_remote, is_shared, local_path
from dkan_core.utils.storage.remote import download_folder
from dkan_core.utils.storage.staging import staged_folder

POLL_SECONDS = 2.0

logger = logging.getLogger(__name__)


def train_on_nodes(
    prepared: str | Path,
    run: str | Path,
    config: TrainConfig,
    nodes: NodesConfig,
    *,
    copy_to: str | Path | None = None,
) -> TrainResult:
    """Train on several nodes of a Kubernetes cluster that has Kubeflow Trainer v2, and wait for the end.

    The job's name is derived from data, settings and ``run``, so a retry finds the job of an earlier attempt, running
    or complete. A job is deleted if it fails or takes too long, or if its launcher is told to end. Its checkpoints
    stay, and the next attempt resumes from the last one.

    Args:
        prepared: Folder that ``prepare`` wrote: a URI, or a path on the claim that all nodes mount.
        run: Folder for the run, also there; ``train`` says what it will hold. {run} in it becomes the job's name.
        config: Settings of the training.
        nodes: What to ask the cluster for.
        copy_to: Folder that the run without its checkpoints is copied to.

    Returns:
        The path of the best model, its validation AP, and the history of evaluations.

    Raises:
        ConfigError: A setting is wrong, nodes cannot reach data or run, this process has no cluster or no permission to
            create jobs in it, or the SDK is missing.
        DataError: There is no prepared data set.
        ClusterUnreachableError: The cluster does not answer.
        TrainingError: The job failed, timed out, or was deleted; the message has the end of its log.
    """
    check_config(TrainConfig, config)
    check_config(NodesConfig, nodes)
    data, out = (_shared(name, uri, nodes) for name, uri in (("prepared", prepared), ("run", run)))
    config = _settled(config, nodes)
    # The name comes first, as it identifies the job of an earlier attempt.
    name = job_name(out, _fingerprint(data), config, nodes)
    out = out.replace("{run}", name)
    cluster = Cluster(nodes.namespace)
    body = train_job(name, arguments(data, out, config), nodes)
    _JobRun(cluster, body, out, nodes.timeout_seconds).execute()
    result = _result(out)
    if copy_to is not None:
        _copy(out, copy_to)
    return result


def check_training_on_nodes(
    run: str | Path,
    config: TrainConfig,
    nodes: NodesConfig,
    sources: str | Path | Sequence[str | Path] = (),
    labels: str = "",
    split: str = "",
    prepared: str | Path | None = None,
    categorical: str = "",
) -> None:
    """Check the arguments of ``train_on_nodes`` before any data are prepared, which may take hours.

    Args:
        run: Folder for the run.
        config: Settings of the training.
        nodes: What to ask the cluster for.
        sources: As for ``check_training``.
        labels: As for ``check_training``.
        split: As for ``check_training``.
        prepared: Folder that the data will be prepared in. Default: not known.
        categorical: As for ``check_training``.

    Raises:
        ConfigError: A setting is wrong, nodes cannot reach ``prepared`` or ``run``, or the SDK is missing.
        DataError: Columns are to be read, and a file is missing or broken.
    """
    check_sdk()
    if prepared is not None:
        _shared("prepared_uri", prepared, nodes)
    _shared("run_uri", run, nodes)
    _settled(config, nodes)
    check_names(config, sources, labels, categorical)
    check_split(split)


def _settled(config: TrainConfig, nodes: NodesConfig) -> TrainConfig:
    if config.checkpoint_uri is not None:
        _shared("checkpoint_uri", config.checkpoint_uri, nodes)
    return settle(config, nodes)


def _shared(name: str, uri: str | Path, nodes: NodesConfig) -> str:
    """Return the path or URI as the nodes are to use it.

    Raises:
        ConfigError: It is of this machine alone.
    """
    if is_shared(uri, nodes.mount_path if nodes.pvc_name else ""):
        return str(uri).rstrip("/") if is_remote(uri) else str(local_path(uri))
    path = f"below {nodes.mount_path}, where claim {nodes.pvc_name} is" if nodes.pvc_name else "on pvc_name"
    raise ConfigError(
        f"{name} must be on storage that {nodes.nodes} nodes share: a URI such as s3://bucket/folder or a path {path}, "
        f"got {str(uri)!r}"
    )


def _fingerprint(data: str) -> str:
    text = manifest_text(data)
    if text is None:
        raise no_manifest(data)
    try:
        return str(json.loads(text)["fingerprint"])
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{data}/{MANIFEST}: is not a dkan manifest ({error})") from error


def _result(run: str) -> TrainResult:
    metrics, history = (read_if_there(f"{run}/{name}") for name in (METRICS, HISTORY))
    if metrics is None:
        raise TrainingError(
            f"{run}: the job is complete and has left no {METRICS} there; do the nodes write elsewhere?"
        )
    facts = parse_json(metrics, f"{run}/{METRICS}")
    average_precision = facts.get("average_precision") if isinstance(facts, dict) else None
    if not isinstance(average_precision, float):
        raise DataError(f"{run}/{METRICS}: average_precision: expected a number, got {average_precision!r}")
    return TrainResult(
        average_precision=average_precision,
        model=f"{run}/{MODEL_FOLDER}",
        metrics=facts,
        history=read_history(history or "", f"{run}/{HISTORY}"),
    )


def _copy(run: str, folder: str | Path) -> None:
    check_run_folder(folder, None, overwrite=True)
    with staged_folder(folder, names=WRITTEN, overwrite=True, contents=CONTENTS) as staging:
        download_folder(run, staging, WRITTEN)


class _JobRun:
    """One job from start to end."""

    def __init__(self, cluster: Cluster, body: dict[str, Any], run: str, timeout_seconds: float) -> None:
        self._cluster, self._body, self._run = cluster, body, run
        self._name = body["metadata"]["name"]
        self._title = f"TrainJob {cluster.namespace}/{self._name}"
        self._timeout = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds
        self._shown: list[str] = []
        self._percentage_shown = -1
        self._is_ours = False

    def execute(self) -> None:
        """Create the job and follow it to its end; delete it where that fails."""
        # A cluster ends a launcher with SIGTERM.
        with handle_signal(signal.SIGTERM, exit_once):
            try:
                if self._is_done():
                    return
                self._follow()
            except BaseException as error:
                if self._is_ours:
                    self._delete(error)
                raise

    def _follow(self) -> None:
        """Show the log and wait for the end; on failure, the error includes the last lines of the log."""
        follower = LogFollower(self._cluster, self._name)
        try:
            self._wait()
        except TrainingError as error:
            raise TrainingError("\n".join([str(error), *(f"  {line}" for line in follower.end())])) from error
        finally:
            follower.end()

    def _is_done(self) -> bool:
        """Make sure that a job exists; return whether an earlier one was complete already."""
        while True:
            job = self._cluster.get(self._name)
            if job is None:
                if self._create():
                    return False
                continue
            ending, why = _ending(job)
            if job["metadata"].get("deletionTimestamp"):
                self._check_time("an earlier one of the name is still being deleted")
                time.sleep(POLL_SECONDS)
            elif ending == "Complete" and read_if_there(f"{self._run}/{METRICS}") is not None:
                logger.info("%s: is complete", self._title)
                return True
            elif ending:
                logger.info("%s: an earlier one has ended (%s %s); a new one takes its place", self._title, ending, why)
                self._cluster.delete(self._name)
            else:
                self._is_ours = True
                logger.info("%s: runs already; following it", self._title)
                return False

    def _create(self) -> bool:
        """Create the job; return False if another process has created it first."""
        # Set before the request, because its answer may be lost, or this process may be told to end meanwhile.
        self._is_ours = True
        try:
            made = self._cluster.create(self._body)
        except ConfigError:
            self._is_ours = False
            raise
        if made:
            logger.info("%s: created", self._title)
        return made

    def _wait(self) -> None:
        """Wait for the end.

        Raises:
            TrainingError: It is not a good one.
        """
        while True:
            try:
                job, pods = self._cluster.get(self._name), self._cluster.pods(self._name)
            except ClusterUnreachableError as error:
                logger.warning("%s; the job may still be running; asking again", error)
                self._shown = ["the cluster does not answer"]
            else:
                if job is None:
                    raise TrainingError(f"{self._title} was deleted while it ran; a retry resumes from its checkpoint")
                self._show_progress(job)
                states = [_describe(pod) for pod in pods]
                ending, why = _ending(job)
                if ending == "Complete":
                    return
                if ending == "Failed":
                    raise TrainingError(f"{self._title} failed ({why}): {'; '.join(states) or 'it has no pods'}")
                if states != self._shown:
                    logger.info("%s: %s", self._title, "; ".join(states))
                    self._shown = states
            self._check_time("; ".join(self._shown) or "it has no pods")
            time.sleep(POLL_SECONDS)

    def _show_progress(self, job: dict[str, Any]) -> None:
        """Show the progress at every tenth, if Kubeflow Trainer keeps it in the job's status."""
        status = job.get("status", {}).get("trainerStatus", {})
        percentage = status.get("progressPercentage", -1)
        if percentage // 10 <= self._percentage_shown // 10:
            return
        self._percentage_shown = percentage
        seconds = status.get("estimatedRemainingSeconds")
        left = f", about {seconds} s left" if seconds else ""
        metrics = "".join(f"; {each['name']} {each['value']}" for each in status.get("metrics", []))
        logger.info("%s: %d%% done%s%s", self._title, percentage, left, metrics)

    def _check_time(self, state: str) -> None:
        if time.monotonic() > self._deadline:
            raise TrainingError(
                f"{self._title} was not done within timeout_seconds {self._timeout:g} ({state}); give more, "
                "a retry resumes from its checkpoint"
            )

    def _delete(self, cause: BaseException) -> None:
        logger.warning("%s: is deleted (%s)", self._title, str(cause).partition("\n")[0] or type(cause).__name__)
        try:
            self._cluster.delete(self._name)
        except DkanError as error:
            # Only logged, because the caller should get the original error.
            logger.error("%s; delete it yourself, or it ends at its activeDeadlineSeconds", error)


def _ending(job: dict[str, Any]) -> tuple[str, str]:
    """Return how a job has ended, Complete or Failed, and why; empty texts if it has not ended."""
    for condition in job.get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            said = (condition.get("reason"), condition.get("message"))
            return condition["type"], ": ".join(filter(None, said))
    return "", ""


def _describe(pod: Any) -> str:
    """Return a pod's phase, and the reason why it is not running."""
    facts = [f"node {index_of(pod)} {pod.status.phase}"]
    facts += [each.message for each in pod.status.conditions or () if each.type == "PodScheduled" and each.message]
    for container in pod.status.container_statuses or ():
        for state in filter(None, (container.state, container.last_state)):
            if state.waiting:
                facts.append(": ".join(filter(None, (state.waiting.reason, state.waiting.message))))
            if state.terminated and state.terminated.exit_code:
                facts.append(f"{state.terminated.reason or 'ended'}, exit code {state.terminated.exit_code}")
        if container.restart_count:
            facts.append(f"restarts {container.restart_count}")
    return ", ".join(filter(None, facts))
