"""What a model predicts before its first step."""

from pathlib import Path

import torch

from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.format.split_info import SplitInfo
from dkan_core.training.compute.flat_model import flatten
from dkan_core.training.setup.untrained_model import untrained_model
from tests.model.architectures import CONFIG
from tests.settings import resolved


def test_untrained_model_predicts_the_prior_of_each_label(prepared: Path) -> None:
    classes = {"a": {"0": 900, "1": 100, "missing": 0}, "b": {"0": 10, "1": 990, "missing": 0}}
    split = SplitInfo(rows=1000, classes=classes, shards=[])
    manifest = read_manifest(prepared).model_copy(update={"labels": ["a", "b"], "splits": {"train": split}})
    model = untrained_model(CONFIG, manifest, resolved(seed=3))
    torch.testing.assert_close(model.bias.sigmoid(), torch.tensor([0.1, 0.99]), atol=1e-3, rtol=0)
    assert torch.equal(flatten(model), flatten(untrained_model(CONFIG, manifest, resolved(seed=3))))
