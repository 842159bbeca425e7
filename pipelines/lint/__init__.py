"""Checks of compiled pipelines that the SDK leaves undone: it compiles references to nothing, and clusters fail."""

from collections.abc import Iterator
from pathlib import Path

from pipelines.lint.documents import Compiled, read
from pipelines.lint.executors import check_executors
from pipelines.lint.graphs import check_component, check_dag
from pipelines.lint.kubernetes import check_kubernetes
from pipelines.lint.scopes import scopes_of

__all__ = ["lint"]


def lint(path: Path) -> list[str]:
    """Return what is wrong with the compiled pipeline at ``path``: nothing, for a pipeline that can run.

    Each finding names the file, the component and the task or executor where it is, and the reference.
    """
    compiled, findings = read(path)
    if compiled is not None:
        findings += _check(compiled)
    return [f"{path}: {finding}" for finding in findings]


def _check(compiled: Compiled) -> Iterator[str]:
    scopes = scopes_of(compiled)
    for name, component in compiled.components.items():
        yield from check_component(name, component, compiled)
    for scope in scopes:
        yield from check_dag(scope)
    yield from check_executors(compiled, scopes)
    yield from check_kubernetes(compiled, scopes)
