"""Checks of compiled pipelines that the SDK does not make, such as of references to nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipelines.lint.documents import Compiled, DocumentError, parse, read_documents
from pipelines.lint.executors import check_executors
from pipelines.lint.graphs import check_component, check_dag
from pipelines.lint.kubernetes import check_kubernetes
from pipelines.lint.scopes import scopes_of
from pipelines.versions import LATEST, find_unknown

__all__ = ["lint", "lint_documents"]


def lint(path: Path, version: str = LATEST) -> list[str]:
    """Return the faults of the compiled pipeline at ``path``; empty for a pipeline that can run.

    Each finding names the file, the component and the task or executor where it is, and the reference.

    Args:
        path: The compiled file.
        version: Version of the server that is to run it.
    """
    try:
        findings = lint_documents(read_documents(path), version)
    except DocumentError as error:
        findings = [str(error)]
    return [f"{path}: {finding}" for finding in findings]


def lint_documents(documents: list[dict[str, Any]], version: str = LATEST) -> list[str]:
    """Return the faults of a compiled pipeline: its document, and that of its platforms, if any."""
    compiled, findings = parse(documents)
    findings += [
        f"{field.path}: Kubeflow Pipelines {version} does not know {new.name}, which came with {new.since}"
        for field, new in find_unknown(documents, version)
    ]
    return [*findings, *_check(compiled)] if compiled is not None else findings


def _check(compiled: Compiled) -> Iterator[str]:
    scopes = scopes_of(compiled)
    for name, component in compiled.components.items():
        yield from check_component(name, component, compiled)
    for scope in scopes:
        yield from check_dag(scope)
    yield from check_executors(compiled, scopes)
    yield from check_kubernetes(compiled, scopes)
