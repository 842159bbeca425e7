"""AdamW on flat buffers takes the steps that torch's takes."""

import inspect

import numpy as np
import pytest
import torch
from torch.optim.adamw import adamw

from dkan_core.training.state import adamw as adamw_module
from dkan_core.training.state.adamw import BLOCK, FlatAdamW, ParameterGroups, initial_state
from tests.native import needs_native


@pytest.mark.parametrize("native", [pytest.param(True, marks=needs_native), False])
def test_optimizer_equals_torch(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(adamw_module, "native_library", lambda: None)
    rng = np.random.default_rng(0)
    start = rng.normal(size=100).astype(np.float32)
    groups = [(slice(0, 60), 0.1), (slice(60, 100), 0.0)]
    expected, exp_avg, exp_avg_sq = torch.tensor(start), torch.zeros(100), torch.zeros(100)
    steps = [torch.tensor(0.0) for _ in groups]
    defaults = inspect.signature(torch.optim.AdamW).parameters
    beta1, beta2 = defaults["betas"].default
    ours = FlatAdamW(ParameterGroups(((0, 60, 0.1),)))
    state_3P, updated_3P = (initial_state(start.copy()) for _ in range(2))
    for step in range(50):
        gradient = rng.normal(size=100).astype(np.float32)
        lr = 0.01 * (1 - step / 50)
        # The function, since the class takes seconds of imports.
        for (part, weight_decay), count in zip(groups, steps, strict=True):
            adamw(
                [expected[part]],
                [torch.tensor(gradient[part])],
                [exp_avg[part]],
                [exp_avg_sq[part]],
                [],
                [count],
                foreach=False,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=weight_decay,
                eps=defaults["eps"].default,
                maximize=False,
            )
        assert ours.step(state_3P, updated_3P, gradient, lr=lr, count=step + 1)
        state_3P, updated_3P = updated_3P, state_3P
    np.testing.assert_allclose(state_3P[0], expected.numpy(), rtol=1e-5, atol=1e-6)


@needs_native
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("size", [0, 1, 17, 3 * BLOCK + 5])
def test_native_step_has_the_bits_of_numpy(size: int, in_place: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(size)
    decayed = [(size // 5, size // 3, 1.5), (size // 3, size // 2, 0.25), (size // 2, size - size // 4, 1.0)]
    states = {}
    start = rng.normal(size=size).astype(np.float32)
    gradients = (rng.normal(size=(4, size)) * 10.0 ** rng.integers(-12, 6, (4, size))).astype(np.float32)
    for native in (True, False):
        if not native:
            monkeypatch.setattr(adamw_module, "native_library", lambda: None)
        optimizer, state = FlatAdamW(ParameterGroups(tuple(decayed)), threads=3), initial_state(start.copy())
        other = state if in_place else initial_state(np.empty_like(start))
        for count, kept in enumerate(gradients, start=1):
            gradient, rules = kept.copy(), {"lr": 0.01 / count, "scale": 0.3 ** (count % 2)}
            assert optimizer.step(state, other, gradient, count=count, clear=in_place, **rules)
            np.testing.assert_array_equal(gradient, 0 * kept if in_place else kept)
            state, other = other, state
        states[native] = state
    np.testing.assert_array_equal(states[True], states[False])


@needs_native
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_native_step_tells_what_is_not_finite(wrong: float) -> None:
    state, gradient = initial_state(np.ones(1000, np.float32)), np.ones(1000, np.float32)
    assert FlatAdamW(ParameterGroups()).step(state, state, gradient, lr=0.1, count=1)
    gradient[777] = wrong
    assert not FlatAdamW(ParameterGroups()).step(state, state, gradient, lr=0.1, count=2)
