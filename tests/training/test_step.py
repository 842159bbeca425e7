"""The parts of a step: loss, gradient, flat buffers, optimizer."""

from types import SimpleNamespace

import numpy as np
import torch
from torch.nn import functional as F

from dkan_core import TrainConfig
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica
from dkan_core.training.compute.gradient import (
    code_decay,
    decayed_ranges,
    flatten,
    masked_loss,
    parameter_count,
    untrained_model,
)
from dkan_core.training.state.adamw import AdamState, FlatAdamW
from tests.model.test_tabular import CONFIG


def test_loss_is_the_mean_over_measured_labels() -> None:
    logits = torch.randn(2, 50, 3)
    labels = torch.randint(0, 2, (50, 3), dtype=torch.uint8)
    labels[torch.rand(50, 3) < 0.3] = 255
    measured = labels != 255
    loss, weight = masked_loss(logits, labels, None)
    expected = F.binary_cross_entropy_with_logits(logits[:, measured], labels[measured].float().expand(2, -1))
    torch.testing.assert_close(loss, expected)
    assert weight == measured.sum()


def test_row_of_weight_two_counts_as_two_rows() -> None:
    logits, labels = torch.randn(1, 4, 1), torch.tensor([[0], [1], [1], [0]], dtype=torch.uint8)
    weighted, total = masked_loss(logits, labels, torch.tensor([1.0, 2.0, 0.0, 1.0]))
    repeated, _ = masked_loss(logits[:, [0, 1, 1, 3]], labels[[0, 1, 1, 3]], None)
    torch.testing.assert_close(weighted, repeated)
    assert total == 4


def test_positives_of_weight_three_count_as_three_rows() -> None:
    logits, labels = torch.randn(1, 4, 1), torch.tensor([[0], [1], [1], [0]], dtype=torch.uint8)
    weighted, _ = masked_loss(logits, labels, None, pos_weight=3.0)
    repeated, _ = masked_loss(logits[:, [0, 1, 1, 1, 2, 2, 2, 3]], labels[[0, 1, 1, 1, 2, 2, 2, 3]], None)
    torch.testing.assert_close(weighted * 4, repeated * 8)


def test_a_label_of_weight_zero_is_left_out() -> None:
    logits, labels = torch.randn(2, 6, 3), torch.randint(0, 2, (6, 3), dtype=torch.uint8)
    weighted, total = masked_loss(logits, labels, None, label_weights=(2.0, 0.0, 2.0))
    rest, _ = masked_loss(logits[..., [0, 2]], labels[:, [0, 2]], None)
    torch.testing.assert_close(weighted, rest)
    assert total == 24


def test_nothing_measured_gives_no_loss_and_no_nan() -> None:
    logits = torch.randn(1, 4, 2, requires_grad=True)
    loss, weight = masked_loss(logits, torch.full((4, 2), 255, dtype=torch.uint8), None)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss == 0 and weight == 0 and not gradient.any()


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


def test_weights_decay_and_biases_and_norms_do_not() -> None:
    model = TabularFastKAN(CONFIG)
    found = torch.zeros(parameter_count(model))
    for start, stop, decay in decayed_ranges(model, TrainConfig(weight_decay=0.5), rows=540):
        found[start:stop] += decay
    Replica(model, torch.device("cpu")).load(found.numpy())
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or name.startswith("encoder"):
            continue
        expected = 0.5 if name.endswith("weight") and "norm" not in name else 0.0
        assert (parameter == expected).all(), name


def test_codes_with_few_rows_decay_most() -> None:
    model = TabularFastKAN(CONFIG)
    found = torch.zeros(parameter_count(model))
    for start, stop, decay in decayed_ranges(model, TrainConfig(weight_decay=1.0), rows=5400):
        found[start:stop] = decay
    Replica(model, torch.device("cpu")).load(found.numpy())
    category, _, cross = model.encoder.indicators.weight.split([5, 2, 20])
    assert (category == code_decay(1.0, 5400 / 5)).all() and (cross == code_decay(1.0, 5400 / 20)).all()
    assert (model.encoder.embeddings[0].weight == category[0, 0]).all() and cross[0, 0] > category[0, 0]


def test_untrained_model_says_the_prior_of_each_label() -> None:
    classes = {"a": {"0": 900, "1": 100, "missing": 0}, "b": {"0": 10, "1": 990, "missing": 0}}
    prepared = SimpleNamespace(labels=["a", "b"], splits={"train": SimpleNamespace(classes=classes)})
    model = untrained_model(CONFIG, prepared, TrainConfig(seed=3))
    torch.testing.assert_close(model.bias.sigmoid(), torch.tensor([0.1, 0.99]), atol=1e-3, rtol=0)
    assert torch.equal(flatten(model), flatten(untrained_model(CONFIG, prepared, TrainConfig(seed=3))))


def test_optimizer_equals_torch() -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=100).astype(np.float32)
    decayed, plain = torch.tensor(start[:60], requires_grad=True), torch.tensor(start[60:], requires_grad=True)
    groups = [{"params": [decayed], "weight_decay": 0.1}, {"params": [plain], "weight_decay": 0.0}]
    theirs, ours = torch.optim.AdamW(groups, lr=0.0), FlatAdamW([(0, 60, 0.1)])
    states = [AdamState.starting_at(start.copy()) for _ in range(2)]
    for step in range(50):
        gradient = rng.normal(size=100).astype(np.float32)
        lr = 0.01 * (1 - step / 50)
        decayed.grad, plain.grad = torch.tensor(gradient[:60]), torch.tensor(gradient[60:])
        for group in theirs.param_groups:
            group["lr"] = lr
        theirs.step()
        assert ours.step(*states, gradient, lr=lr, count=step + 1)
        states.reverse()
    np.testing.assert_allclose(states[0].values_P, torch.cat([decayed, plain]).detach().numpy(), rtol=1e-5, atol=1e-6)
