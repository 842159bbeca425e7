"""The code of the guide to a cluster runs, its calls fit the kfp SDK, and what it compiles has what it promises."""

import re
import runpy
from pathlib import Path
from typing import Any
from unittest.mock import create_autospec

import kfp
import pytest
import yaml

from components.image import IMAGE
from pipelines.arguments import with_defaults
from pipelines.compiled import inputs_of, package_of
from pipelines.form_checks import find_faults
from pipelines.lint import lint
from tests.pipelines.pods import pods_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/cluster.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run_block(saying: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the block that says something, as a file; return where it compiles to."""
    (block,) = (block for block in BLOCKS if saying in block)
    (folder / "block.py").write_text(block)
    monkeypatch.chdir(folder)
    runpy.run_path(str(folder / "block.py"))
    return folder / "flights.yaml"


def test_pod_that_takes_files_to_the_volume_is_as_restricted_as_the_copy_of_a_bucket() -> None:
    (block,) = re.findall(r"^```yaml\n(.*?kind: Pod\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    pod = yaml.safe_load(block)
    job = yaml.safe_load((ROOT / "deploy/volume-data.yaml").read_text())
    (shell,), (copy,) = (spec["containers"] for spec in (pod["spec"], job["spec"]["template"]["spec"]))
    assert shell["securityContext"] == copy["securityContext"]


def test_secrets_of_the_registry_reach_every_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_block("image_pull_secrets", tmp_path, monkeypatch)
    assert lint(path) == []
    for pod in pods_of(path).values():
        assert pod["spec"]["imagePullSecrets"] == [{"name": "dkan-registry"}]
    # Without the setting a pod names none: then it gets those of its service account.
    for pod in pods_of(package_of("single-node")).values():
        assert not pod["spec"]["imagePullSecrets"]


def test_queue_is_a_label_of_every_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = pods_of(run_block("kueue.x-k8s.io/queue-name", tmp_path, monkeypatch))
    for pod in pods.values():
        assert pod["metadata"]["labels"] == {"app.kubernetes.io/part-of": "dkan", "kueue.x-k8s.io/queue-name": "team"}


def test_annotations_keep_autoscalers_off_every_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_block("karpenter.sh/do-not-disrupt", tmp_path, monkeypatch)
    assert lint(path) == []
    for pod in pods_of(path).values():
        assert pod["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"


def test_exit_handler_compiles_around_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_block("ExitHandler", tmp_path, monkeypatch)
    pods = pods_of(path)
    assert any(name.endswith("train-fastkan") for name in pods)
    (main,) = pods["notify"]["spec"]["containers"]
    assert main["image"] == IMAGE and "pip install" not in str(main["args"]), "clusters without internet have neither"


@pytest.mark.parametrize(
    ("call", "values", "saying", "pipeline"),
    [
        ("create_recurring_run", "params", 'job_name="flights-nightly"', "single-node"),
        ("create_recurring_run", "params", 'job_name="flights-scores"', "batch-scoring"),
        ("create_run_from_pipeline_package", "arguments", "client.create_run_from_pipeline_package(", "single-node"),
    ],
)
def test_calls_fit_the_sdk_and_the_form(
    call: str, values: str, saying: str, pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real signatures: an argument that the SDK does not know is a TypeError.
    client: Any = create_autospec(kfp.Client)
    monkeypatch.setattr(kfp, "Client", client)
    run_block(saying, tmp_path, monkeypatch)
    (made,) = getattr(client.return_value, call).call_args_list
    form = inputs_of(package_of(pipeline))
    needed = {name for name, field in form.items() if not field.get("isOptional")}
    assert needed <= set(made.kwargs[values]) <= set(form)
    assert find_faults(with_defaults(form, made.kwargs[values])) == []
    # What the SDK asks for, and its signature does not tell.
    assert ("pipeline_id" in made.kwargs) == ("version_id" in made.kwargs)
