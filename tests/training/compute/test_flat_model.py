"""A model whose parameters and gradients lie in one flat buffer computes what it computed before."""

import numpy as np
import torch

from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import flatten
from tests.model.architectures import CONFIG


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
