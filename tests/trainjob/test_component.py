"""The component's body, run against an API server over real HTTP."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from components.training.train_fastkan_nodes import train_fastkan_nodes
from dkan_core import TrainResult
from tests.trainjob.kubernetes import Kubernetes, serve, write_kubeconfig


def test_run_is_trained_where_the_data_are_and_handed_on(
    prepared: Path, trained: TrainResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(prepared, tmp_path / "claim" / "data")
    artifact = dsl.Dataset(uri=str(tmp_path / "pod"), metadata={"uri": str(tmp_path / "claim" / "data")})
    model, metrics = dsl.Model(uri=str(tmp_path / "model")), dsl.Metrics(uri=str(tmp_path / "metrics"))

    def leave_run(job: dict[str, Any]) -> None:
        arguments = job["spec"]["trainer"]["args"]
        run = Path(arguments[arguments.index("--out") + 1])
        assert run == tmp_path / "claim" / "runs" / job["metadata"]["name"]
        shutil.copytree(Path(trained.model).parent, run)

    with serve(Kubernetes(work=leave_run)) as kubernetes:
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", kubernetes.url)
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
        train_fastkan_nodes.python_func(
            artifact,
            model,
            metrics,
            str(tmp_path / "claim" / "runs"),
            "registry.example/dkan:1",
            epochs=3,
            gpus_per_node=2,
            pvc_name="claim",
            mount_path=str(tmp_path / "claim"),
        )
    (job,) = kubernetes.created
    assert {"--epochs=3", "--device=cuda"} <= set(job["spec"]["trainer"]["args"])
    assert job["spec"]["trainer"]["numProcPerNode"] == 2
    assert job["spec"]["trainer"]["image"] == "registry.example/dkan:1"
    assert metrics.metadata["validation_average_precision"] == trained.average_precision
    assert (tmp_path / "model" / "model" / "model.safetensors").exists()
