"""The pods that the committed pipelines become, before any cluster sees them."""

import copy
import warnings
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kfp import dsl, kubernetes

from pipelines.compiled import PIPELINES, package_of
from pipelines.lint.documents import read_documents
from tests.pipelines.pods import PodError, pods_of
from tests.pipelines.specimens import IMAGE, compiled, everything, say

ROOT = Path(__file__).parents[2]
COMMITTED = pytest.mark.parametrize("path", [*map(package_of, PIPELINES)], ids=lambda path: path.parent.name)


def refuse(pod: dict[str, Any]) -> None:
    """Raise what the schema of the newest Kubernetes has against a pod."""
    kubernetes_validate.validate(copy.deepcopy(pod), kubernetes_validate.latest_version(), strict=True)


def parameters(path: Path) -> dict[str, Any]:
    form: dict[str, Any] = read_documents(path)[0]["root"]["inputDefinitions"]["parameters"]
    return form


@COMMITTED
def test_pods_with_the_defaults_are_valid(path: Path) -> None:
    pods = pods_of(path)
    assert pods
    for pod in pods.values():
        refuse(pod)


@COMMITTED
def test_gpus_asked_for_reach_a_pod(path: Path) -> None:
    if "num_gpus" not in parameters(path):
        pytest.skip("asks for no GPUs")
    assert parameters(path)["num_gpus"]["parameterType"] == "STRING"
    limits = [pod["spec"]["containers"][0]["resources"]["limits"] for pod in pods_of(path, num_gpus="3").values()]
    assert any(limit.get("nvidia.com/gpu") == "3" for limit in limits), limits


def test_nodes_of_training_are_not_those_of_other_steps() -> None:
    where = {"node_selector": {"gpu": "h100"}, "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    elsewhere = {"step_node_selector": {"pool": "cpu"}, "step_tolerations": [{"key": "batch", "operator": "Exists"}]}
    for pipeline in ("single-node", "sweep", "batch-scoring"):
        for name, pod in pods_of(package_of(pipeline), **where, **elsewhere).items():
            trains = name.endswith("train-fastkan")
            assert pod["spec"]["nodeSelector"] == ({"gpu": "h100"} if trains else {"pool": "cpu"})
            assert [each["key"] for each in pod["spec"]["tolerations"]] == ["nvidia.com/gpu" if trains else "batch"]


@pytest.fixture(scope="module")
def specimen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("specimen") / "everything.yaml"
    compiled(everything, path)
    return path


def test_settings_become_a_pod(specimen: Path) -> None:
    (name,) = (name for name in pods_of(specimen) if name.endswith("learn-on-gpus/learn"))
    pod = pods_of(specimen, num_gpus="2", secret="mine", claim="disk")[name]
    refuse(pod)
    spec, main = pod["spec"], pod["spec"]["containers"][0]
    assert main["resources"]["limits"] == {"cpu": "2", "memory": "16Gi", "nvidia.com/gpu": "2"}
    assert main["env"] == [
        {"name": "MODE", "value": "fast"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "key", "optional": True}}},
        {"name": "REGION", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "region", "optional": True}}},
    ]
    assert spec["volumes"] == [
        {"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ]
    assert main["volumeMounts"] == [{"name": "disk", "mountPath": "/data"}, {"name": "shm", "mountPath": "/dev/shm"}]
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists", "tolerationSeconds": 300}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}] and main["imagePullPolicy"] == "IfNotPresent"
    assert spec["activeDeadlineSeconds"] == 3600 and pod["metadata"]["labels"] == {"team": "tabular"}
    assert main["securityContext"] == {"runAsUser": 1000, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}}


def test_image_from_a_parameter_reaches_its_step(specimen: Path) -> None:
    pods = pods_of(specimen, image="registry.example/dkan:9")
    images = {name: pod["spec"]["containers"][0]["image"] for name, pod in pods.items()}
    assert images.pop("make") == "registry.example/dkan:9" and set(images.values()) == {IMAGE}


def test_schema_refuses_what_kubernetes_does_not_know(specimen: Path) -> None:
    taints = [{"key": "gpu", "operator": "Exists", "until": "tomorrow"}]
    (pod,) = (pod for name, pod in pods_of(specimen, taints=taints).items() if name.endswith("learn-on-gpus/learn"))
    with pytest.raises(kubernetes_validate.ValidationError, match="'until' was unexpected"):
        refuse(pod)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"secret": ""}, "name of the secret is '': the driver wants a text that is not empty"),
        ({"memory": ""}, "memory is '', which is no quantity"),
        ({"memory": "16 GB"}, "memory is '16 GB', which is no quantity"),
        ({"num_gpus": "all"}, "nvidia.com/gpu is 'all', which is no quantity"),
        ({"image": ""}, "make: image is ''"),
        ({"claim": "my.disk"}, "volume 'my.disk' is no DNS label"),
        ({"claim": "shm"}, "volumes occur twice: shm, shm"),
    ],
)
def test_values_that_the_driver_or_the_cluster_refuses(specimen: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(PodError, match=message.replace(".", r"\.")):
        pods_of(specimen, **values)


def test_settings_that_no_pod_here_has_are_named(tmp_path: Path) -> None:
    @dsl.pipeline
    def placed() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kubernetes.add_node_affinity(say(text="a"), match_expressions=[{"key": "a", "operator": "Exists"}])

    compiled(placed, tmp_path / "pipeline.yaml")
    with pytest.raises(PodError, match="node_affinity"):
        pods_of(tmp_path / "pipeline.yaml")
