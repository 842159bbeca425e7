"""Checks of a task: its arguments, against the needs of the component that it runs."""

import json
import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineTaskSpec

from pipelines.lint.scopes import (
    Scope,
    UnresolvedError,
    artifact_fits,
    fits,
    placeholders,
    schema_name,
    type_name,
)

CONDITION_INPUT = re.compile(r"inputs\.parameter_values\[(['\"])(.+?)\1\]")

# Inputs that the SDK adds to a task for resources or images from parameters; the component does not have them.
RESOURCE_INPUTS = {
    "accelerator_count", "accelerator_type", "base_image",
    "cpu_limit", "cpu_request", "memory_limit", "memory_request",
}  # fmt: skip

# Prefix of inputs that the SDK adds for placeholders, and for values that a group takes from outside.
INJECTED = "pipelinechannel--"


def check_task(scope: Scope, task: PipelineTaskSpec) -> Iterator[str]:
    """Yield what is wrong with a task of ``scope``."""
    if task.component_ref.name not in scope.components:
        yield f"runs component {task.component_ref.name!r}, which does not exist"
    for other in task.dependent_tasks:
        if other not in scope.tasks:
            yield f"waits for task {other!r}, which {scope.name} does not have"
    for other in sorted(producers(task) - set(task.dependent_tasks)):
        yield f"takes an output of task {other!r} without waiting for it"
    yield from _check_parameters(scope, task)
    yield from _check_artifacts(scope, task)
    yield from _check_iterator(scope, task)
    condition = task.trigger_policy.condition
    if condition and not CONDITION_INPUT.search(condition):
        yield f"condition {condition!r} names no input"
    for _, key in CONDITION_INPUT.findall(condition):
        if key not in task.inputs.parameters:
            yield f"condition names {key!r}, which is no input of the task"


def _check_parameters(scope: Scope, task: PipelineTaskSpec) -> Iterator[str]:
    defined = scope.component_of(task).input_definitions.parameters
    for key, source in task.inputs.parameters.items():
        try:
            given = scope.parameter(source, task)
        except UnresolvedError as error:
            yield f"input {key!r} refers to {error}"
            continue
        if key not in defined:
            if not _is_injected(task, key):
                yield f"input {key!r} is no parameter of {task.component_ref.name}"
            continue
        wanted = type_name(defined[key].parameter_type)
        if not fits(given, wanted):
            yield f"input {key!r} is {wanted}, but is given {_shown(source)}, which is {given}"
        literals = [json_format.MessageToDict(value) for value in defined[key].literals]
        constant = json_format.MessageToDict(source.runtime_value.constant) if _is_constant(source) else None
        if literals and constant is not None and constant not in literals:
            yield f"input {key!r} must be one of {literals}, but is {constant!r}"
    for key, parameter in defined.items():
        optional = parameter.is_optional or parameter.HasField("default_value")
        is_given = key in task.inputs.parameters or key == task.parameter_iterator.item_input
        if not optional and not is_given and type_name(parameter.parameter_type) != "TASK_CONFIG":
            yield f"input {key!r}, which {task.component_ref.name} needs, is not given"


def _is_injected(task: PipelineTaskSpec, key: str) -> bool:
    """Return whether the SDK added the input ``key`` for a resource, or for a placeholder that names it."""
    if key in RESOURCE_INPUTS:
        source = task.inputs.parameters[key]
        return _is_constant(source) and bool(placeholders(json_format.MessageToDict(source.runtime_value.constant)))
    return key.startswith(INJECTED) and key in placeholders(json_format.MessageToDict(task.inputs))


def _is_constant(source: Any) -> bool:
    return bool(source.WhichOneof("kind") == "runtime_value")


def _shown(source: Any) -> str:
    return json.dumps(next(iter(json_format.MessageToDict(source).values()), None))


def _check_artifacts(scope: Scope, task: PipelineTaskSpec) -> Iterator[str]:
    defined = scope.component_of(task).input_definitions.artifacts
    for key, source in task.inputs.artifacts.items():
        try:
            given, is_list = scope.artifact(source)
        except UnresolvedError as error:
            yield f"input artifact {key!r} refers to {error}"
            continue
        if key not in defined:
            yield f"input artifact {key!r} is no artifact of {task.component_ref.name}"
        elif not artifact_fits(given, wanted := schema_name(defined[key].artifact_type)):
            yield f"input artifact {key!r} is {wanted}, but is given {given}"
        elif is_list != defined[key].is_artifact_list:
            yield f"input artifact {key!r} is {'one, but is given a list' if is_list else 'a list, but is given one'}"
    for key, artifact in defined.items():
        is_given = key in task.inputs.artifacts or key == task.artifact_iterator.item_input
        if not artifact.is_optional and not is_given:
            yield f"input artifact {key!r}, which {task.component_ref.name} needs, is not given"


def _check_iterator(scope: Scope, task: PipelineTaskSpec) -> Iterator[str]:
    defined = scope.component_of(task).input_definitions
    if task.WhichOneof("iterator") == "parameter_iterator":
        iterator, names, given = task.parameter_iterator, defined.parameters, task.inputs.parameters
        items = iterator.items.input_parameter
        if iterator.items.WhichOneof("kind") == "raw":
            yield from _check_raw_items(iterator.items.raw)
        elif items in names and type_name(names[items].parameter_type) not in ("LIST", "STRING"):
            yield f"loops over {items!r}, which is {type_name(names[items].parameter_type)}, no list"
    elif task.WhichOneof("iterator") == "artifact_iterator":
        iterator, names, given = task.artifact_iterator, defined.artifacts, task.inputs.artifacts
        items = iterator.items.input_artifact
    else:
        return
    if items not in given and not getattr(iterator.items, "raw", ""):
        yield f"loops over {items!r}, which is no input of the task"
    if iterator.item_input not in names:
        yield f"loop item {iterator.item_input!r} is no input of {task.component_ref.name}"


def _check_raw_items(raw: str) -> Iterator[str]:
    try:
        items = json.loads(raw)
    except ValueError:
        items = None
    if not isinstance(items, list):
        yield f"loops over {raw!r}, which is no JSON list"


def producers(task: PipelineTaskSpec) -> set[str]:
    """Return the tasks whose outputs a task takes."""
    sources: list[Any] = [source.task_output_parameter for source in task.inputs.parameters.values()]
    sources += [source.task_output_artifact for source in task.inputs.artifacts.values()]
    return {source.producer_task for source in sources if source.producer_task}
