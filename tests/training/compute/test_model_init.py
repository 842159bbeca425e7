"""What a model predicts before its first step."""

from types import SimpleNamespace

import torch

from dkan_core import TrainConfig
from dkan_core.training.compute.gradient import flatten, untrained_model
from tests.model.test_tabular import CONFIG


def test_untrained_model_predicts_the_prior_of_each_label() -> None:
    classes = {"a": {"0": 900, "1": 100, "missing": 0}, "b": {"0": 10, "1": 990, "missing": 0}}
    prepared = SimpleNamespace(labels=["a", "b"], splits={"train": SimpleNamespace(classes=classes)})
    model = untrained_model(CONFIG, prepared, TrainConfig(seed=3))
    torch.testing.assert_close(model.bias.sigmoid(), torch.tensor([0.1, 0.99]), atol=1e-3, rtol=0)
    assert torch.equal(flatten(model), flatten(untrained_model(CONFIG, prepared, TrainConfig(seed=3))))
