"""A published model is applied as an InferenceService, from where it was published."""

from pathlib import Path

import pytest
from kfp import dsl

from components.deployment.deploy_model import deploy_model
from dkan_core import ConfigError, TrainResult
from tests.serving.cluster import URL, KServe, serving_cluster


@pytest.mark.parametrize(
    ("options", "uri"),
    [({}, "s3://bucket/models/late"), ({"serving_uri": "pvc://dkan/models/late"}, "pvc://dkan/models/late")],
)
def test_model_is_served_from_where_it_was_published(
    trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], uri: str
) -> None:
    model = dsl.Model(uri=trained.model, metadata={"uri": "s3://bucket/models/late"})
    kserve = KServe()
    with serving_cluster(kserve, tmp_path) as kubeconfig:
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        assert deploy_model.python_func(model, "late", **options) == URL
    assert kserve.applied[0]["spec"]["predictor"]["model"]["storageUri"] == uri


def test_place_that_kserve_cannot_read_is_named(trained: TrainResult) -> None:
    with pytest.raises(ConfigError, match="KServe cannot read it"):
        deploy_model.python_func(dsl.Model(uri=trained.model), "late")
