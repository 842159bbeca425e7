"""Which parameters decay, and how strongly."""

import torch

from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica, parameter_count
from dkan_core.training.setup.parameter_groups import code_decay, decayed_ranges
from tests.model.architectures import CONFIG
from tests.settings import resolved


def test_weights_decay_and_biases_and_norms_do_not() -> None:
    model = TabularFastKAN(CONFIG)
    found = torch.zeros(parameter_count(model))
    for start, stop, decay in decayed_ranges(model, resolved(weight_decay=0.5), rows=540):
        found[start:stop] += decay
    Replica(model, torch.device("cpu")).load(found.numpy())
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or name.startswith("encoder"):
            continue
        expected = 0.5 if name.endswith("weight") and "norm" not in name else 0.0
        assert torch.equal(parameter, torch.full_like(parameter, expected)), name


def test_codes_with_few_rows_decay_most() -> None:
    model = TabularFastKAN(CONFIG)
    found = torch.zeros(parameter_count(model))
    for start, stop, decay in decayed_ranges(model, resolved(weight_decay=1.0), rows=5400):
        found[start:stop] = decay
    Replica(model, torch.device("cpu")).load(found.numpy())
    assert model.encoder.indicators is not None
    category, _, cross = model.encoder.indicators.weight.split([5, 2, 20])
    assert (category == code_decay(1.0, 5400 / 5)).all() and (cross == code_decay(1.0, 5400 / 20)).all()
    assert (model.encoder.embeddings[0].weight == category[0, 0]).all() and cross[0, 0] > category[0, 0]
