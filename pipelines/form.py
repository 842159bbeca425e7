"""Run-time parameters of a pipeline: most are what its components ask for, said once, in the component.

kfp reads a pipeline's form from a function's signature and docstring; here both are made from a list of parameters.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

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
    """Return the parameters that a component asks for, with its defaults and descriptions; artifacts are none."""
    signature, described = inspect.signature(component.python_func).parameters, component.component_spec.inputs
    return [
        Parameter(
            name=name,
            type=signature[name].annotation,
            description=" ".join((spec.description or "").split()),
            default=signature[name].default,
        )
        for name, spec in described.items()
        # Types of artifacts begin with system: steps hand those on, and nobody fills them in.
        if name not in leave_out and not spec.type.startswith("system.")
    ]


def merged(*groups: Iterable[Parameter], changed: Mapping[str, Mapping[str, Any]] | None = None) -> list[Parameter]:
    """Return the parameters of all groups once each, required ones first.

    Args:
        groups: Where two know the same name, the first counts.
        changed: Other fields by name, such as ``{"epochs": {"default": 3}}``; ``REQUIRED`` takes a default away.

    Raises:
        ValueError: There is no such parameter to change.
    """
    # Reversed, as the last one stays in a dict, and the first one is to count.
    found = {parameter.name: parameter for group in reversed(groups) for parameter in group}
    order = dict.fromkeys(parameter.name for group in groups for parameter in group)
    for name, fields in (changed or {}).items():
        if name not in found:
            raise ValueError(f"form: there is no parameter {name!r}; expected one of {', '.join(sorted(found))}")
        found[name] = replace(found[name], **fields)
    return sorted((found[name] for name in order), key=lambda parameter: parameter.default is not REQUIRED)


def bind(component: BaseComponent, values: Values, **given: Any) -> PipelineTask:
    """Call a component or pipeline with what it asks for: what is given, and the rest from the form."""
    asked = component.component_spec.inputs or {}
    return component(**{name: value for name, value in {**values, **given}.items() if name in asked})


def as_pipeline(
    body: Callable[[Values], Any],
    *,
    name: str,
    summary: str,
    parameters: Iterable[Parameter],
    returns: Any = REQUIRED,
    described: Mapping[str, str] | None = None,
    display_name: str | None = None,
) -> BaseComponent:
    """Return the pipeline whose tasks ``body`` makes.

    Args:
        body: Called once, with a placeholder for each parameter.
        name: What Kubeflow calls it.
        summary: First line of its description.
        parameters: Its form.
        returns: NamedTuple of its outputs.
        described: What each output is.
        display_name: What the Kubeflow UI shows.
    """
    parameters = list(parameters)

    def pipeline(*values: Any) -> Any:
        return body(dict(zip((parameter.name for parameter in parameters), values, strict=True)))

    pipeline.__name__ = name.replace("-", "_")
    pipeline.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                parameter.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=parameter.type,
                default=parameter.default,
            )
            for parameter in parameters
        ],
        return_annotation=returns,
    )
    lines = [summary, "", "Args:", *(f"    {parameter.name}: {parameter.description}" for parameter in parameters)]
    if described:
        lines += ["", "Returns:", *(f"    {output}: {text}" for output, text in described.items())]
    pipeline.__doc__ = "\n".join(lines)
    return dsl.pipeline(name=name, display_name=display_name)(pipeline)
