"""Checks a pod's parameters: names of secrets, config maps and claims, selectors and tolerations.

The backend looks these up among the inputs of the graph around the task, not among those of the task. Also checks the
variables from secrets and config maps, which Kubeflow's launcher in the same container reads as well.
"""

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import Message
from kfp.pipeline_spec.pipeline_spec_pb2 import TaskInputsSpec

from dkan_core.utils.storage.credentials import OWN_PREFIX, VARIABLES
from pipelines.lint.documents import Compiled
from pipelines.lint.executors import Use, uses_of
from pipelines.lint.scopes import Scope, UnresolvedError, fits

# Types that fields accept; all others accept the name of an object, a STRING.
WANTED = {
    "node_selector_json": ("STRUCT",),
    "node_affinity_json": ("STRUCT",),
    "toleration_json": ("STRUCT", "LIST"),
}


def check_kubernetes(compiled: Compiled, scopes: list[Scope]) -> Iterator[str]:
    """Yield what is wrong with the Kubernetes settings of a pipeline."""
    for label, config in compiled.kubernetes.items():
        if label not in compiled.executors:
            yield f"platforms.kubernetes: executor {label!r} is not in the deploymentSpec"
        for finding in _check_variables(config):
            yield f"platforms.kubernetes: executor {label}: {finding}"
        for use in uses_of(label, scopes):
            for where, field, source in _references(config):
                for finding in _check_reference(field, source, use):
                    step = f"platforms.kubernetes: executor {label}, run by task {use.task_name} of {use.scope.name}"
                    yield f"{step}: {where} {finding}"


def _check_variables(config: Any) -> Iterator[str]:
    """Yield a step's credentials that its launcher would use for its own artifacts."""
    for field in ("secret_as_env", "config_map_as_env"):
        for number, source in enumerate(getattr(config, field)):
            for name in (each.env_var for each in source.key_to_env):
                if name in VARIABLES or name.startswith("AWS_"):
                    variable = f"{config.DESCRIPTOR.fields_by_name[field].json_name}[{number}]"
                    yield (
                        f"{variable} sets {name}, which Kubeflow's launcher in the same container reads for its own "
                        f"artifacts; name it {OWN_PREFIX}{name}"
                    )


def _check_reference(field: str, source: Any, use: Use) -> Iterator[str]:
    try:
        given = use.scope.parameter(source)
    except UnresolvedError as error:
        yield f"refers to {error}"
        return
    wanted = WANTED.get(field, ("STRING",))
    if not any(fits(given, kind) for kind in wanted):
        yield f"takes a {' or '.join(wanted)}, but is given a {given}"
    producer = source.task_output_parameter.producer_task
    if producer and producer not in use.task.dependent_tasks:
        yield f"takes an output of task {producer!r}, but the task does not wait for it"


def _references(message: Message, where: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield path, field name and reference of every parameter that a message takes."""
    for field, value in message.ListFields():
        path = f"{where}.{field.json_name}" if where else field.json_name
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            # An older field for a claim's name, beside the newer one.
            if field.name == "component_input_parameter":
                yield path, field.name, TaskInputsSpec.InputParameterSpec(component_input_parameter=value)
        elif field.message_type.full_name == TaskInputsSpec.InputParameterSpec.DESCRIPTOR.full_name:
            yield path, field.name, value
        elif field.name == "task_output_parameter":
            reference = TaskInputsSpec.InputParameterSpec()
            reference.task_output_parameter.producer_task = value.producer_task
            reference.task_output_parameter.output_parameter_key = value.output_parameter_key
            yield path, field.name, reference
        elif isinstance(value, Message):
            yield from _references(value, path)
        else:
            for number, item in enumerate(value):
                yield from _references(item, f"{path}[{number}]")
