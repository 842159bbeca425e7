"""Every variant of the ablation changes something that is there."""

from pathlib import Path

import pytest

from benchmarks.ablation import VARIANTS, measure, patched, table
from dkan_core.training.setup.parameter_groups import code_rate
from tests.settings import resolved


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_change_settings_or_constants_that_exist(name: str) -> None:
    change, constants = VARIANTS[name]
    base = resolved(members=2, hidden=(8,), learning_rate=0.01, grid_min=-2.5, grid_max=2.5)
    with patched(constants):
        assert constants or change(base) != base


def test_constants_have_their_values_inside_the_block_alone() -> None:
    _, constants = VARIANTS["embeddings of rare codes learn like other weights"]
    with patched(constants):
        assert code_rate(1) == 1
    assert code_rate(1) < 1


def test_default_and_variants_are_measured_on_the_same_rows(source: Path) -> None:
    chosen = ["no crosses", "embeddings of rare codes learn like other weights"]
    found = [*measure(source, 0, chosen)]
    assert [run["variant"] for run in found] == ["default", *chosen]
    assert all(0 < run[part] <= 1 for run in found for part in ("valid", "unseen"))


def test_losses_are_means_over_both_parts() -> None:
    run = {"set": "adult", "fold": 0, "cpu": 2.0}
    default = {**run, "variant": "default", "valid": 0.8, "unseen": 0.7}
    other = {**run, "variant": "no crosses", "valid": 0.7, "unseen": 0.9, "cpu": 1.0}
    assert "| no crosses | -0.0500 | -0.0500 ± nan | 0.50x |" in table([default, other], [*VARIANTS])
