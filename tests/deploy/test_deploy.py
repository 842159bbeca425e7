"""The files for a cluster: what the schemas of Kubernetes accept, with the names and rights that the code needs."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dkan_core.serving import inference_service as serving
from dkan_core.trainjob.body import GROUP, PLURAL
from dkan_core.utils.storage.credentials import CONFIG_KEYS, SECRET_KEYS, SECRET_PATH
from pipelines.pods import CREDENTIALS, VOLUME, VOLUME_PATH, Settings

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "deploy").glob("*.yaml"))
DEFAULTS = {parameter.name: parameter.default for parameter in (*CREDENTIALS, *VOLUME)}

# Whom Kubeflow runs steps as: for one user, and in a profile.
RUNNERS = {"pipeline-runner", "default-editor"}

CALL = re.compile(r"\.(create|get|list|delete|patch|read)_namespaced_(custom_object|pod_log|pod|secret|config_map)\b")
"""A call of the Kubernetes client in the code."""

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def named(file: str) -> dict[str, Any]:
    (document,) = documents(ROOT / "deploy" / file)
    return document


def keys_of(file: str, section: str) -> set[str]:
    """Return the keys of a template, also those that are commented out."""
    lines = (ROOT / "deploy" / file).read_text().partition(f"\n{section}:\n")[2]
    return set(re.findall(r"^  (?:# )?([A-Z_]+): ", lines, re.MULTILINE))


def rights(file: str) -> set[tuple[str, str, str]]:
    """Return the group, the resource and the verb of each right that a file's role gives."""
    (role,) = (document for document in documents(ROOT / "deploy" / file) if document["kind"] == "Role")
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@each_file
def test_schema_of_kubernetes_accepts_every_document(path: Path) -> None:
    assert documents(path)
    for document in documents(path):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@each_file
def test_first_line_says_when_it_is_needed_and_the_readme_lists_it(path: Path) -> None:
    assert path.read_text().startswith("# Needed when: ")
    assert f"]({path.name})" in (ROOT / "deploy/README.md").read_text()


@each_file
def test_one_word_moves_it_to_another_namespace(path: Path) -> None:
    cluster_wide = {"PriorityClass", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    for document in documents(path):
        namespace = document["metadata"].get("namespace")
        assert namespace == (None if document["kind"] in cluster_wide else "kubeflow")
        assert {subject["namespace"] for subject in document.get("subjects", ())} <= {"kubeflow"}


def test_names_are_the_defaults_of_the_form() -> None:
    assert named("storage-secret.yaml")["metadata"]["name"] == DEFAULTS["secret_name"]
    assert named("storage-config.yaml")["metadata"]["name"] == DEFAULTS["config_map_name"]
    claim = named("volume.yaml")
    assert claim["metadata"]["name"] == DEFAULTS["pvc_name"] and claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_job_puts_a_folder_on_the_volume_once_however_often_it_runs(tmp_path: Path) -> None:
    pod = named("volume-data.yaml")["spec"]["template"]["spec"]
    (copy,) = pod["containers"]
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == DEFAULTS["pvc_name"]
    assert {mount["mountPath"] for mount in copy["volumeMounts"]} == {VOLUME_PATH, SECRET_PATH}
    sources = [next(iter(source.values()))["name"] for source in copy["envFrom"]]
    assert sources == [DEFAULTS["secret_name"], DEFAULTS["config_map_name"]]
    for name in ("flights/a.parquet", "flights/month=1/b.parquet"):
        (tmp_path / "bucket" / name).parent.mkdir(parents=True)
        (tmp_path / "bucket" / name).write_text(name)
    target = tmp_path / "volume/flights"
    for source in ("bucket/flights", "bucket/flights/"):
        places = {"SOURCE": f"file://{tmp_path}/{source}", "TARGET": str(target)}
        subprocess.run([sys.executable, *copy["command"][1:], *copy["args"]], env=os.environ | places, check=True)
        found = {path.relative_to(target).as_posix() for path in target.rglob("*.parquet")}
        assert found == {"a.parquet", "month=1/b.parquet"}


def test_templates_have_the_keys_that_pods_read() -> None:
    assert keys_of("storage-secret.yaml", "stringData") == set(SECRET_KEYS)
    assert keys_of("storage-config.yaml", "data") == set(CONFIG_KEYS)
    assert set(named("storage-secret.yaml")["stringData"]) <= set(SECRET_KEYS)


@pytest.mark.parametrize("file", ["trainjobs.yaml", "inferenceservices.yaml"])
def test_roles_are_bound_to_whom_steps_run_as(file: str) -> None:
    role, binding = documents(ROOT / "deploy" / file)
    assert binding["roleRef"]["name"] == role["metadata"]["name"] and binding["roleRef"]["kind"] == role["kind"]
    assert {subject["name"] for subject in binding["subjects"]} == RUNNERS


def test_rights_for_trainjobs_are_those_of_the_calls_and_no_more() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "dkan_core/trainjob").glob("*.py"))
    resources = {"custom_object": (GROUP, PLURAL), "pod": ("", "pods"), "pod_log": ("", "pods/log")}
    called = {(*resources[what], "get" if verb == "read" else verb) for verb, what in CALL.findall(sources)}
    assert len(called) >= 5 and rights("trainjobs.yaml") == called
    guide = (ROOT / "docs/guides/multi-node.md").read_text()
    assert "deploy/trainjobs.yaml" in guide


def test_rights_for_inference_services_are_those_of_the_calls_and_no_more() -> None:
    source = (ROOT / "dkan_core/serving/inference_service.py").read_text()
    # An apply that finds nothing creates it.
    verbs = {"GET": {"get"}, "PATCH": {"patch", "create"}, "POST": {"create"}, "DELETE": {"delete"}, "PUT": {"update"}}
    called = set().union(*(verbs[method] for method in re.findall(r'_call\("\w+", "([A-Z]+)"', source)))
    assert len(called) >= 3
    assert rights("inferenceservices.yaml") == {(serving.GROUP, serving.PLURAL, verb) for verb in called}


def test_policy_sees_what_every_step_is_labelled_with() -> None:
    priority, policy, binding = documents(ROOT / "deploy/pod-policy.yaml")
    assert policy["spec"]["matchConstraints"]["objectSelector"]["matchLabels"] == Settings().labels
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (mutation,) = policy["spec"]["mutations"]
    expression = mutation["applyConfiguration"]["expression"]
    assert f'priorityClassName: "{priority["metadata"]["name"]}", priority: {priority["value"]}' in expression
