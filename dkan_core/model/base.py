"""What every model has in common: prepared rows to the log-odds of labels, an intercept, and a calibration.

Shape suffixes: B rows, F numeric features, C coded features, M members, H outputs of the first layer, L labels.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt
import torch
from torch import Tensor, nn

from dkan_core.model.architecture import ModelConfig

INPUTS = ("numeric", "categorical", "sparse")
"""The arrays of prepared rows that a model reads, by the names of its arguments."""


class TabularModel(nn.Module):
    """Base of the models.

    Shape:
        - Input: ``numeric`` (B, F), ``categorical`` (B, C) int32 and ``sparse`` (B, S) int32; None where there are no
          such features
        - Output: calibrated log-odds ``(B, L)``
    """

    calibration_scale: Tensor
    calibration_shift: Tensor
    first_width: int
    """H: how many numbers ``first_output`` gives for a row."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        # One for all members: with the labels' prior in it, the first steps need not learn how rare positives are.
        self.bias = nn.Parameter(torch.zeros(len(config.labels)))
        self.register_buffer("calibration_scale", torch.ones(len(config.labels)))
        self.register_buffer("calibration_shift", torch.zeros(len(config.labels)))

    @property
    @abstractmethod
    def first_layer_is_sum(self) -> bool:
        """Whether the first layer's output is a sum of terms, each of one column or one group of columns."""

    @property
    @abstractmethod
    def widths(self) -> list[int]:
        """Inputs, hidden units and outputs of each member."""

    @property
    @abstractmethod
    def code_tables(self) -> Mapping[str, Sequence[int]]:
        """The parameters whose rows stand for codes, and the sizes of the features or groups they hold."""

    @property
    def codes_per_row(self) -> Mapping[str, Sequence[float]]:
        """By table of codes, how many codes of each column a row has on average, where that is not one."""
        return {}

    @abstractmethod
    def member_logits(
        self,
        numeric: Tensor | None = None,
        categorical: Tensor | None = None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor:
        """Return each member's log-odds ``(M, B, L)``, before calibration: what the loss looks at.

        Args:
            numeric: ``(B, F)``; None where there are no numeric features.
            categorical: ``(B, C)`` int32; None where there are no coded features.
            dropout_key_B: Decides in training mode what is dropped; without it torch's generator does.
            sparse: ``(B, S)`` int32; None where there are no sparse columns.
        """

    @abstractmethod
    def first_output(
        self,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor:
        """Return the first layer's output over all members ``(B, H)``; arguments as for ``member_logits``."""

    @abstractmethod
    def log_odds_of(self, first_BH: Tensor) -> Tensor:
        """Return the calibrated log-odds ``(B, L)``, given the first layer's output."""

    def for_scoring(self) -> Self:
        """Return a model that gives the same answers in less time, if there is one; later changes do not reach it."""
        return self

    def calibrated(self, log_odds: Tensor) -> Tensor:
        """Return log-odds ``(..., L)`` stretched and shifted as the calibration says."""
        return log_odds * self.calibration_scale + self.calibration_shift

    @torch.no_grad()
    def start_at(self, log_odds_L: Sequence[float]) -> None:
        """Let the untrained model start at about these log-odds, the labels' priors, for every row."""
        self.bias.copy_(torch.tensor(log_odds_L))

    def calibrate(self, scale_L: float | npt.NDArray[Any] = 1.0, shift_L: float | npt.NDArray[Any] = 0.0) -> None:
        """Stretch and shift the log-odds from now on; without arguments, undo an earlier calibration."""
        self.calibration_scale.copy_(torch.as_tensor(scale_L))
        self.calibration_shift.copy_(torch.as_tensor(shift_L))

    def forward(
        self, numeric: Tensor | None = None, categorical: Tensor | None = None, sparse: Tensor | None = None
    ) -> Tensor:
        return self.log_odds_of(self.first_output(numeric, categorical, None, sparse))
