"""AdamW on flat buffers takes the steps that torch's takes."""

import inspect

import numpy as np
import torch
from torch.optim.adamw import adamw

from dkan_core.training.state.adamw import AdamState, FlatAdamW


def test_optimizer_equals_torch() -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=100).astype(np.float32)
    groups = [(slice(0, 60), 0.1), (slice(60, 100), 0.0)]
    expected, exp_avg, exp_avg_sq = torch.tensor(start), torch.zeros(100), torch.zeros(100)
    steps = [torch.tensor(0.0) for _ in groups]
    defaults = inspect.signature(torch.optim.AdamW).parameters
    beta1, beta2 = defaults["betas"].default
    ours = FlatAdamW([(0, 60, 0.1)])
    state, updated = (AdamState.starting_at(start.copy()) for _ in range(2))
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
        assert ours.step(state, updated, gradient, lr=lr, count=step + 1)
        state, updated = updated, state
    np.testing.assert_allclose(state.values_P, expected.numpy(), rtol=1e-5, atol=1e-6)
