"""The loss of a batch: the mean over measured labels, with weights for rows, positives and labels."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dkan_core.config import TrainConfig
from dkan_core.training.compute.loss import masked_loss, total_weight


def loss_of(logits: Tensor, labels: Tensor, weight: Tensor | None = None, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch and its weight."""
    rows, config = {"labels": labels} | ({} if weight is None else {"weight": weight}), TrainConfig(**settings)
    total = total_weight(rows, config)
    return masked_loss(logits, rows, config, total), total


def test_loss_is_the_mean_over_measured_labels() -> None:
    logits = torch.randn(2, 50, 3)
    labels = torch.randint(0, 2, (50, 3), dtype=torch.uint8)
    labels[torch.rand(50, 3) < 0.3] = 255
    measured = labels != 255
    loss, weight = loss_of(logits, labels)
    expected = F.binary_cross_entropy_with_logits(logits[:, measured], labels[measured].float().expand(2, -1))
    torch.testing.assert_close(loss, expected)
    assert weight == measured.sum()


def test_row_of_weight_two_counts_as_two_rows() -> None:
    logits, labels = torch.randn(1, 4, 1), torch.tensor([[0], [1], [1], [0]], dtype=torch.uint8)
    weighted, total = loss_of(logits, labels, torch.tensor([1.0, 2.0, 0.0, 1.0]))
    repeated, _ = loss_of(logits[:, [0, 1, 1, 3]], labels[[0, 1, 1, 3]])
    torch.testing.assert_close(weighted, repeated)
    assert total == 4


def test_positives_of_weight_three_count_as_three_rows() -> None:
    logits, labels = torch.randn(1, 4, 1), torch.tensor([[0], [1], [1], [0]], dtype=torch.uint8)
    weighted, _ = loss_of(logits, labels, pos_weight=3.0)
    repeated, _ = loss_of(logits[:, [0, 1, 1, 1, 2, 2, 2, 3]], labels[[0, 1, 1, 1, 2, 2, 2, 3]])
    torch.testing.assert_close(weighted * 4, repeated * 8)


def test_a_label_of_weight_zero_is_left_out() -> None:
    logits, labels = torch.randn(2, 6, 3), torch.randint(0, 2, (6, 3), dtype=torch.uint8)
    weighted, total = loss_of(logits, labels, label_weights=(2.0, 0.0, 2.0))
    rest, _ = loss_of(logits[..., [0, 2]], labels[:, [0, 2]])
    torch.testing.assert_close(weighted, rest)
    assert total == 24


def test_nothing_measured_gives_no_loss_and_no_nan() -> None:
    logits = torch.randn(1, 4, 2, requires_grad=True)
    loss, weight = loss_of(logits, torch.full((4, 2), 255, dtype=torch.uint8))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss == 0 and weight == 0 and not gradient.any()
