"""Versions of Kubeflow Pipelines: the fields of a compiled pipeline that a server knows, and the loss without others.

A server parses a pipeline strictly: if its schema lacks a single field, it refuses the file, or the run fails at its
first step. The schemas of a version are those of its packages kfp-pipeline-spec and kfp-kubernetes, which do not
change between patch releases.
"""

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineDeploymentConfig, PipelineSpec, PlatformSpec

# Oldest first. The last one is the SDK's, for which the committed files are compiled.
VERSIONS = ("2.15", "2.16", "2.17")
LATEST = VERSIONS[-1]

# SecretAsEnv.optional and ConfigMapAsEnv.optional are new in 2.15, and nothing can replace them in older versions.
TOO_OLD = (
    "an older server cannot have keys of a Secret or ConfigMap that may be absent, so that no step would start unless "
    "every key existed"
)

# Fields of type Struct, and what they hold.
STRUCTS = {
    "ml_pipelines.PipelineSpec.deployment_spec": PipelineDeploymentConfig.DESCRIPTOR,
    "ml_pipelines.PlatformDeploymentConfig.executors": KubernetesExecutorConfig.DESCRIPTOR,
}


class VersionError(ValueError):
    """A pipeline cannot be compiled for a version; the message says why."""


@dataclass(frozen=True, kw_only=True)
class NewField:
    """A field that only newer servers know."""

    message: str
    """Full name of the message that has it."""

    name: str
    """Its name in a compiled file."""

    since: str
    """First version that knows it."""

    loss: str
    """Consequence for a run without it."""

    needed: bool = False
    """Whether a run without it would not do what the pipeline says, so that it cannot be compiled without it."""


NEW_FIELDS = (
    NewField(
        message="kfp_kubernetes.KubernetesExecutorConfig",
        name="securityContext",
        since="2.16",
        loss="each step runs as the user of its image, and a namespace that asks for runAsNonRoot refuses it",
    ),
    NewField(
        message="kfp_kubernetes.PvcMount",
        name="subPath",
        since="2.16",
        loss="the whole volume is mounted instead of one folder",
        needed=True,
    ),
    NewField(
        message="ml_pipelines.ComponentInputsSpec.ParameterSpec",
        name="literals",
        since="2.16",
        loss="the form takes values that are none of those listed",
    ),
    NewField(
        message="kfp_kubernetes.CreatePvc",
        name="dataSource",
        since="2.17",
        loss="a volume that is made for the run is empty",
        needed=True,
    ),
    NewField(
        message="ml_pipelines.PipelineConfig",
        name="activeDeadlineSeconds",
        since="2.17",
        loss="a run as a whole has no time limit",
    ),
    *(
        NewField(
            message="ml_pipelines.PipelineConfig",
            name=f"resourceTtlOn{end}",
            since="2.17",
            loss="the pods of a run are not deleted by themselves",
        )
        for end in ("Completion", "Failure", "Success")
    ),
)


@dataclass(frozen=True, kw_only=True)
class Occurrence:
    """A field in a compiled pipeline."""

    path: str
    """Its keys from the top of the document, separated by dots."""

    message: str
    """Full name of the message that has it."""

    name: str
    """Its name in a compiled file."""

    content: dict[str, Any]
    """The mapping that contains it."""

    key: str
    """Its key in it, which may also be the name in the schema."""


def read_version(text: str) -> str:
    """Return the server's version that ``text`` names, without the patch number.

    >>> read_version("2.16.1")
    '2.16'

    Raises:
        VersionError: It is not supported.
    """
    match = re.fullmatch(r"v?(\d+)\.(\d+)(\.\d+)?", text.strip())
    version = f"{match[1]}.{match[2]}" if match else text
    if version in VERSIONS:
        return version
    given = (int(match[1]), int(match[2])) if match else None
    oldest = tuple(int(number) for number in VERSIONS[0].split("."))
    why = TOO_OLD if given and given < oldest else f"a newer server takes what is compiled for {LATEST}"
    raise VersionError(f"Kubeflow Pipelines {text!r}: expected one of {', '.join(VERSIONS)}; {why}")


def missing_fields(version: str) -> dict[tuple[str, str], NewField]:
    """Return the fields that a version does not know, by message and name.

    >>> sorted(name for _, name in missing_fields("2.15") if name.startswith("s"))
    ['securityContext', 'subPath']
    """
    later = VERSIONS[VERSIONS.index(version) + 1 :]
    return {(field.message, field.name): field for field in NEW_FIELDS if field.since in later}


def find_unknown(documents: list[dict[str, Any]], version: str) -> list[tuple[Occurrence, NewField]]:
    """Return every field in a compiled pipeline that a server of ``version`` does not know."""
    missing = missing_fields(version)
    if not missing:
        return []
    found = ((field, missing.get((field.message, field.name))) for field in fields_of(documents))
    return [(field, new) for field, new in found if new is not None]


def leave_out_unknown(documents: list[dict[str, Any]], version: str) -> list[dict[str, Any]]:
    """Return a compiled pipeline without the fields that a server of ``version`` does not know.

    Raises:
        VersionError: The pipeline would do something else without one of the fields.
    """
    documents = copy.deepcopy(documents)
    for field, new in find_unknown(documents, version):
        if new.needed:
            raise VersionError(f"{field.path}: Kubeflow Pipelines {version} does not know {new.name}: {new.loss}")
        del field.content[field.key]
    return documents


def fields_of(documents: list[dict[str, Any]]) -> Iterator[Occurrence]:
    """Yield every field of a compiled pipeline that the SDK's schemas know, at any depth."""
    for document, message in zip(documents, (PipelineSpec, PlatformSpec), strict=False):
        yield from _fields(document, message.DESCRIPTOR, "")


def _fields(content: Any, message: Descriptor, where: str) -> Iterator[Occurrence]:
    if not isinstance(content, dict) or message.file.package == "google.protobuf":
        return
    known: dict[str, FieldDescriptor] = {
        name: field for field in message.fields for name in (field.json_name, field.name)
    }
    for key, value in list(content.items()):
        if key not in known:
            continue
        field, path = known[key], f"{where}.{key}" if where else key
        yield Occurrence(path=path, message=message.full_name, name=field.json_name, content=content, key=key)
        for inner, inner_path in _inside(value, field, path):
            yield from _fields(inner, STRUCTS.get(field.full_name) or _message_of(field), inner_path)


def _inside(value: Any, field: FieldDescriptor, path: str) -> Iterator[tuple[Any, str]]:
    """Yield the messages inside the value of a field, each with its path."""
    if _message_of(field) is None:
        return
    if _is_map(field) and isinstance(value, dict):
        yield from ((item, f"{path}.{key}") for key, item in value.items())
    elif isinstance(value, list):
        yield from ((item, f"{path}[{number}]") for number, item in enumerate(value))
    else:
        yield value, path


def _message_of(field: FieldDescriptor) -> Descriptor | None:
    """Return the message type of a field or of a map's values; None for texts and numbers."""
    return field.message_type.fields_by_name["value"].message_type if _is_map(field) else field.message_type


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
