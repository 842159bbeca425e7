"""What is in the image, and what is written on it."""

import json
import re
from typing import Any

import pytest

from tests.image.base import ROOT
from tests.image.build import BUILD_SECONDS, REVISION, Image, locked_version, locked_versions, make
from tests.image.conftest import report
from tests.image.engine import docker, docker_output

# The first test that asks for an image waits for its build.
pytestmark = [pytest.mark.image, pytest.mark.timeout(BUILD_SECONDS + 300)]
VERSION = locked_version("dkan")
CUDA = re.compile(r"cuda|nvidia|triton")
VERSIONS = """
import importlib.metadata, json
print(json.dumps({entry.name: entry.version for entry in importlib.metadata.distributions()}))
"""


def python(image: Image, code: str) -> str:
    return docker_output("run", "--rm", "--network=none", image.tag, "python", "-c", code)


def installed(image: Image) -> dict[str, str]:
    return {plain(name): version for name, version in json.loads(python(image, VERSIONS)).items()}


def plain(name: str) -> str:
    """Return a package's name as the lock writes it (PEP 503)."""
    return re.sub("[-_.]+", "-", name).lower()


def inspected(image: Image) -> dict[str, Any]:
    (description,) = json.loads(docker_output("image", "inspect", image.tag))
    return dict(description["Config"])


def test_image_has_the_command_in_its_version(image: Image) -> None:
    assert docker_output("run", "--rm", "--network=none", image.tag, "dkan", "--version") == f"dkan {VERSION}"


def test_labels_name_version_revision_and_licence(image: Image) -> None:
    labels = {name.rpartition(".")[2]: value for name, value in inspected(image)["Labels"].items()}
    assert labels.pop("description")
    assert labels == {
        "title": "dkan", "version": VERSION, "revision": REVISION, "licenses": "Apache-2.0", "variant": image.variant
    }  # fmt: skip


def test_nothing_stands_between_kubeflow_and_its_command(image: Image) -> None:
    config = inspected(image)
    assert not config["Entrypoint"] and config["User"] == "10001:0"


def test_failing_command_fails_the_container(image: Image) -> None:
    failed = docker("run", "--rm", "--network=none", image.tag, "dkan", "train", "/nowhere", "--out", "/tmp/run")
    assert failed.returncode == 2 and "/nowhere" in failed.stderr


def test_what_components_import_is_there(image: Image) -> None:
    # As a step does: kfp then imports no more of itself than the executor.
    code = "import os; os.environ['_KFP_RUNTIME'] = 'true'; import kfp.dsl.executor_main, kubeflow.trainer, s3fs, gcsfs"
    assert "imported" in python(image, f"{code}; print('imported')")


def test_versions_are_those_of_the_lock(image: Image) -> None:
    versions, locked = installed(image), locked_versions()
    assert versions.pop("torch").partition("+")[0] == image.torch
    assert {"dkan", "kfp", "kubeflow", "numpy", "s3fs", "gcsfs", "tensorboard"} <= set(versions)
    assert not {name: version for name, version in versions.items() if version not in locked[name]}


def test_gpu_variant_has_the_compiler_that_triton_calls(image: Image) -> None:
    if image.variant == "gpu":
        code = "from triton.runtime.build import _find_compiler; print(_find_compiler('c'))"
        assert python(image, code)


def test_cpu_variant_holds_no_cuda(image: Image) -> None:
    if image.variant != "cpu":
        pytest.skip("there is no index of CPU builds of torch here")
    assert not [name for name in installed(image) if CUDA.match(name)]
    assert python(image, "import torch; print(torch.version.cuda)") == "None"
    assert image.bytes < 2.5e9


def test_gpu_variant_holds_cuda_as_locked(gpu_image: Image) -> None:
    versions = installed(gpu_image)
    assert versions["torch"].partition("+")[0] == locked_version("torch")
    assert versions["triton"] == locked_version("triton")
    assert len([name for name in versions if CUDA.match(name)]) > 10
    assert re.match(r"\d+\.\d+", python(gpu_image, "import torch; print(torch.version.cuda)"))


def test_other_variants_are_refused(base: str) -> None:
    build = docker("build", "--network=host", "--build-arg=VARIANT=tpu", f"--build-arg=BASE={base}", ROOT, seconds=300)
    assert build.returncode != 0
    assert "VARIANT must be gpu or cpu, got tpu" in build.stdout + build.stderr


def test_bill_of_materials_lists_what_is_installed(image: Image, pytestconfig: pytest.Config) -> None:
    printed = make("sbom", f"IMAGE={image.tag}", seconds=600)
    assert f"{image.tag}: {image.bytes} bytes" in printed
    materials = json.loads((ROOT / "build/sbom.cdx.json").read_text())
    assert materials["bomFormat"] == "CycloneDX"
    listed = {plain(entry["name"]): entry["version"] for entry in materials["components"] if is_python(entry)}
    assert listed["dkan"] == VERSION and listed["torch"].partition("+")[0] == image.torch
    assert not installed(image).items() - listed.items()
    report(pytestconfig, f"{image.variant} variant: {len(materials['components'])} components in build/sbom.cdx.json")


def is_python(component: dict[str, Any]) -> bool:
    return str(component.get("purl", "")).startswith("pkg:pypi/")
