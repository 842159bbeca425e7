"""The compiled pipelines: which there are, how they are written and loaded."""

import tempfile
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, components
from kfp.dsl.base_component import BaseComponent

from pipelines.assets import load_asset
from pipelines.lint.documents import read_documents
from pipelines.versions import LATEST, leave_out_unknown, read_version

ROOT = Path(__file__).parent
# Folder of each pipeline.
PIPELINES = {
    "single-node": "training/fastkan_training",
    "single-node-pvc": "training/fastkan_single_node_pvc",
    "parallel-prepare": "training/fastkan_parallel_prepare",
    "multi-node": "training/fastkan_multi_node",
    "sweep": "training/fastkan_sweep",
    "batch-scoring": "deployment/fastkan_batch_scoring",
    "smoke": "training/fastkan_smoke",
}

# Suits most data, except for terabytes and several nodes.
DEFAULT = "single-node"


def package_of(name: str) -> Path:
    """Return the compiled file of a pipeline.

    >>> package_of("sweep").relative_to(ROOT).as_posix()
    'training/fastkan_sweep/pipeline.yaml'
    """
    return ROOT / PIPELINES[name] / "pipeline.yaml"


def compile_pipeline(name: str, path: Path, version: str = LATEST) -> None:
    """Compile a pipeline to ``path``, for servers of ``version``.

    Raises:
        VersionError: Such a server cannot run it.
    """
    with tempfile.TemporaryDirectory() as aside:
        fresh = Path(aside) / "pipeline.yaml"
        compiler.Compiler().compile(load_asset(f"pipelines/{PIPELINES[name]}"), str(fresh))
        if version != LATEST:
            adapt_to(fresh, version)
        path.write_text(fresh.read_text(encoding="utf-8"), encoding="utf-8")


def adapt_to(path: str | Path, version: str) -> None:
    """Remove what servers of ``version`` do not know from a compiled file.

    Raises:
        VersionError: Such a server cannot run it; the file is as before.
    """
    path = Path(path)
    documents = leave_out_unknown(read_documents(path), read_version(version))
    # After the comment at the top, in which kfp describes the form.
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    heading = "".join(takewhile(lambda line: line.startswith("#"), lines))
    path.write_text(heading + yaml.safe_dump_all(documents), encoding="utf-8")


def is_current(name: str, path: Path, version: str = LATEST) -> bool:
    """Return whether the file at ``path`` equals a newly compiled one."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "pipeline.yaml"
        compile_pipeline(name, fresh, version)
        return path.exists() and read_documents(path) == read_documents(fresh)


def inputs_of(path: Path) -> dict[str, Any]:
    """Return the parameters of a compiled pipeline by name, as its file describes them."""
    inputs: dict[str, Any] = read_documents(path)[0]["root"].get("inputDefinitions", {}).get("parameters", {})
    return inputs


def load_pipeline(path: Path, image: str = "") -> BaseComponent:
    """Load a compiled pipeline to run it on this machine.

    Args:
        path: The compiled file.
        image: Image of every step, as kfp's local runner does not take it from the form.
    """
    documents = read_documents(path)
    for part in (documents[0]["root"], *documents[0]["components"].values()):
        for task in part.get("dag", {}).get("tasks", {}).values():
            # Without retries: on one machine a failure would only repeat minutes later.
            task.pop("retryPolicy", None)
    for executor in documents[0]["deploymentSpec"]["executors"].values():
        if image:
            executor["container"]["image"] = image
    return components.load_component_from_text(yaml.safe_dump_all(documents))
