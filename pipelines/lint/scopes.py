"""The scope of a reference: the inputs of the graph around its task, and the outputs of the tasks beside it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Value
from kfp.pipeline_spec.pipeline_spec_pb2 import ArtifactTypeSchema, ComponentSpec, ParameterType, PipelineTaskSpec

from pipelines.lint.documents import Compiled

# A parameter type that is known only at run time.
ANY = ""

PLACEHOLDER = re.compile(r"\{\{\$\.inputs\.parameters\[(['\"])(.+?)\1\]\}\}")


# The SDK's text for a parameter before it inserts a placeholder, which it sometimes forgets.
CHANNEL = re.compile(r"\{\{channel:.*?\}\}")


class UnresolvedError(Exception):
    """A reference to something that does not exist; the message says what and where it was looked up."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A graph of tasks, with what its tasks may refer to."""

    name: str
    """Name of the component that the graph implements."""

    component: ComponentSpec
    components: dict[str, ComponentSpec]
    """All components by name."""

    loops: bool
    """Whether the graph is the body of a loop."""

    looped_over: frozenset[str]
    """Inputs that the loop around this graph iterates over: the backend gives each iteration an item, not the list."""

    @property
    def tasks(self) -> dict[str, PipelineTaskSpec]:
        """Tasks of the graph by name."""
        return dict(self.component.dag.tasks)

    def component_of(self, task: PipelineTaskSpec) -> ComponentSpec:
        """Return the component that a task runs, an empty one where there is none by that name."""
        return self.components.get(task.component_ref.name, ComponentSpec())

    def producer(self, name: str) -> ComponentSpec:
        """Return the component of the task ``name`` beside."""
        if name not in self.component.dag.tasks:
            raise UnresolvedError(f"task {name!r}, which {self.name} does not have")
        return self.component_of(self.component.dag.tasks[name])

    def parameter(self, source: Any, inputs: PipelineTaskSpec | None = None) -> str:
        """Return the type of the parameter that ``source``, an InputParameterSpec, refers to.

        Args:
            source: The reference.
            inputs: The task whose inputs the placeholders in a constant name.

        Raises:
            UnresolvedError: It refers to nothing.
        """
        kind = source.WhichOneof("kind")
        if kind == "component_input_parameter":
            found = self.input_parameter(source.component_input_parameter)
        elif kind == "task_output_parameter":
            output = source.task_output_parameter
            found = self.output_parameter(output.producer_task, output.output_parameter_key)
        elif kind == "task_final_status":
            self.producer(source.task_final_status.producer_task)
            found = "TASK_FINAL_STATUS"
        elif kind == "runtime_value":
            found = self._constant(source.runtime_value, inputs)
        else:
            raise UnresolvedError("nothing")
        return ANY if getattr(source, "parameter_expression_selector", "") else found

    def input_parameter(self, name: str) -> str:
        """Return the type of the parameter ``name`` of the graph."""
        parameters = self.component.input_definitions.parameters
        if name not in parameters:
            raise UnresolvedError(f"parameter {name!r}, which {self.name} does not have")
        if name in self.looped_over:
            raise UnresolvedError(f"parameter {name!r}, the list that the loop {self.name} takes apart")
        return type_name(parameters[name].parameter_type)

    def output_parameter(self, task: str, key: str) -> str:
        """Return the type of the output parameter ``key`` of a task."""
        outputs = self.producer(task).output_definitions.parameters
        if key not in outputs:
            raise UnresolvedError(f"output parameter {key!r}, which task {task} does not have")
        return type_name(outputs[key].parameter_type)

    def output_artifact(self, task: str, key: str) -> tuple[str, bool]:
        """Return the type of the output artifact ``key`` of a task, and whether it is a list."""
        outputs = self.producer(task).output_definitions.artifacts
        if key not in outputs:
            raise UnresolvedError(f"output artifact {key!r}, which task {task} does not have")
        return schema_name(outputs[key].artifact_type), outputs[key].is_artifact_list

    def artifact(self, source: Any) -> tuple[str, bool]:
        """Return the type of the artifact that an InputArtifactSpec refers to, and whether it is a list."""
        if source.WhichOneof("kind") == "task_output_artifact":
            output = source.task_output_artifact
            return self.output_artifact(output.producer_task, output.output_artifact_key)
        name, artifacts = source.component_input_artifact, self.component.input_definitions.artifacts
        if name not in artifacts:
            raise UnresolvedError(f"artifact {name!r}, which {self.name} does not have")
        return schema_name(artifacts[name].artifact_type), artifacts[name].is_artifact_list

    def _constant(self, runtime_value: Any, task: PipelineTaskSpec | None) -> str:
        if not runtime_value.WhichOneof("value"):
            raise UnresolvedError("nothing")
        value = runtime_value.constant
        content = json_format.MessageToDict(value)
        for forgotten in (found for _, text in strings(content) for found in CHANNEL.findall(text)):
            raise UnresolvedError(f"{forgotten!r}, which the SDK left unresolved")
        for name in placeholders(content):
            if task is None or name not in task.inputs.parameters:
                raise UnresolvedError(f"placeholder {name!r}, which is no input of the task")
        return constant_type(value)


def scopes_of(compiled: Compiled) -> list[Scope]:
    """Return the graphs of a pipeline, the pipeline's own among them."""
    components = compiled.components
    graphs = {name: component for name, component in components.items() if component.HasField("dag")}
    loops: dict[str, set[str]] = {}
    for component in graphs.values():
        for task in component.dag.tasks.values():
            if task.WhichOneof("iterator"):
                loops.setdefault(task.component_ref.name, set()).add(task.parameter_iterator.items.input_parameter)
    return [
        Scope(
            name=name,
            component=component,
            components=components,
            loops=name in loops,
            looped_over=frozenset(loops.get(name, ())),
        )
        for name, component in graphs.items()
    ]


def type_name(parameter_type: int) -> str:
    """Return the name of a parameter type."""
    return str(ParameterType.ParameterTypeEnum.Name(parameter_type))


def schema_name(artifact_type: ArtifactTypeSchema) -> str:
    """Return the name of an artifact type."""
    return str(artifact_type.schema_title or artifact_type.schema_uri or artifact_type.instance_schema)


def constant_type(value: Value) -> str:
    """Return the parameter type that a constant has."""
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        return "NUMBER_INTEGER" if value.number_value.is_integer() else "NUMBER_DOUBLE"
    kinds = {"string_value": "STRING", "bool_value": "BOOLEAN", "list_value": "LIST", "struct_value": "STRUCT"}
    return kinds.get(kind or "", ANY)


def fits(given: str, wanted: str) -> bool:
    """Return whether a parameter of type ``given`` may be handed to one of type ``wanted``."""
    # An integer is accepted as a number, but not the reverse.
    return given == wanted or ANY in (given, wanted) or (given, wanted) == ("NUMBER_INTEGER", "NUMBER_DOUBLE")


def artifact_fits(given: str, wanted: str) -> bool:
    """Return whether an artifact of type ``given`` may be handed to one of type ``wanted``."""
    # system.Artifact accepts any artifact.
    return given == wanted or "system.Artifact" in (given, wanted)


def strings(content: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in a JSON value, with its path."""
    if isinstance(content, str):
        yield where, content
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from strings(value, f"{where}.{key}" if where else key)
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from strings(value, f"{where}[{number}]")


def placeholders(content: Any) -> list[str]:
    """Return the input parameters that the placeholders in a JSON value name."""
    return [name for _, text in strings(content) for _, name in PLACEHOLDER.findall(text)]
