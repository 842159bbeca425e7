"""The rules for asset folders bite: each thing that they forbid is named."""

from datetime import datetime, timedelta
from typing import Any

import pytest
import yaml

from tests.components.rules import import_faults, is_stale, metadata_faults, owners_faults

GOOD = """
name: asset
stability: alpha
dependencies:
  kubeflow:
    - name: Pipelines
      version: ">=2.17.0"
tags:
  - training
lastVerified: 2026-11-21T00:00:00Z
"""


def test_good_metadata_has_no_fault() -> None:
    assert metadata_faults(yaml.safe_load(GOOD), "asset") == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("name: asset\nstability: alpha", "stability: alpha\nname: asset", "in this order, got stability, name"),
        ("stability: alpha\n", "", "expected the fields name, stability, dependencies, lastVerified"),
        ("tags:", "tier: core\ntags:", "got name, stability, dependencies, tier"),
        ("name: asset", "name: other", "name is 'other', the folder is 'asset'"),
        ("stability: alpha", "stability: ready", "stability is 'ready'"),
        ("name: Pipelines", "name: Trainer", "names no Kubeflow Pipelines"),
        ("kubeflow:", "python:", "dependencies has kubeflow"),
        ('">=2.17.0"', '"2.17"', "needs a name and a version such as >=1.2.3"),
        ('">=2.17.0"', "2.17", "needs a name and a version such as >=1.2.3"),
        ("  - training", "  - 1", "tags are texts"),
        ("tags:\n  - training", "tags: training", "tags is no list"),
        ("tags:", "ci:\n  probe: true\ntags:", "ci holds skip_dependency_probe"),
        ("2026-11-21T00:00:00Z", "2026-11-21", "expected a time such as"),
        ("2026-11-21T00:00:00Z", "2026-11-21 00:00:00", "expected a time such as"),
    ],
)
def test_fault_in_metadata_is_named(old: str, new: str, fault: str) -> None:
    assert old in GOOD
    faults = metadata_faults(yaml.safe_load(GOOD.replace(old, new)), "asset")
    assert any(fault in found for found in faults), faults


@pytest.mark.parametrize("owners", [None, {}, {"reviewers": ["a"]}, {"approvers": []}, {"approvers": "a"}])
def test_owners_without_an_approver_are_a_fault(owners: Any) -> None:
    assert owners_faults(owners)
    assert not owners_faults({"approvers": ["a"], "reviewers": ["b"]})


def test_imports_inside_functions_are_free() -> None:
    source = "import json\nfrom kfp import dsl\nfrom . import x\ndef f():\n    import torch\n"
    assert import_faults(source, {"kfp"}) == []
    assert import_faults(source + "if True:\n    import torch\n", {"kfp"}) == ["imports torch at the top"]
    assert import_faults("from dkan_core import train\n", {"kfp"}) == ["imports dkan_core at the top"]


def test_a_year_from_the_change_is_stale() -> None:
    changed = datetime.fromisoformat("2026-11-21T00:00:00Z")
    assert not is_stale(changed - timedelta(days=364), changed)
    assert is_stale(changed - timedelta(days=365), changed)
    assert is_stale(changed + timedelta(days=365), changed)
