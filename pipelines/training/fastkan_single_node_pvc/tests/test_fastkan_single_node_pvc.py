"""Every step mounts the claim that the form names, and what is shared lies on it."""

from pipelines.compiled import inputs_of, package_of
from pipelines.lint.documents import read_documents

PACKAGE = package_of("single-node-pvc")


def test_every_step_mounts_the_claim() -> None:
    spec, platform = read_documents(PACKAGE)
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert pods.keys() == spec["deploymentSpec"]["executors"].keys()
    for pod in pods.values():
        (mount,) = pod["pvcMount"]
        assert mount["mountPath"] == "/mnt/dkan"
        assert mount["pvcNameParameter"] == {"componentInputParameter": "pvc_name"}


def test_prepared_data_and_checkpoints_lie_on_it() -> None:
    inputs = inputs_of(PACKAGE)
    for name in ("prepared_uri", "checkpoint_uri"):
        assert inputs[name]["defaultValue"].startswith("/mnt/dkan/")
