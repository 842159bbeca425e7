"""The compiled pipeline: how it is written, loaded, and given arguments."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, components
from kfp.dsl.base_component import BaseComponent

PIPELINE_YAML = Path(__file__).parent / "training" / "fastkan_training" / "pipeline.yaml"

PARSERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "STRING": ("text", str),
    "NUMBER_INTEGER": ("a whole number", int),
    "NUMBER_DOUBLE": ("a number", float),
}
"""What a parameter type of the pipeline spec is called, and how it is read from text."""


class ArgumentError(ValueError):
    """An argument does not fit the pipeline's inputs; the message names what would."""


def compile_pipeline(path: Path) -> None:
    """Compile the pipeline to ``path``."""
    from pipelines.training.fastkan_training import fastkan_training

    compiler.Compiler().compile(fastkan_training, str(path))


def is_current(path: Path) -> bool:
    """Tell whether the YAML at ``path`` says what compiling now would say."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder) / "pipeline.yaml"
        compile_pipeline(fresh)
        return path.exists() and yaml.safe_load(path.read_text()) == yaml.safe_load(fresh.read_text())


def load_pipeline(path: Path) -> BaseComponent:
    """Load a compiled pipeline."""
    return components.load_component_from_file(str(path))


def parse_arguments(path: Path, assignments: Sequence[str]) -> dict[str, Any]:
    """Turn ``name=value`` texts into arguments that fit the inputs of the compiled pipeline at ``path``.

    Raises:
        ArgumentError: A name is unknown, given twice or missing, or a value is of another type.
    """
    inputs = yaml.safe_load(path.read_text())["root"]["inputDefinitions"]["parameters"]
    arguments: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ArgumentError(f"expected NAME=VALUE, got {assignment!r}")
        if name not in inputs:
            raise ArgumentError(f"unknown parameter {name!r}; known are {', '.join(sorted(inputs))}")
        if name in arguments:
            raise ArgumentError(f"parameter {name!r} is given twice")
        arguments[name] = parse_value(name, text, inputs[name]["parameterType"])
    missing = sorted(name for name, spec in inputs.items() if not spec.get("isOptional") and name not in arguments)
    if missing:
        raise ArgumentError(f"missing parameter {', '.join(missing)}; give each as --param NAME=VALUE")
    return arguments


def parse_value(name: str, text: str, parameter_type: str) -> Any:
    """Read the value of parameter ``name`` from text.

    Raises:
        ArgumentError: The text is of another type.
    """
    kind, parser = PARSERS[parameter_type]
    try:
        return parser(text)
    except ValueError:
        raise ArgumentError(f"parameter {name!r} must be {kind}, got {text!r}") from None
