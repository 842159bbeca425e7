"""The documents of a compiled pipeline, read strictly: a field that the schemas do not know is a finding."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from google.protobuf import json_format
from google.protobuf.message import Message
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, PipelineDeploymentConfig, PipelineSpec, PlatformSpec

# Name of the component that is the pipeline itself.
ROOT = "root"

# The C loader is several times as fast on the thousands of lines of a pipeline; some builds of PyYAML lack it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Parsed = TypeVar("Parsed", bound=Message)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A compiled pipeline as the backend reads it."""

    components: dict[str, ComponentSpec]
    """By name; the pipeline itself is ``root``."""

    executors: dict[str, PipelineDeploymentConfig.ExecutorSpec]
    """By label, what each step runs."""

    kubernetes: dict[str, KubernetesExecutorConfig]
    """By label, further settings of its pod."""


class DocumentError(ValueError):
    """A file holds no compiled pipeline; the message says why."""


def read_documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of the file at ``path``: the pipeline, and its platforms where it has any.

    Raises:
        DocumentError: The file holds something else.
    """
    try:
        documents = list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=LOADER))
    except OSError as error:
        raise DocumentError(f"cannot be read: {error.strerror}") from None
    except (UnicodeError, yaml.YAMLError) as error:
        raise DocumentError(f"cannot be read: {error}") from None
    if not 1 <= len(documents) <= 2 or not all(isinstance(document, dict) for document in documents):
        raise DocumentError("expected one document with the pipeline, and at most one with its platforms")
    return documents


def parse(documents: list[dict[str, Any]]) -> tuple[Compiled | None, list[str]]:
    """Read the documents of a pipeline strictly; return None where too much is wrong to continue, and the findings."""
    findings: list[str] = []
    spec = _parse(documents[0], PipelineSpec(), "pipeline", findings)
    if spec is None:
        return None, findings
    deployment = json_format.MessageToDict(spec.deployment_spec)
    config = _parse(deployment, PipelineDeploymentConfig(), "deploymentSpec", findings) or PipelineDeploymentConfig()
    kubernetes = _read_platform(documents[1], findings) if len(documents) == 2 else {}
    components = {**spec.components, ROOT: spec.root}
    return Compiled(components=components, executors=dict(config.executors), kubernetes=kubernetes), findings


def _read_platform(document: dict[str, Any], findings: list[str]) -> dict[str, KubernetesExecutorConfig]:
    platform = _parse(document, PlatformSpec(), "platforms", findings)
    if platform is None:
        return {}
    for name in sorted(set(platform.platforms) - {"kubernetes"}):
        findings.append(f"platforms: unknown platform {name!r}")
    configs = {}
    for label, struct in platform.platforms["kubernetes"].deployment_spec.executors.items():
        where = f"platforms.kubernetes: executor {label}"
        config = _parse(json_format.MessageToDict(struct), KubernetesExecutorConfig(), where, findings)
        if config is not None:
            configs[label] = config
    return configs


def _parse(content: dict[str, Any], message: Parsed, where: str, findings: list[str]) -> Parsed | None:
    """Fill ``message``; record unknown fields as findings and read the rest without them."""
    try:
        json_format.ParseDict(content, message)
        return message
    except json_format.ParseError as error:
        findings.append(f"{where}: {' '.join(str(error).split())}")
    message.Clear()
    try:
        json_format.ParseDict(content, message, ignore_unknown_fields=True)
        return message
    except json_format.ParseError:
        return None
