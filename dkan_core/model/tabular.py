"""The model that is trained: an input encoder for prepared rows, then one FastKAN or an ensemble of them.

Shape suffixes: B rows, M members, H the first layer's outputs over all members, L labels.
"""

import functools

import torch
from torch import Tensor

from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.model.encoder import InputEncoder
from dkan_core.model.ensemble import FastKANEnsemble, mean_log_odds
from dkan_core.model.fastkan import Basis, FastKAN, FastKANLayer
from dkan_core.model.sketch import Sketch


class TabularFastKAN(TabularModel):
    """Input encoder, networks and calibration.

    Shape:
        - Input: ``numeric`` (B, F), ``categorical`` (B, C) int32 and ``sparse`` (B, S) int32; None where there are no
          such features
        - Output: calibrated log-odds ``(B, L)`` of the members' mean probability
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.first_width = config.members * config.widths[0]
        self.encoder = InputEncoder(config, self.first_width)
        basis = Basis(num_centers=config.num_centers, grid_min=config.grid_min, grid_max=config.grid_max)
        sketch = Sketch(config.sketch_rank, config.sketch_seed) if config.sketch_rank else None
        self.network: FastKAN | FastKANEnsemble
        widths, norm, dropout = self.widths, config.input_norm, config.dropout
        if config.model == "fastkan":
            self.network = FastKAN(widths, input_norm=norm, dropout=dropout, sketch=sketch, **basis)
        else:
            self.network = FastKANEnsemble(
                config.members, widths, input_norm=norm, dropout=dropout, sketch=sketch, **basis
            )

    @property
    def widths(self) -> list[int]:
        return [self.encoder.width, *self.config.widths]

    @property
    def code_tables(self) -> dict[str, list[int]]:
        return {f"encoder.{name}": sizes for name, sizes in self.encoder.code_tables().items()}

    @property
    def codes_per_row(self) -> dict[str, list[float]]:
        return {"encoder.sparse.weight": [group.ones for group in self.config.sparse]}

    def member_logits(
        self,
        numeric: Tensor | None = None,
        categorical: Tensor | None = None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor:
        return self.logits_of(self.first_output(numeric, categorical, dropout_key_B, sparse), dropout_key_B)

    def first_output(
        self,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor:
        first = self.first_layer
        arguments = numeric, categorical, dropout_key_B, sparse
        first_BH = None if first is None else self.encoder.first_layer(first, *arguments)
        if first_BH is not None:
            return first_BH
        inputs, shifts = self.encoder(*arguments)
        # Without inputs, as with binary columns alone, the first layer's output is only the shifts.
        terms: list[Tensor] = shifts if first is None else [first(inputs), *shifts]
        return functools.reduce(torch.add, terms)

    @property
    def first_layer(self) -> FastKANLayer | None:
        """The layer that reads the inputs, for all members; None if there is none."""
        layer = self.network.layers[0]
        return layer if isinstance(layer, FastKANLayer) else None

    @property
    def first_layer_is_sum(self) -> bool:
        return self.first_layer is None or self.first_layer.layernorm is None

    def log_odds_of(self, first_BH: Tensor) -> Tensor:
        return self.calibrated(self.mean_and_member_logits(first_BH)[0])

    def mean_and_member_logits(self, first_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-odds of the members' mean ``(B, L)`` and of each member ``(M, B, L)``, before calibration."""
        logits_MBL = self.logits_of(first_BH)
        return mean_log_odds(logits_MBL), logits_MBL

    def logits_of(self, first_BH: Tensor, dropout_key_B: Tensor | None = None) -> Tensor:
        """Return each member's log-odds ``(M, B, L)``, before calibration, given the first layer's output."""
        logits = self.network.after_first(first_BH, dropout_key_B)
        return (logits.unsqueeze(0) if isinstance(self.network, FastKAN) else logits) + self.bias
