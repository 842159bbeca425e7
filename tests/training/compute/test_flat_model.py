"""A model whose parameters and gradients lie in one flat buffer computes what it computed before."""

from typing import Any

import numpy as np
import pytest
import torch

from dkan_core.config import ResolvedTrainConfig
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.model.training_step import PreparedStep, prepare_step
from dkan_core.training.compute import flat_model
from dkan_core.training.compute.flat_model import Replica, flatten
from dkan_core.utils.arrays import Arrays, Float32
from tests.model.architectures import CONFIG, PLAIN, changed
from tests.native import needs_native
from tests.settings import resolved
from tests.training.compute.test_gradient import batch_of, model_of


def test_bound_model_computes_the_same_and_writes_its_gradient_into_the_buffer() -> None:
    model = TabularFastKAN(CONFIG).eval()
    inputs = {"numeric": torch.randn(5, 3), "categorical": torch.zeros(5, len(CONFIG.cardinalities), dtype=torch.int32)}
    before, values = model(**inputs), flatten(model).numpy()
    gradients = np.zeros_like(values)
    replica = Replica(model, torch.device("cpu"))
    replica.load(values)
    replica.bind_gradient_array(gradients)
    assert torch.equal(model(**inputs), before)
    model(**inputs).sum().backward()
    assert gradients.any() and np.array_equal(flatten(model).numpy(), values)
    values[:] = 0
    assert not model(**inputs).any()


@needs_native
@pytest.mark.parametrize(
    "settings",
    [{}, {"pos_weight": 3.0, "label_weights": (2.0, 0.5)}, {"accumulate": 3}],
    ids=["plain", "weighted", "in parts"],
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [
        (changed(CONFIG, binary=(), dropout=0.3), torch.uint8),
        (changed(CONFIG, dropout=0.3, binary_dropout=0.3), torch.uint8),
        (changed(PLAIN, binary=()), torch.float32),
    ],
)
def test_prepared_steps_have_the_bits_of_steps_by_themselves(
    architecture: ModelConfig, dtype: torch.dtype, weighted: bool, settings: dict[str, Any]
) -> None:
    """Whatever the size of the batch, and wherever parameters and gradients have been bound to since."""
    config = resolved(labels=2, **settings)
    replica = Replica(model_of(architecture).train(), torch.device("cpu"))
    values: list[Float32] = [flatten(model_of(architecture)).numpy() * np.float32(scale) for scale in (1.0, 0.5)]
    gradients: list[Float32] = [np.zeros_like(values[0]) for _ in range(2)]
    for turn, rows in enumerate((40, 60, 17, 60)):
        batch = batch_of(architecture, rows=rows, weighted=weighted)
        batch["numeric"] = batch["numeric"].to(dtype)
        if dtype.is_floating_point:
            batch["numeric"][::3, 0] = torch.nan
        arrays = {name: tensor.numpy() for name, tensor in batch.items()}
        new = Replica(model_of(architecture).train(), torch.device("cpu"))
        for each in (replica, new):
            each.load(values[turn % 2])
        replica.bind_gradient_array(gradients[turn // 2])
        assert replica.compute_gradient(arrays, config) == new.compute_gradient(arrays, config)
        np.testing.assert_array_equal(replica.gradients_P.numpy(), new.gradients_P.numpy())


@needs_native
@pytest.mark.parametrize("changes", [{"pos_weight": 3.0}, {"label_weights": (2.0, 0.5)}, {"seed": 7}])
def test_no_prepared_step_of_other_settings_is_used(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the setting: none has to be known as one of the loss."""
    found: list[ResolvedTrainConfig] = []

    def noted(model: TabularFastKAN, arrays: Arrays, config: ResolvedTrainConfig) -> PreparedStep | None:
        found.append(config)
        return prepare_step(model, arrays, config)

    monkeypatch.setattr(flat_model, "prepare_step", noted)
    architecture = changed(CONFIG, binary=())
    replica = Replica(model_of(architecture).train(), torch.device("cpu"))
    arrays = {name: tensor.numpy() for name, tensor in batch_of(architecture, rows=20).items()}
    configs = [resolved(labels=2), resolved(labels=2, **changes)]
    for config in (*configs, *configs):
        replica.compute_gradient(arrays, config)
    assert found == configs
