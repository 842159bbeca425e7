"""Sketched layers: their weight is the published formula, and their factors learn what it says."""

import hashlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from dkan_core.errors import ConfigError
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.build import build_model
from dkan_core.model.parameter_count import check_sketch
from dkan_core.model.sketch import Sketch, SketchedLinear, random_signs, sketched_layers
from dkan_core.model.tabular import TabularFastKAN
from dkan_core.training.compute.flat_model import Replica, flatten, trained_parameters
from dkan_core.training.compute.gradient import accumulate_gradient
from dkan_core.training.compute.pinned_memory import to_tensors
from dkan_core.utils.arrays import Arrays
from tests.model.architectures import CONFIG, PLAIN, changed
from tests.settings import resolved

SKETCH = Sketch(rank=6, seed=3)


def layer(**changes: Any) -> SketchedLinear:
    return SketchedLinear(40, 25, SKETCH, **{"stream": 1, "std": 0.1, "bias": True, **changes})


def test_weight_is_the_published_formula() -> None:
    sketched = layer()
    u1, u2 = random_signs(SKETCH, 25, stream=2), random_signs(SKETCH, 40, stream=3)
    expected = (u1.T @ sketched.s1_weight + sketched.s2_weight @ u2) / 2
    torch.testing.assert_close(sketched.weight, expected)
    x = torch.randn(9, 40)
    torch.testing.assert_close(sketched(x), x @ expected.T + sketched.bias)


def test_several_published_terms_are_one_of_their_total_rank() -> None:
    terms, rank = 3, 2
    sketched = layer()
    # Signs over the root of a term's rank, and factors that are smaller by the root of the number of terms.
    u1s, u2s = (
        (math.sqrt(terms) * random_signs(SKETCH, width, stream)).split(rank) for width, stream in ((25, 2), (40, 3))
    )
    s1s = (math.sqrt(terms) * sketched.s1_weight).split(rank)
    s2s = (math.sqrt(terms) * sketched.s2_weight).split(rank, dim=1)
    products = [u1.T @ s1 + s2 @ u2 for u1, s1, s2, u2 in zip(u1s, s1s, s2s, u2s, strict=True)]
    torch.testing.assert_close(sketched.weight, torch.stack(products).sum(0) / (2 * terms))


def test_gradients_of_the_factors_are_those_of_the_formula() -> None:
    sketched = layer().double()

    def output(s1: Tensor, s2: Tensor, x: Tensor) -> Any:
        return functional_call(sketched, {"s1_weight": s1, "s2_weight": s2}, (x,))

    factors = [each.detach().requires_grad_() for each in (sketched.s1_weight, sketched.s2_weight)]
    x = torch.randn(4, 40, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(output, (*factors, x))


@pytest.mark.parametrize("kernel", ["auto", "eager", "recompute"])
@pytest.mark.parametrize(
    "architecture",
    [CONFIG, PLAIN, changed(CONFIG, hidden=(6, 5)), changed(PLAIN, input_norm="layer"), changed(CONFIG, hidden=())],
    ids=["members", "plain", "deep", "norm", "no-hidden"],
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_that_computes_weights_once_has_autograd_s_gradient(
    architecture: ModelConfig, kernel: Any, accumulate: int
) -> None:
    architecture = changed(architecture, sketch_rank=2, sketch_seed=5)
    config = resolved(kernel=kernel, accumulate=accumulate)
    model = build_model(architecture).train()
    with torch.no_grad():
        for parameter in trained_parameters(model):
            parameter.normal_(0.0, 0.3)
    rng = np.random.default_rng(0)
    rows: Arrays = {
        "numeric": rng.integers(0, 256, (50, 3), dtype=np.uint8),
        "categorical": rng.integers(0, 4, (50, 2), dtype=np.int32),
        "labels": rng.integers(0, 2, (50, 2), dtype=np.uint8),
        "dropout_key": rng.integers(0, 2**31, 50, dtype=np.int32),
    }
    loss, _ = accumulate_gradient(model, to_tensors(rows, torch.device("cpu")), resolved(kernel="eager"))
    expected = torch.cat([each.grad.flatten() for each in trained_parameters(model) if each.grad is not None])
    values_P = flatten(model).numpy()
    replica = Replica(model, torch.device("cpu"), kernel)
    replica.load(values_P)
    for _ in range(2):
        totals = replica.compute_gradient(rows, config)
        assert totals.loss == pytest.approx(float(loss), rel=1e-5)
        torch.testing.assert_close(replica.gradients_P, expected, atol=1e-6, rtol=1e-4)
    replica.values_P.mul_(1.5)
    sketched = sketched_layers(model)[0]
    torch.testing.assert_close(
        sketched.weight, sketched.half_u1.T @ sketched.s1_weight + sketched.s2_weight @ sketched.half_u2
    )


def test_random_signs_are_the_same_everywhere_and_their_columns_have_length_1() -> None:
    signs = random_signs(Sketch(rank=8, seed=2**63 - 1), 1000, stream=3)
    torch.testing.assert_close(signs.square().sum(0), torch.ones(1000))
    assert abs(float(signs.sign().mean())) < 0.05
    digest = hashlib.sha256((signs > 0).numpy().tobytes()).hexdigest()
    assert digest == "e1f4be3a251ff2dca72144774fb9e3135c059f72125707cf4875c55ff79fbf11"
    for other in (random_signs(Sketch(rank=8, seed=0), 1000, stream=3), random_signs(Sketch(8, 2**63 - 1), 1000, 2)):
        assert 0.4 < float((other == signs).float().mean()) < 0.6


def test_a_sketched_layer_starts_as_large_as_a_full_one() -> None:
    full = changed(CONFIG, num_numeric=200, binary=(), hidden=(64,))
    weights = {}
    for rank in (0, 1, 16):
        model = build_model(changed(full, sketch_rank=rank, sketch_seed=0))
        assert isinstance(model, TabularFastKAN) and model.first_layer is not None
        first = model.first_layer
        weights[rank] = [float(each.weight.detach().std()) for each in (first.spline_linear, first.base_linear)]
    assert weights[1] == pytest.approx(weights[0], rel=0.2) and weights[16] == pytest.approx(weights[0], rel=0.1)


def test_architecture_of_a_full_layer_says_nothing_of_sketches() -> None:
    assert not any(name.startswith("sketch") for name in CONFIG.to_dict())
    sketched = changed(CONFIG, sketch_rank=2, sketch_seed=9)
    assert ModelConfig.from_dict(sketched.to_dict()) == sketched


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sketch_rank": 7}, r"sketch_rank 7: .* have 392 weights and the full one has 360; set at most 6, or leave"),
        ({"sketch_rank": 1, "num_numeric": 1, "binary": (0,), "cardinalities": (), "embedded": (), "indicators": ()}
         | {"missing": ()}, r"sketch_rank 1: .* the full one has 0; leave it out"),
    ],
)  # fmt: skip
def test_a_sketch_that_saves_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_sketch(changed(CONFIG, **changes))
    check_sketch(changed(CONFIG, sketch_rank=6))
