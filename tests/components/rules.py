"""The rules that kubeflow/pipelines-components checks in every component and pipeline folder, as functions.

Its validators ask for the fields of metadata.yaml in a fixed order, an approver in OWNERS, imports at the top of a
module from the standard library alone (with an allow list), and a date of verification of less than a year ago. They
judge that date against today, so that an unchanged copy starts to fail one day. Here it is judged against the last
commit that touched the folder: whoever changes an asset that was verified long ago verifies it again.
"""

import ast
import re
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

REQUIRED = ["name", "stability", "dependencies", "lastVerified"]
"""Fields of metadata.yaml, in the order that they have among one another; the optional ones stand anywhere."""

OPTIONAL = {"tags": list, "ci": dict, "links": dict}
STABILITY = {"alpha", "beta", "stable"}
FRESH = timedelta(days=365)

VERSION = re.compile(r"(==|>=|<=|~=)?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
"""A semantic version of three parts, perhaps with a comparison before it."""

ALLOWED_IMPORTS = {"components": {"kfp", "components"}, "pipelines": {"kfp", "components", "pipelines"}}
"""What a module may import at its top beyond the standard library: its parts, which import no more than that."""


def metadata_faults(metadata: dict[str, Any], name: str) -> list[str]:
    """Return what is wrong with the content of a metadata.yaml."""
    faults = []
    required = [field for field in metadata if field not in OPTIONAL]
    if required != REQUIRED:
        faults.append(f"expected the fields {', '.join(REQUIRED)} in this order, got {', '.join(required)}")
    if metadata.get("name") != name:
        faults.append(f"name is {metadata.get('name')!r}, the folder is {name!r}")
    if metadata.get("stability") not in STABILITY:
        faults.append(f"stability is {metadata.get('stability')!r}, expected one of {sorted(STABILITY)}")
    verified = metadata.get("lastVerified")
    if not isinstance(verified, datetime) or verified.tzinfo is None:
        faults.append(f"lastVerified is {verified!r}, expected a time such as 2026-01-31T00:00:00Z")
    for field, kind in OPTIONAL.items():
        if field in metadata and not isinstance(metadata[field], kind):
            faults.append(f"{field} is no {kind.__name__}")
    if not all(isinstance(tag, str) for tag in metadata.get("tags") or []):
        faults.append("tags are texts")
    ci = metadata.get("ci") or {}
    if ci and (set(ci) != {"skip_dependency_probe"} or not isinstance(ci["skip_dependency_probe"], bool)):
        faults.append("ci holds skip_dependency_probe, true or false, and nothing else")
    return faults + dependency_faults(metadata.get("dependencies") or {})


def dependency_faults(dependencies: dict[str, Any]) -> list[str]:
    """Return what is wrong with the dependencies in a metadata.yaml."""
    faults = []
    if not {"kubeflow"} <= set(dependencies) <= {"kubeflow", "external_services"}:
        faults.append("dependencies has kubeflow, perhaps external_services, and nothing else")
    entries = [entry for group in dependencies.values() for entry in group]
    if not any(entry.get("name") == "Pipelines" for entry in dependencies.get("kubeflow", [])):
        faults.append("dependencies names no Kubeflow Pipelines")
    for entry in entries:
        if "name" not in entry or not VERSION.fullmatch(str(entry.get("version"))):
            faults.append(f"dependency {entry} needs a name and a version such as >=1.2.3")
    return faults


def owners_faults(owners: Any) -> list[str]:
    """Return what is wrong with the content of an OWNERS file."""
    if not isinstance(owners, dict) or not {"approvers"} <= set(owners) <= {"approvers", "reviewers"}:
        return ["expected approvers and reviewers"]
    return [f"{role} is no list of names" for role, names in owners.items() if not _are_names(names)]


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) and name for name in names)


def import_faults(source: str, allowed: set[str]) -> list[str]:
    """Return the imports at the top of a module that are neither of the standard library nor allowed."""
    names = []
    for node in _outside_functions(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module or "")
    parts = {name.partition(".")[0] for name in names}
    return [f"imports {part} at the top" for part in sorted(parts - sys.stdlib_module_names - allowed)]


def _outside_functions(node: ast.AST) -> list[ast.AST]:
    inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.FunctionDef | ast.ClassDef)]
    return inner + [below for child in inner for below in _outside_functions(child)]


def is_stale(verified: datetime, changed: datetime) -> bool:
    """Return whether an asset that changed at one time was verified too far from it."""
    return abs(changed - verified) >= FRESH


def last_change(folder: Path) -> datetime | None:
    """Return when the last commit touched ``folder``; None where there is no git, or no commit."""
    command = ["git", "log", "-1", "--format=%cI", "--", str(folder)]
    try:
        log = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return datetime.fromisoformat(log.stdout.strip()) if log.returncode == 0 and log.stdout.strip() else None
