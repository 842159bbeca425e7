"""AdamW on flat buffers takes the steps that torch's takes."""

import numpy as np
import torch

from dkan_core.training.state.adamw import AdamState, FlatAdamW


def test_optimizer_equals_torch() -> None:
    rng = np.random.default_rng(0)
    start = rng.normal(size=100).astype(np.float32)
    decayed, plain = torch.tensor(start[:60], requires_grad=True), torch.tensor(start[60:], requires_grad=True)
    groups = [{"params": [decayed], "weight_decay": 0.1}, {"params": [plain], "weight_decay": 0.0}]
    theirs, ours = torch.optim.AdamW(groups, lr=0.0), FlatAdamW([(0, 60, 0.1)])
    state, updated = (AdamState.starting_at(start.copy()) for _ in range(2))
    for step in range(50):
        gradient = rng.normal(size=100).astype(np.float32)
        lr = 0.01 * (1 - step / 50)
        decayed.grad, plain.grad = torch.tensor(gradient[:60]), torch.tensor(gradient[60:])
        for group in theirs.param_groups:
            group["lr"] = lr
        theirs.step()
        assert ours.step(state, updated, gradient, lr=lr, count=step + 1)
        state, updated = updated, state
    np.testing.assert_allclose(state.values_P, torch.cat([decayed, plain]).detach().numpy(), rtol=1e-5, atol=1e-6)
