"""A model as an InferenceService: what is applied, what it is waited for, and the files of deploy/serving."""

import copy
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from dkan_core import (
    ClusterUnreachableError,
    ConfigError,
    DataError,
    DeploymentError,
    TrainingError,
    TrainResult,
    deploy,
)
from dkan_core.serving import inference_service as module
from dkan_core.utils import kubernetes_api
from dkan_core.utils.retry import RetryPolicy
from tests.serving.cluster import EARLIER, LOADING, READY, URL, KServe, condition, serving_cluster
from tests.serving.kserve_schema import SchemaError, check_kserve
from tests.serving.server import needs_kserve

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy/serving"


@pytest.fixture
def kserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KServe]:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(kubernetes_api, "RETRIES", RetryPolicy(first_pause=0.01, attempts=3))
    cluster = KServe()
    with serving_cluster(cluster, tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        yield cluster


def deployed(trained: TrainResult, uri: str = "s3://bucket/late", **options: Any) -> str:
    return deploy(trained.model, "late", uri, **options)


@needs_kserve
def test_service_is_applied_and_waited_for_until_the_new_model_is_the_one_that_answers(
    kserve: KServe, trained: TrainResult
) -> None:
    kserve.states = [None, LOADING, 503, EARLIER, READY]
    assert deployed(trained, service_account="reader") == URL
    assert kserve.states == [READY]
    (applied,) = kserve.applied
    predictor = applied["spec"]["predictor"]
    assert predictor["model"]["storageUri"] == "s3://bucket/late" and predictor["serviceAccountName"] == "reader"
    assert kserve.queries == [{"fieldManager": ["dkan"], "force": ["true"], "fieldValidation": ["Strict"]}]
    assert kserve.tokens == {"Bearer not-a-real-token"}
    check_kserve(applied, "V1beta1InferenceService")


def test_retry_changes_nothing_and_another_model_at_the_same_place_does(
    kserve: KServe, trained: TrainResult, tmp_path: Path
) -> None:
    deployed(trained)
    deployed(trained)
    assert kserve.services["late"]["metadata"]["generation"] == 1
    other = tmp_path / "other"
    shutil.copytree(trained.model, other)
    (other / "README.md").write_text("a card says nothing of what is served")
    deploy(other, "late", "s3://bucket/late")
    assert kserve.services["late"]["metadata"]["generation"] == 1
    (other / "files.json").unlink()
    deploy(other, "late", "s3://bucket/late")
    assert kserve.services["late"]["metadata"]["generation"] == 2


def test_answer_that_was_lost_is_asked_for_again(kserve: KServe, trained: TrainResult) -> None:
    kserve.faults = [503, 429]
    assert deployed(trained) == URL
    assert len(kserve.applied) == 3


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("minio://mlpipeline/v2/late", "s3://mlpipeline/v2/late"),
        ("gcs://bucket/late", "gs://bucket/late"),
        ("pvc://dkan/models/late", "pvc://dkan/models/late"),
    ],
)
def test_uris_are_named_as_kserve_names_them(kserve: KServe, trained: TrainResult, uri: str, found: str) -> None:
    deployed(trained, uri)
    assert kserve.applied[0]["spec"]["predictor"]["model"]["storageUri"] == found


INVALID = {
    "conditions": [condition("Ready", "False")],
    "modelStatus": {
        "transitionStatus": "InvalidSpec",
        "lastFailureInfo": {"reason": "RuntimeNotRecognized", "message": "dkan is no runtime"},
    },
}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (LOADING, r"late is not ready after 0 seconds: Ready: MinimumReplicasUnavailable no pod is ready"),
        (EARLIER, r"late is not ready after 0 seconds: KServe reports no reason"),
        (INVALID, r"late cannot be served: RuntimeNotRecognized dkan is no runtime"),
    ],
)
def test_service_that_does_not_become_ready_is_an_error_with_the_words_of_kserve(
    kserve: KServe, trained: TrainResult, state: Any, message: str
) -> None:
    kserve.states = [state]
    with pytest.raises(DeploymentError, match=message):
        deployed(trained, timeout_seconds=0)


def test_cluster_that_does_not_answer_is_an_error_of_its_own(kserve: KServe, trained: TrainResult) -> None:
    kserve.faults = [503, 503, 503]
    with pytest.raises(ClusterUnreachableError, match="the cluster does not answer") as caught:
        deployed(trained)
    assert not isinstance(caught.value, TrainingError)


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (403, "forbidden", r"may not do that in this namespace; it needs create, get and patch .* \(403: forbidden\)"),
        (404, "not found", "the cluster has no InferenceServices; install KServe"),
        (400, 'unknown field "spec.predictor.model"', "KServe 0.13 or later is needed"),
    ],
)
def test_refusal_of_the_cluster_says_what_is_missing(
    kserve: KServe, trained: TrainResult, status: int, said: str, message: str
) -> None:
    kserve.faults, kserve.message = [status], said
    with pytest.raises(ConfigError, match=message):
        deployed(trained)


def test_settings_are_refused_before_the_cluster_is_asked(kserve: KServe, trained: TrainResult, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"model /mnt/late: KServe cannot read it; publish the model to a bucket.*serving_uri in"
    ):
        deployed(trained, "/mnt/late")
    with pytest.raises(ConfigError, match="inference_service must be at most 40 lowercase letters"):
        deploy(trained.model, "Late!", "s3://bucket/late")
    with pytest.raises(DataError, match="expected a model"):
        deploy(tmp_path / "nothing", "late", "s3://bucket/late")
    assert not kserve.applied


def document(name: str) -> Any:
    return yaml.safe_load((FILES / name).read_text())


@needs_kserve
def test_files_are_what_kserve_takes_and_what_is_applied() -> None:
    service, runtime = document("inference-service.yaml"), document("serving-runtime.yaml")
    check_kserve(service, "V1beta1InferenceService")
    check_kserve(runtime, "V1alpha1ServingRuntime")
    wrong = copy.deepcopy(service)
    wrong["spec"]["predictor"]["model"]["storageUrl"] = "s3://bucket/late"
    with pytest.raises(SchemaError, match="V1beta1ModelSpec has no field 'storageUrl'"):
        check_kserve(wrong, "V1beta1InferenceService")
    ours = module.inference_service("late", "s3://bucket/models/late", "0", service_account="dkan-serving")
    assert service["spec"]["predictor"]["model"] == ours["spec"]["predictor"]["model"]
    assert runtime["metadata"]["name"] == ours["spec"]["predictor"]["model"]["runtime"]
    assert runtime["spec"]["supportedModelFormats"][0]["name"] == module.MODEL_FORMAT


def test_pod_of_the_runtime_is_valid_and_restricted() -> None:
    runtime = document("serving-runtime.yaml")
    (container,) = runtime["spec"]["containers"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "late"}, "spec": {"containers": [container]}}
    kubernetes_validate.validate(pod, kubernetes_validate.latest_version(), strict=True)
    security = container["securityContext"]
    assert security["runAsNonRoot"] and not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]} and security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")} == {
        8080
    }
