"""The linter of compiled pipelines: nothing to find in ours, and each kind of fault found by name."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.__main__ import app
from pipelines.compiled import PIPELINES, package_of
from pipelines.lint import lint, lint_documents
from pipelines.lint.documents import read_documents
from tests.pipelines.faults import DELETE, FAULTS
from tests.pipelines.specimens import compiled, everything

ROOT = Path(__file__).parents[2]
COMMITTED = sorted(ROOT.glob("pipelines/*/*/pipeline.yaml"))
Documents = list[dict[str, Any]]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    return compiled(everything, tmp_path_factory.mktemp("specimen") / "everything.yaml")


def changed(documents: Documents, path: str, value: Any) -> Documents:
    """Return the documents with ``value`` at a path of keys separated by ``/``; only what leads there is copied."""
    documents = [*documents]
    place: Any = documents
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split("/")]
    for key in keys:
        place[key] = copy.copy(place[key])
        place = place[key]
    if value is DELETE:
        del place[last]
    else:
        place[last] = value
    return documents


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_committed_pipelines_are_without_fault(path: Path) -> None:
    assert lint(path) == []


def test_every_construct_of_the_sdk_passes(good: Documents) -> None:
    assert lint_documents(good) == []


@pytest.mark.parametrize(("path", "value", "finding"), FAULTS.values(), ids=FAULTS.keys())
def test_fault_is_found(good: Documents, path: str, value: Any, finding: str) -> None:
    findings = lint_documents(changed(good, path, value))
    assert any(finding in found for found in findings), findings


def places(content: Any, above: str) -> Iterator[str]:
    """Yield the path of everything inside a document."""
    for key in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield f"{above}/{key}"
        yield from places(content[key], f"{above}/{key}")


ODD = [DELETE, "other", None, [], 7]


@pytest.mark.parametrize("value", ODD, ids=["nothing", "text", "null", "list", "number"])
def test_linter_stands_whatever_it_reads(good: Documents, value: Any) -> None:
    everywhere = [place for number in (0, 1) for place in places(good[number], str(number))]
    for place in everywhere[ODD.index(value) :: 10]:
        assert isinstance(lint_documents(changed(good, place, value)), list)


def input_definitions(documents: Documents) -> Iterator[tuple[str, str, str]]:
    """Yield path, name and owner of every input that something refers to."""
    spec = documents[0]
    for name, component in [("root", spec["root"]), *spec.get("components", {}).items()]:
        for kind, definitions in component.get("inputDefinitions", {}).items():
            for key in definitions:
                place = "0/root" if name == "root" else f"0/components/{name}"
                yield f"{place}/inputDefinitions/{kind}/{key}", key, name


def is_referred_to(documents: Documents, key: str, owner: str) -> bool:
    spec = documents[0]
    graphs = {"root": spec["root"], **spec.get("components", {})}
    inside = json.dumps(graphs[owner].get("dag", {}).get("tasks", {}))
    tasks = [task for graph in graphs.values() for task in graph.get("dag", {}).get("tasks", {}).values()]
    given = [task for task in tasks if task["componentRef"]["name"] == owner]
    return f'"componentInputParameter": "{key}"' in inside or any(
        key in inputs for task in given for inputs in task.get("inputs", {}).values()
    )


# Of the committed ones the one with most loops and pipelines within: all of its inputs would take ten seconds.
@pytest.mark.parametrize(
    ("path", "every"), [(None, 1), (package_of("parallel-prepare"), 7)], ids=["everything", "parallel-prepare"]
)
def test_no_input_that_something_refers_to_can_be_missing(path: Path | None, every: int, good: Documents) -> None:
    # Without the platforms, which take a third of the time: none of the inputs is missing there.
    documents = (good if path is None else read_documents(path))[:1]
    assert lint_documents(documents) == []
    missing = [place for place, key, owner in input_definitions(documents) if is_referred_to(documents, key, owner)]
    assert len(missing) > 20
    for place in missing[::every]:
        assert lint_documents(changed(documents, place, DELETE)), place


@pytest.mark.parametrize(
    ("text", "finding"),
    [("a: [", "cannot be read"), ("- a", "expected one document"), ("a: 1\n---\nb: 1\n---\nc: 1", "expected one")],
)
def test_file_that_is_no_pipeline(text: str, finding: str, tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text(text)
    (found,) = lint(tmp_path / "pipeline.yaml")
    assert found.startswith(f"{tmp_path / 'pipeline.yaml'}: {finding}")


def test_command_lints_the_committed_files() -> None:
    result = CliRunner().invoke(app, ["lint"])
    assert result.exit_code == 0, result.output
    assert result.output == f"{len(PIPELINES)} files: no mistakes found\n"


def test_command_refuses_a_file_that_is_not_there() -> None:
    result = CliRunner().invoke(app, ["lint", "none.yaml"])
    assert result.exit_code == 2 and "none.yaml: no such file" in result.stderr


def test_command_prints_findings_and_fails(good: Documents, tmp_path: Path) -> None:
    faulty = tmp_path / "faulty.yaml"
    faulty.write_text(yaml.safe_dump_all(changed(good, *FAULTS["output of no task"][:2])))
    result = CliRunner().invoke(app, ["lint", str(faulty)])
    assert result.exit_code == 1
    assert f"{faulty}: comp-learn-on-gpus: output artifact 'Output' refers to task 'teach'" in result.output
