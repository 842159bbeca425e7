"""Run a compiled pipeline on this machine, without a cluster."""

import os
import warnings
from pathlib import Path
from typing import Any

import docker
from kfp import local
from rich.text import Text

from dkan_core.utils.storage.credentials import CONFIG_KEYS, SECRET_KEYS, own_name
from pipelines.compiled import load_pipeline


class PipelineFailedError(RuntimeError):
    """A component of a local run failed; its log, above, says why."""


def find_docker_fault() -> str:
    """Return why Docker cannot run containers; empty if it can."""
    try:
        docker.from_env().ping()
    except docker.errors.DockerException as error:
        return f"Docker cannot be reached, and --image runs the steps as containers: {error}"
    return ""


def run_locally(pipeline: Path, arguments: dict[str, Any], out: Path, image: str = "") -> dict[str, Any]:
    """Execute the compiled ``pipeline``, with artifacts under ``out``.

    Args:
        pipeline: The compiled file.
        arguments: Its parameters.
        out: Folder for the artifacts.
        image: Image of the containers that the steps run in, with the network and the storage credentials of this
            process. Empty: the steps are subprocesses of this interpreter.

    Returns:
        The pipeline's outputs by name: parameters, and the paths of artifacts.

    Raises:
        PipelineFailedError: A component failed.
    """
    # The warning applies to every local run, whose steps use this machine, and without an image this environment.
    warnings.filterwarnings("ignore", message="You may be attemping to run", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=".* have no effect in the current local runner", category=UserWarning)
    local.init(_containers() if image else local.SubprocessRunner(use_venv=False), pipeline_root=str(out))
    try:
        outputs = load_pipeline(pipeline, image)(**arguments).outputs
    except RuntimeError as error:
        raise PipelineFailedError(Text.from_ansi(str(error)).plain) from error
    found = {name: Path(value.path).absolute() if hasattr(value, "path") else value for name, value in outputs.items()}
    if not found["report"].is_file():
        # kfp counts a container that has ended before it is first checked as successful.
        raise PipelineFailedError("A step ended without its outputs.")
    return found


def _containers() -> local.DockerRunner:
    """Return a runner of containers that have this process's network and credentials, and write files as its user."""
    names = (*SECRET_KEYS, *CONFIG_KEYS)
    keys = {name: os.environ[name] for name in (*names, *map(own_name, names)) if name in os.environ}
    return local.DockerRunner(network_mode="host", environment=keys, user=f"{os.getuid()}:{os.getgid()}")
