"""Checks placeholders that executors fill in at run time: in image, command, environment and resources."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, PipelineTaskSpec

from dkan_core.config.kubernetes import QUANTITY
from pipelines.lint.documents import Compiled
from pipelines.lint.functions import check_function
from pipelines.lint.scopes import CHANNEL, Scope, UnresolvedError, fits, placeholders, strings
from pipelines.lint.tasks import RESOURCE_INPUTS

EXPRESSION = re.compile(r"\{\{\$(.*?)\}\}")
NAMED = re.compile(r"\.(inputs|outputs)\.(parameters|artifacts)\[(['\"])(.+?)\3\].*")
WHOLE = re.compile(r"(|\.inputs|\.outputs|\.outputs\.output_file|\.workspace_path|\.pipeline_\w+)")
IF_PRESENT = re.compile(r"\"InputName\":\s*\"([^\"]+)\"")
COUNT = re.compile(r"[0-9]+")

# Fields that the backend reads as text, like the accelerator's: any other type becomes an empty text.
FILLED = ("image", "resourceCpuLimit", "resourceCpuRequest", "resourceMemoryLimit", "resourceMemoryRequest")


@dataclass(frozen=True, kw_only=True)
class Use:
    """A task that runs an executor."""

    scope: Scope
    task_name: str
    task: PipelineTaskSpec
    component: ComponentSpec


def uses_of(label: str, scopes: list[Scope]) -> list[Use]:
    """Return the tasks that run the executor ``label``."""
    return [
        Use(scope=scope, task_name=name, task=task, component=scope.component_of(task))
        for scope in scopes
        for name, task in scope.tasks.items()
        if scope.component_of(task).executor_label == label
    ]


def check_executors(compiled: Compiled, scopes: list[Scope]) -> Iterator[str]:
    """Yield what is wrong with the executors of a pipeline."""
    for label, executor in compiled.executors.items():
        content = json_format.MessageToDict(executor)
        if not executor.WhichOneof("spec"):
            yield f"executor {label}: has nothing to run"
        for use in uses_of(label, scopes):
            where = f"executor {label}, run by task {use.task_name} of {use.scope.name}"
            for check in (_check_placeholders, _check_resources, _check_added):
                for finding in check(content, use):
                    yield f"{where}: {finding}"
            for finding in check_function(content.get("container", {}), use.component):
                yield f"{where}: {finding}"
            source = executor.importer.artifact_uri.runtime_parameter
            if source and source not in use.task.inputs.parameters:
                yield f"{where}: importer.artifactUri refers to {source!r}, which is no input of the task"


def _check_placeholders(content: dict[str, Any], use: Use) -> Iterator[str]:
    inputs, outputs = use.component.input_definitions, use.component.output_definitions
    given = use.task.inputs
    known: dict[tuple[str, str], set[str]] = {
        ("inputs", "parameters"): {*inputs.parameters, *given.parameters},
        ("inputs", "artifacts"): {*inputs.artifacts, *given.artifacts},
        ("outputs", "parameters"): {*outputs.parameters},
        ("outputs", "artifacts"): {*outputs.artifacts},
    }
    for where, text in strings(content):
        for forgotten in CHANNEL.findall(text):
            yield f"{where} holds {forgotten}, which the SDK left unresolved"
        for expression in EXPRESSION.findall(text):
            match = NAMED.fullmatch(expression)
            if match and match[4] not in known[match[1], match[2]]:
                yield f"{where} refers to {match[2][:-1]} {match[4]!r}, which is not among the {match[1]} of the task"
            elif not match and not WHOLE.fullmatch(expression):
                yield f"{where} holds {{{{${expression}}}}}, which the backend does not know"
        for name in IF_PRESENT.findall(text) if text.startswith('{"') else ():
            if name not in known["inputs", "parameters"] | known["inputs", "artifacts"]:
                yield f"{where} refers to {name!r}, which is not among the inputs of the task"


def _check_added(content: dict[str, Any], use: Use) -> Iterator[str]:
    texts = {text for _, text in strings(content)}
    for key in sorted(
        RESOURCE_INPUTS & set(use.task.inputs.parameters) - set(use.component.input_definitions.parameters)
    ):
        constant = use.task.inputs.parameters[key].runtime_value.constant.string_value
        if constant not in texts:
            yield f"the task gives {key} as {constant!r}, which no field of the executor takes"


def _check_resources(content: dict[str, Any], use: Use) -> Iterator[str]:
    container = content.get("container", {})
    resources = container.get("resources", {})
    accelerator = resources.get("accelerator", {})
    fields = {"image": container.get("image", "")} if container else {}
    fields |= {field: resources[field] for field in FILLED if field in resources}
    fields |= {f"accelerator.{field}": accelerator.get(field, "") for field in accelerator}
    for field, text in fields.items():
        names = placeholders(text)
        for name in names:
            yield from _check_type(field, name, use)
        form = COUNT if field.endswith("Count") else QUANTITY if field.startswith("resource") else None
        if names and text != f"{{{{$.inputs.parameters['{names[0]}']}}}}":
            yield f"{field} is {text!r}: the backend takes one placeholder and nothing else"
        elif not names and not text:
            yield f"{field} is empty"
        elif not names and form and not form.fullmatch(text):
            yield f"{field} is {text!r}, which is no {'count' if form is COUNT else 'quantity'}"
    if accelerator and not {"resourceType", "type"} & accelerator.keys():
        yield "accelerator has a count but no type: the pod gets none"
    if accelerator and not {"resourceCount", "count"} & accelerator.keys():
        yield "accelerator has a type but no count: the pod gets none"


def _check_type(field: str, name: str, use: Use) -> Iterator[str]:
    if name not in use.task.inputs.parameters:
        return  # reported by another check
    try:
        found = use.scope.parameter(use.task.inputs.parameters[name], use.task)
    except UnresolvedError:
        return  # reported for the task
    if not fits(found, "STRING"):
        yield f"{field} is parameter {name!r}, which is {found}: only a STRING reaches the pod"
