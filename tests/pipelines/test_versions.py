"""Older servers: what is compiled for them holds no field that their schemas lack, and nothing else is left out."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from kfp import dsl, kubernetes
from kfp.kubernetes import kubernetes_executor_config_pb2
from kfp.pipeline_spec import pipeline_spec_pb2
from typer.testing import CliRunner

from pipelines.__main__ import app
from pipelines.compiled import DEFAULT, PIPELINES, ROOT, adapt_to, package_of
from pipelines.lint import lint, lint_documents
from pipelines.lint.documents import read_documents
from pipelines.versions import (
    LATEST,
    NEW_FIELDS,
    VERSIONS,
    VersionError,
    fields_of,
    leave_out_unknown,
    missing_fields,
    read_version,
)
from tests.pipelines.kfp_schemas import fields_of_file, fields_of_version
from tests.pipelines.specimens import compiled, everything, say


@cache
def documents_of(name: str) -> list[dict[str, Any]]:
    return read_documents(package_of(name))


def used(documents: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(field.message, field.name) for field in fields_of(documents)}


def test_schemas_of_the_latest_version_are_those_of_the_sdk() -> None:
    known = set()
    for module in (pipeline_spec_pb2, kubernetes_executor_config_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        known |= fields_of_file(file)
    assert known == fields_of_version(LATEST)


@pytest.mark.parametrize("version", VERSIONS)
def test_table_has_every_field_that_the_schemas_of_a_version_lack(version: str) -> None:
    known, latest = fields_of_version(version), fields_of_version(LATEST)
    messages = {message for message, _ in known}
    # The fields of a message that is new as a whole stand in no other place than a new field.
    lacking = {(message, field) for message, field in latest - known if message in messages}
    assert missing_fields(version).keys() == lacking


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PIPELINES)
def test_variant_holds_only_fields_that_the_server_knows(name: str, version: str) -> None:
    variant = leave_out_unknown(documents_of(name), version)
    assert len(used(variant)) > 50
    assert used(variant) <= fields_of_version(version)
    assert lint_documents(variant, version) == []
    assert used(documents_of(name)) & fields_of_version(version) == used(variant), "no more is left out than has to be"


@pytest.mark.parametrize("name", PIPELINES)
def test_latest_version_is_what_is_committed(name: str) -> None:
    assert leave_out_unknown(documents_of(name), LATEST) == documents_of(name)


def test_only_the_security_context_is_left_out_of_ours(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compile", "--kfp", "2.15.2", "--out", str(tmp_path / "old")])
    assert result.exit_code == 0, result.output
    assert {path.stem for path in (tmp_path / "old").iterdir()} == PIPELINES.keys()
    for name in PIPELINES:
        path = tmp_path / "old" / f"{name}.yaml"
        variant = read_documents(path)
        pods = variant[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
        for pod in pods.values():
            assert "securityContext" not in pod
            pod["securityContext"] = {"runAsNonRoot": True}
        assert variant == documents_of(name)
        assert path.read_text().startswith("# PIPELINE DEFINITION\n# Name: fastkan-"), "as the form is shown"
        assert lint(path, "2.15") == []


def test_check_compares_with_what_the_version_takes(tmp_path: Path) -> None:
    (tmp_path / f"{DEFAULT}.yaml").write_bytes(package_of(DEFAULT).read_bytes())
    check = CliRunner().invoke(app, ["compile", "--kfp", "2.15", "--out", str(tmp_path), "--check"])
    assert check.exit_code == 1, check.output
    assert f"run: python -m pipelines compile --kfp 2.15 --out {tmp_path}" in check.output


def test_linter_names_each_field_that_the_server_does_not_know(tmp_path: Path) -> None:
    path = package_of("smoke")
    executors = documents_of("smoke")[0]["deploymentSpec"]["executors"]
    result = CliRunner().invoke(app, ["lint", "--kfp", "2.15", str(path)])
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"{path}: platforms.kubernetes.deploymentSpec.executors.{label}.securityContext: Kubeflow Pipelines 2.15 does "
        "not know securityContext, which came with 2.16"
        for label in executors
    ]
    assert CliRunner().invoke(app, ["lint", "--kfp", "2.16", str(path)]).exit_code == 0


def test_linter_finds_new_fields_in_every_construct(tmp_path: Path) -> None:
    documents = compiled(everything, tmp_path / "everything.yaml")
    assert lint_documents(leave_out_unknown(documents, "2.15"), "2.15") == []
    components = documents[0]["components"]
    components["comp-say"]["inputDefinitions"]["parameters"]["text"]["literals"] = ["bye"]
    documents[1]["platforms"]["kubernetes"]["pipelineConfig"] = {"resource_ttl_on_success": 60}
    found = [finding.partition(":")[0] for finding in lint_documents(documents, "2.15") if "does not know" in finding]
    assert found == [
        "components.comp-say.inputDefinitions.parameters.text.literals",
        "platforms.kubernetes.deploymentSpec.executors.exec-learn.securityContext",
        "platforms.kubernetes.pipelineConfig.resource_ttl_on_success",
    ]


def test_field_that_cannot_be_left_out_is_refused(tmp_path: Path) -> None:
    @dsl.pipeline(name="folder")
    def folder() -> None:
        kubernetes.mount_pvc(say(text="a"), "claim", "/data", sub_path="flights")

    path = tmp_path / "folder.yaml"
    documents = compiled(folder, path)
    with pytest.raises(VersionError, match=r"pvcMount\[0\]\.subPath: Kubeflow Pipelines 2\.15 does not know subPath"):
        adapt_to(path, "2.15")
    assert read_documents(path) == documents
    adapt_to(path, "2.16")
    assert read_documents(path) == documents


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2.14", "a Secret or ConfigMap"),
        ("2.14.6", "a Secret or ConfigMap"),
        ("1.8", "a Secret or ConfigMap"),
        ("2.18", "a newer server takes what is compiled for 2.17"),
        ("latest", "expected one of 2.15, 2.16, 2.17"),
    ],
)
@pytest.mark.parametrize("command", ["compile", "lint"])
def test_version_that_is_not_supported_is_refused(command: str, version: str, why: str) -> None:
    result = CliRunner().invoke(app, [command, "--kfp", version])
    assert result.exit_code == 2
    assert f"Kubeflow Pipelines '{version}'" in result.output and why in result.output


def test_older_versions_lack_what_they_are_refused_for() -> None:
    lacking = fields_of_version("2.15") - fields_of_version("2.14")
    optional = {("kfp_kubernetes.SecretAsEnv", "optional"), ("kfp_kubernetes.ConfigMapAsEnv", "optional")}
    assert optional <= lacking
    assert all(optional <= used(documents) for documents in map(documents_of, PIPELINES))


@pytest.mark.parametrize("given", ["2.16", "2.16.1", "v2.16.0", " 2.16 "])
def test_version_may_have_three_numbers(given: str) -> None:
    assert read_version(given) == "2.16"


def test_guide_says_which_version_knows_which_field() -> None:
    guide = (ROOT.parent / "docs/guides/kubeflow.md").read_text()
    for field in NEW_FIELDS:
        row = re.search(rf"^\|[^|]*`{field.name}`[^|]*\|(.*)\|[^|]*\|$", guide, re.MULTILINE)
        assert row, f"the table has no row for {field.name}"
        cells = [cell.strip() for cell in row[1].split("|")][1:]
        expected = ["yes" if version >= field.since else "no" for version in VERSIONS]
        assert [cell.removesuffix(", refused") for cell in cells] == expected, field.name
