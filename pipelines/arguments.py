"""The arguments of ``run`` and ``submit``: a pipeline, and parameters that are checked against its inputs."""

import json
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from dkan_core.config import TrainConfig, field_types
from dkan_core.config.schema import named_once, nearest
from pipelines.compiled import PIPELINES, package_of
from pipelines.form_checks import find_faults
from pipelines.lint import lint
from pipelines.pods import STEP

# A repeated key is an error: which of its values counts would depend on the reader.
read_json = partial(json.loads, object_pairs_hook=named_once)

# By parameter type of the pipeline spec, its name, how to read it from text, and the types that a value may have.
TYPES: dict[str, tuple[str, Callable[[str], Any], tuple[type, ...]]] = {
    "STRING": ("text", str, (str,)),
    "NUMBER_INTEGER": ("a whole number", int, (int,)),
    "NUMBER_DOUBLE": ("a number", float, (int, float)),
    "BOOLEAN": ("true or false", json.loads, (bool,)),
    "STRUCT": ("a JSON object", read_json, (dict,)),
    "LIST": ("a JSON list", read_json, (list,)),
}


class _NamedOnce(yaml.SafeLoader):
    """YAML's loader, except that a repeated key is an error here, too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        named_once([(str(key.value), value) for key, value in node.value])
        return super().construct_mapping(node, deep)


read_yaml = partial(yaml.load, Loader=_NamedOnce)

# Reader of a file of parameters, by suffix.
READERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": read_json,
    ".yaml": read_yaml,
    ".yml": read_yaml,
}

# Names on the command line, and what a pipeline's field of another name is called.
OF_COMMAND_LINE = (
    ("model", "model_kind"),
    ("previous", "previous_model_uri"),
    ("init_from", "initial_model_uri"),
    ("like", "initial_model_uri"),
    *((name, field) for name in ("gpus", "device") for field in ("num_gpus", "gpus_per_node")),
)

ASSIGNMENT = re.compile(r"([\w-]+)=(.*)", re.DOTALL)

KNOWN = f"{', '.join(PIPELINES)}, or the path of a compiled .yaml"

PipelineName = Annotated[str, typer.Option(help=f"Pipeline to run: {KNOWN}.")]
GivenParameters = Annotated[
    list[str] | None,
    typer.Option(
        "--params",
        "--param",
        metavar="FILE|NAME=VALUE",
        help="Parameters: a TOML, JSON or YAML file, or NAME=VALUE, which overrides files; may be repeated.",
    ),
]


class ArgumentError(ValueError):
    """An argument does not fit the pipeline's inputs; the message names valid ones."""


def package_named(pipeline: str) -> Path:
    """Return the compiled file of the pipeline that a user named, or gave the path of.

    Raises:
        ArgumentError: There is no such pipeline, or a cluster would refuse the file; with a line for each fault.
    """
    if pipeline in PIPELINES:
        return package_of(pipeline)
    path = Path(pipeline)
    if path.suffix != ".yaml":
        raise ArgumentError(f"unknown pipeline {pipeline!r}{nearest(pipeline, PIPELINES)}; expected one of {KNOWN}")
    if findings := lint(path):
        raise ArgumentError("\n".join([f"{path}: is no pipeline that a cluster can run", *findings]))
    return path


def is_form(inputs: dict[str, Any]) -> bool:
    """Return whether inputs are those of a pipeline from ``pipelines.factory``, and names mean what they mean there."""
    return all(parameter.name in inputs for parameter in STEP)


def read_parameters(inputs: dict[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """Return values for the ``inputs`` of a pipeline: from files first, then from NAME=VALUE texts.

    Args:
        inputs: ``inputDefinitions.parameters`` of the compiled pipeline.
        given: Paths of TOML, JSON or YAML files, and NAME=VALUE texts; what comes later wins, and texts win over files.

    Raises:
        ArgumentError: A file is none, a name is unknown or missing, or a run would fail on a value; with a line for
            each.
    """
    readings: list[tuple[str, Callable[[], Any]]] = []
    for path in (Path(text) for text in given if not ASSIGNMENT.fullmatch(text)):
        found = _read_file(path)
        readings += [(name, partial(_checked, inputs, name, value, f"{path}: ")) for name, value in found.items()]
    assignments = [match.groups() for text in given if (match := ASSIGNMENT.fullmatch(text))]
    readings += [(name, partial(_parsed, inputs, name, text)) for name, text in assignments]
    values, faults = {}, []
    for name, read in readings:
        try:
            values[name] = read()
        except ArgumentError as error:
            faults.append(str(error))
    required = sorted(name for name, spec in inputs.items() if not spec.get("isOptional"))
    if missing := [name for name in required if name not in dict(readings)]:
        faults.append(f"missing parameter {', '.join(missing)}; the pipeline requires {', '.join(required)}")
    if not faults and is_form(inputs):
        faults = find_faults(with_defaults(inputs, values))
    if faults:
        # The list of some sixty parameters is shown once, however many names are unknown.
        before, names, after = "\n".join(faults).partition(_known(inputs))
        raise ArgumentError(before + names + after.replace(_known(inputs), ""))
    return values


def with_defaults(inputs: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of all inputs: those given, else the default."""
    return {name: spec.get("defaultValue") for name, spec in inputs.items()} | values


def _read_file(path: Path) -> dict[str, Any]:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ArgumentError(f"expected NAME=VALUE or a {', '.join(READERS)} file, got {str(path)!r}")
    try:
        content = reader(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ArgumentError(f"{path}: {error}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ArgumentError(f"{path}: expected parameters by name")
    return content


def _spec(inputs: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    if name not in inputs:
        raise ArgumentError(f"{where}unknown parameter {name!r}{_hint(inputs, name)}")
    spec: dict[str, Any] = inputs[name]
    return spec


def _hint(inputs: dict[str, Any], name: str) -> str:
    """Return what was probably meant by an unknown name, as the end of a message."""
    plain = name.replace("-", "_")
    for written, field in OF_COMMAND_LINE:
        if written == plain and field in inputs:
            return f" (did you mean {field!r}?)"
    if plain in field_types(TrainConfig) and plain not in inputs and "settings" in inputs:
        return f"; a setting without a field of its own goes into settings={{{json.dumps(plain)}: ...}}"
    # The list of some sixty parameters is shown only without a guess, which it would hide.
    return nearest(name, inputs) or _known(inputs)


def _known(inputs: dict[str, Any]) -> str:
    return f"; expected one of {', '.join(sorted(inputs))}"


def _parsed(inputs: dict[str, Any], name: str, text: str) -> Any:
    """Return the value that a text of the command line gives for a parameter."""
    kind, parser, _ = TYPES[_spec(inputs, name, "")["parameterType"]]
    try:
        value = parser(text)
    except ValueError as error:
        why = f" ({error})" if parser is read_json else ""
        raise ArgumentError(f"parameter {name!r} must be {kind}, got {text!r}{why}") from None
    return _checked(inputs, name, value, "")


def _checked(inputs: dict[str, Any], name: str, value: Any, where: str) -> Any:
    parameter_type = _spec(inputs, name, where)["parameterType"]
    kind, _, types = TYPES[parameter_type]
    # bool is a subclass of int in Python.
    if isinstance(value, bool) != (parameter_type == "BOOLEAN") or not isinstance(value, types):
        hint = _as_text(value) if parameter_type == "STRING" else ""
        raise ArgumentError(f"{where}parameter {name!r} must be {kind}, got {value!r}{hint}")
    # Parameters are sent as JSON, which has no infinity and no NaN.
    if isinstance(value, float) and not math.isfinite(value):
        raise ArgumentError(f"{where}parameter {name!r} must be finite, got {value!r}")
    return value


def _as_text(value: Any) -> str:
    """Return how to write a value that should be text, as the end of a message; empty if it has no text."""
    if isinstance(value, list):
        return f'; separate several by commas: "{",".join(map(str, value))}"'
    return f'; write "{value}"' if isinstance(value, int | float) else ""
