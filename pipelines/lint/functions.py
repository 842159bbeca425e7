"""Python functions in executors: annotations of artifacts that compile, but make a step fail.

The driver passes artifacts without the name of their type, so kfp instantiates the annotation, which fails for a
union. An optional artifact needs a default instead: ``Input[Dataset] = None``.
"""

import ast
import functools
from collections.abc import Iterator
from typing import Any

from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec

# kfp's argument that names the function to call in the source text.
NAMED_BY = "--function_to_execute"
UNIONS = {"Optional", "Union"}


def check_function(container: dict[str, Any], component: ComponentSpec) -> Iterator[str]:
    """Yield the artifacts of a component that its function annotates with a union.

    Args:
        container: The executor's container, as its JSON has it.
        component: The component of the executor.
    """
    function = _find_function(container)
    if function is None:
        return
    artifacts = {*component.input_definitions.artifacts, *component.output_definitions.artifacts}
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    for argument in arguments:
        if argument.arg in artifacts and argument.annotation is not None and _holds_union(argument.annotation):
            yield (
                f"artifact {argument.arg!r} is annotated {ast.unparse(argument.annotation)}: a cluster cannot make a "
                "union; annotate it Input[...] with the default None"
            )


def _find_function(container: dict[str, Any]) -> ast.FunctionDef | None:
    """Return the function that the container executes; None where it runs another command."""
    words = [str(word) for key in ("command", "args") for word in container.get(key, [])]
    if NAMED_BY not in words[:-1]:
        return None
    name = words[words.index(NAMED_BY) + 1]
    for text in words:
        for node in _statements(text) if f"def {name}(" in text else ():
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
    return None


@functools.lru_cache
def _statements(text: str) -> tuple[ast.stmt, ...]:
    """Return the statements of a source text; empty for a shell command. Cached, as executors share functions."""
    try:
        return tuple(ast.parse(text).body)
    except (SyntaxError, ValueError):
        return ()


def _holds_union(annotation: ast.expr) -> bool:
    for node in ast.walk(annotation):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return True
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in UNIONS:
            return True
    return False
