"""The rules every component and pipeline folder keeps: files, metadata, README and form in step with the code."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from kfp import compiler
from kfp.pipeline_spec.pipeline_spec_pb2 import ParameterType

from pipelines.assets import ROOT, asset_folders, load_asset
from pipelines.lint import lint
from pipelines.lint.documents import read_documents
from pipelines.pods import STEP
from pipelines.readmes import updated
from pipelines.versions import VERSIONS
from tests.components.rules import ALLOWED_IMPORTS, import_faults, is_stale, last_change, metadata_faults, owners_faults

ASSETS = asset_folders()
COMPONENTS = [folder for folder in ASSETS if folder.startswith("components/")]
PIPELINES = [folder for folder in ASSETS if folder.startswith("pipelines/")]
FORM_TYPES = {"STRING", "NUMBER_INTEGER", "NUMBER_DOUBLE", "BOOLEAN", "LIST", "STRUCT"}

IMAGES = {f"dkan:{tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"}
"""Base image policy: what a component may run in."""

OF_INPUTS_ALONE = {
    f"comp-{name}"
    for name in (
        *("sample-parquet", "prepare-parquet", "train-fastkan", "choose-best-run", "evaluate-fastkan", "approve-model"),
        *("check-training", "check-training-nodes", "train-fastkan-nodes", "importer"),
    )
}
"""Components whose result depends on their inputs alone, a fingerprint of the data among them."""

every_asset = pytest.mark.parametrize("folder", ASSETS)


def test_every_folder_with_metadata_is_an_asset() -> None:
    described = {path.parent for kind in ("components", "pipelines") for path in (ROOT / kind).rglob("metadata.yaml")}
    assert described == {ROOT / folder for folder in ASSETS}
    assert len(COMPONENTS) >= 3 and PIPELINES


@every_asset
def test_folder_is_complete(folder: str) -> None:
    for name in ("__init__.py", "metadata.yaml", "README.md", "OWNERS"):
        assert (ROOT / folder / name).is_file(), f"{folder} lacks {name}"
    assert list((ROOT / folder / "tests").glob("test_*.py")), f"{folder} lacks tests"
    assert re.fullmatch(r"[a-z][a-z0-9_]*", Path(folder).name), f"{folder} is not snake_case"
    if folder in PIPELINES:
        assert (ROOT / folder / "pipeline.yaml").is_file(), f"{folder} is not compiled"


@every_asset
def test_metadata_follows_the_schema(folder: str) -> None:
    metadata = yaml.safe_load((ROOT / folder / "metadata.yaml").read_text())
    assert metadata_faults(metadata, Path(folder).name) == []
    assert metadata["tags"] and all(re.fullmatch(r"[a-z0-9_]+", tag) for tag in metadata["tags"])


@every_asset
def test_what_changed_was_verified_within_a_year(folder: str) -> None:
    changed = last_change(ROOT / folder)
    if changed is None:
        pytest.skip("no git here to tell when it changed")
    verified = yaml.safe_load((ROOT / folder / "metadata.yaml").read_text())["lastVerified"]
    assert not is_stale(verified, changed), f"changed {changed}, but verified {verified}: run it, then set lastVerified"


@every_asset
def test_owners_are_named(folder: str) -> None:
    assert owners_faults(yaml.safe_load((ROOT / folder / "OWNERS").read_text())) == []


@every_asset
def test_modules_import_little_at_the_top(folder: str) -> None:
    for source in (ROOT / folder).glob("*.py"):
        assert import_faults(source.read_text(), ALLOWED_IMPORTS[folder.partition("/")[0]]) == [], source


@every_asset
def test_asset_compiles_without_fault(folder: str, tmp_path: Path) -> None:
    compiler.Compiler().compile(load_asset(folder), str(tmp_path / "compiled.yaml"))
    assert lint(tmp_path / "compiled.yaml") == []
    # Upstream the field says which releases of Kubeflow an asset is compatible with, not which SDK compiles it.
    metadata = yaml.safe_load((ROOT / folder / "metadata.yaml").read_text())
    oldest = next(version for version in VERSIONS if not lint(tmp_path / "compiled.yaml", version))
    assert {"name": "Pipelines", "version": f">={oldest}.0"} in metadata["dependencies"]["kubeflow"]


@pytest.mark.parametrize("folder", COMPONENTS)
def test_component_runs_in_an_allowed_image(folder: str, tmp_path: Path) -> None:
    compiler.Compiler().compile(load_asset(folder), str(tmp_path / "compiled.yaml"))
    executors = read_documents(tmp_path / "compiled.yaml")[0]["deploymentSpec"]["executors"]
    assert {executor["container"]["image"] for executor in executors.values()} <= IMAGES


@every_asset
def test_every_form_field_has_a_type_and_a_description(folder: str) -> None:
    for name, field in load_asset(folder).pipeline_spec.root.input_definitions.parameters.items():
        assert ParameterType.ParameterTypeEnum.Name(field.parameter_type) in FORM_TYPES, f"{name} has no plain type"
        assert field.description, f"{name} has no description"
        needed = folder in COMPONENTS or name in {
            "data_uri", "label", "prepared_uri", "run_uri", "model_uri", "output_uri"
        }  # fmt: skip
        assert field.is_optional or needed, f"{name} has no default"


@every_asset
def test_readme_tables_match_the_signature(folder: str) -> None:
    readme = (ROOT / folder / "README.md").read_text()
    assert readme == updated(folder), "run: python -m pipelines readme"


@every_asset
def test_readme_code_runs(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / folder / "README.md").read_text(), re.DOTALL)
    assert blocks, f"{folder}/README.md shows no example"
    for block in blocks:
        exec(compile(block, f"{folder}/README.md", "exec"), {})
        cached = re.findall(r"prepare_parquet\(\s*data_uri.*?\)", block, re.DOTALL)
        assert all("data_fingerprint" in call for call in cached), "the cache would give a run on new data old shards"
    compiled = list(tmp_path.glob("*.yaml"))
    assert compiled
    for path in compiled:
        assert lint(path) == []
        if folder in COMPONENTS:
            assert cached_tasks(path) <= OF_INPUTS_ALONE, "a later run on other files at the same URI would be cached"


def cached_tasks(path: Path) -> set[str]:
    """Return the components of a compiled pipeline whose tasks are taken from the cache."""
    spec = read_documents(path)[0]
    dags = [part["dag"] for part in (spec["root"], *spec["components"].values()) if "dag" in part]
    tasks = [task for dag in dags for task in dag["tasks"].values()]
    return {task["componentRef"]["name"] for task in tasks if task.get("cachingOptions", {}).get("enableCache")}


@pytest.mark.parametrize("folder", PIPELINES)
def test_shared_parameters_read_the_same_everywhere(folder: str) -> None:
    asset = load_asset(folder)
    inputs, steps = asset.component_spec.inputs, asset.pipeline_spec.components
    for part in COMPONENTS:
        if f"comp-{Path(part).name.replace('_', '-')}" not in steps:
            continue
        # The pipeline's split is the component's; evaluate_fastkan's names one of its parts. One seed serves all steps,
        # and what every pod is given train_fastkan_nodes hands on.
        others = {"seed", *(parameter.name for parameter in STEP)} | ({"split"} if "evaluate" in part else set())
        # It checks the forms of training and of batch scoring, which say other things of these two.
        others |= {"label", "min_average_precision"} if "resolve_uris" in part else set()
        for name, field in (load_asset(part).component_spec.inputs or {}).items():
            if name in inputs and name not in others:
                # A component may do without a place that the pipeline needs.
                needed = name == "prepared_uri" and not inputs[name].optional
                said = " ".join(field.description.split())
                expected = said.removesuffix(" Empty: inside the artifact.") if needed else said
                assert inputs[name].description == expected, f"{part}: {name}"
