"""Run-time parameters of a pipeline: most are those of its components, and are described only there.

kfp reads a pipeline's form from a function's signature and docstring; both are generated here from a list.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, get_origin

from kfp import dsl
from kfp.dsl import PipelineTask
from kfp.dsl.base_component import BaseComponent

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A field of the form."""

    name: str
    type: Any
    description: str
    default: Any = REQUIRED


# Parameters by name, as kfp hands them to a pipeline: placeholders that a run fills in.
Values = dict[str, Any]


def parameters_of(component: BaseComponent, *, leave_out: Iterable[str] = ()) -> list[Parameter]:
    """Return a component's parameters with their defaults and descriptions, without artifacts."""
    signature, described = inspect.signature(component.python_func).parameters, component.component_spec.inputs
    return [
        Parameter(
            name=name,
            type=signature[name].annotation,
            description=" ".join((spec.description or "").split()),
            default=signature[name].default,
        )
        for name, spec in described.items()
        # Types of artifacts begin with "system."; artifacts are passed between steps and are not in the form.
        if name not in leave_out and not spec.type.startswith("system.")
    ]


def merged(*groups: Iterable[Parameter], changed: Mapping[str, Mapping[str, Any]] | None = None) -> list[Parameter]:
    """Return the parameters of all groups once each, required ones first.

    Args:
        groups: If several have the same name, the first one counts.
        changed: Other fields by name, such as ``{"epochs": {"default": 3}}``; ``REQUIRED`` takes a default away.

    Raises:
        ValueError: There is no such parameter to change, or it is given a default of another type.
    """
    # Reversed, because the last value of a key stays in a dict, and the first one should count.
    found = {parameter.name: parameter for group in reversed(groups) for parameter in group}
    order = dict.fromkeys(parameter.name for group in groups for parameter in group)
    for name, fields in (changed or {}).items():
        if name not in found:
            raise ValueError(f"form: there is no parameter {name!r}; expected one of {', '.join(sorted(found))}")
        found[name] = replace(found[name], **fields)
        if "default" in fields:
            _check_default(found[name])
    return sorted((found[name] for name in order), key=lambda parameter: parameter.default is not REQUIRED)


def _check_default(parameter: Parameter) -> None:
    kind, value = get_origin(parameter.type) or parameter.type, parameter.default
    # bool is a subclass of int in Python.
    fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
    if value is not REQUIRED and not fits:
        raise ValueError(f"form: the default of {parameter.name!r} must be a {kind.__name__}, got {value!r}")


def bind(component: BaseComponent, values: Values, **given: Any) -> PipelineTask:
    """Call a component or pipeline with the given inputs, and with the form's values for its others."""
    asked = component.component_spec.inputs or {}
    return component(**{name: value for name, value in {**values, **given}.items() if name in asked})


def form(
    parameters: Iterable[Parameter], returns: Any = REQUIRED, described: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator, to stand under ``@dsl.pipeline``, that gives a function a form.

    kfp reads the form from signature and docstring. The function gets the values by name; its own docstring is the
    first line of the pipeline's description.

    Args:
        parameters: The fields.
        returns: NamedTuple of the pipeline's outputs.
        described: What each output is.
    """
    parameters = list(parameters)
    names = [parameter.name for parameter in parameters]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def pipeline(*values: Any) -> Any:
            return function(**dict(zip(names, values, strict=True)))

        pipeline.__signature__ = _signature(parameters, returns)  # type: ignore[attr-defined]
        pipeline.__doc__ = _docstring(function.__doc__ or "", parameters, described or {})
        return pipeline

    return decorate


def _signature(parameters: list[Parameter], returns: Any) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(parameter.name, kind, annotation=parameter.type, default=parameter.default)
            for parameter in parameters
        ],
        return_annotation=returns,
    )


def _docstring(summary: str, parameters: list[Parameter], described: Mapping[str, str]) -> str:
    lines = [summary, "", "Args:", *(f"    {parameter.name}: {parameter.description}" for parameter in parameters)]
    if described:
        lines += ["", "Returns:", *(f"    {output}: {text}" for output, text in described.items())]
    return "\n".join(lines)


def as_pipeline(
    body: Callable[[Values], Any], *, name: str, summary: str, parameters: Iterable[Parameter], returns: Any = REQUIRED
) -> BaseComponent:
    """Return a pipeline within another one.

    Args:
        body: Makes its tasks of a placeholder for each parameter.
        name: What Kubeflow calls it.
        summary: Its description.
        parameters: What it takes.
        returns: NamedTuple of its outputs.
    """

    def pipeline(**values: Any) -> Any:
        return body(values)

    pipeline.__doc__ = summary
    return dsl.pipeline(name=name)(form(parameters, returns)(pipeline))
