"""Checks of single components and of graphs of tasks: what a graph passes on, and the order of its tasks."""

from collections.abc import Iterator
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec

from pipelines.lint.documents import Compiled
from pipelines.lint.scopes import (
    Scope,
    UnresolvedError,
    artifact_fits,
    constant_type,
    fits,
    schema_name,
    type_name,
)
from pipelines.lint.tasks import check_task, producers


def check_component(name: str, component: ComponentSpec, compiled: Compiled) -> Iterator[str]:
    """Yield what is wrong with a component by itself."""
    if component.executor_label and component.executor_label not in compiled.executors:
        yield f"{name}: executor {component.executor_label!r} is not in the deploymentSpec"
    if not component.executor_label and not component.dag.tasks:
        yield f"{name}: has neither tasks nor an executor"
    for definitions in (component.input_definitions, component.output_definitions):
        for key, artifact in definitions.artifacts.items():
            if not schema_name(artifact.artifact_type):
                yield f"{name}: artifact {key!r} has no type"
    for finding in _check_parameters(component):
        yield f"{name}: {finding}"


def _check_parameters(component: ComponentSpec) -> Iterator[str]:
    for key, parameter in component.input_definitions.parameters.items():
        kind = type_name(parameter.parameter_type)
        if not parameter.parameter_type:
            yield f"parameter {key!r} has no type"
        elif parameter.HasField("default_value") and not fits(constant_type(parameter.default_value), kind):
            default = json_format.MessageToDict(parameter.default_value)
            yield f"parameter {key!r} is {kind}, but its default is {default!r}"
    for key, output in component.output_definitions.parameters.items():
        if not output.parameter_type:
            yield f"output parameter {key!r} has no type"


def check_dag(scope: Scope) -> Iterator[str]:
    """Yield the faults of a graph: of its tasks, of their order, and of what it passes on."""
    for name, task in scope.tasks.items():
        for finding in check_task(scope, task):
            yield f"{scope.name}: task {name}: {finding}"
    checks = (_check_declarations, _check_output_parameters, _check_output_artifacts, _check_order)
    for check in checks:
        for finding in check(scope):
            yield f"{scope.name}: {finding}"


def _check_declarations(scope: Scope) -> Iterator[str]:
    defined, outputs = scope.component.output_definitions, scope.component.dag.outputs
    declared: tuple[tuple[str, Any, Any], ...] = (
        ("parameter", defined.parameters, outputs.parameters),
        ("artifact", defined.artifacts, outputs.artifacts),
    )
    for kind, definitions, selectors in declared:
        for key in sorted(set(definitions) ^ set(selectors)):
            yield f"output {kind} {key!r} {'comes from no task' if key in definitions else 'is not declared'}"


def _check_output_parameters(scope: Scope) -> Iterator[str]:
    defined = scope.component.output_definitions.parameters
    for key, output in scope.component.dag.outputs.parameters.items():
        for selector in output.value_from_oneof.parameter_selectors or [output.value_from_parameter]:
            try:
                given = scope.output_parameter(selector.producer_subtask, selector.output_parameter_key)
            except UnresolvedError as error:
                yield f"output parameter {key!r} refers to {error}"
                continue
            wanted = type_name(defined[key].parameter_type) if key in defined else given
            # A loop passes on a list with an output of each iteration.
            if not fits(given, wanted) and not (scope.loops and wanted == "LIST"):
                yield f"output parameter {key!r} is {wanted}, but is given {given} by {selector.producer_subtask}"


def _check_output_artifacts(scope: Scope) -> Iterator[str]:
    defined = scope.component.output_definitions.artifacts
    for key, output in scope.component.dag.outputs.artifacts.items():
        if not output.artifact_selectors:
            yield f"output artifact {key!r} comes from no task"
        for selector in output.artifact_selectors:
            try:
                given, _ = scope.output_artifact(selector.producer_subtask, selector.output_artifact_key)
            except UnresolvedError as error:
                yield f"output artifact {key!r} refers to {error}"
                continue
            wanted = schema_name(defined[key].artifact_type) if key in defined else given
            if not artifact_fits(given, wanted):
                yield f"output artifact {key!r} is {wanted}, but is given {given} by {selector.producer_subtask}"


def _check_order(scope: Scope) -> Iterator[str]:
    """Yield the tasks that wait for each other in a cycle."""
    tasks = scope.tasks
    left = {name: (set(task.dependent_tasks) | producers(task)) & tasks.keys() for name, task in tasks.items()}
    while ready := {name for name, others in left.items() if not others & left.keys()}:
        left = {name: others for name, others in left.items() if name not in ready}
    if left:
        yield f"tasks wait for one another: {', '.join(sorted(left))}"
