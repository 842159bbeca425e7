"""A network blended with an additive model of the same rows: their log-odds are averaged, with a weight.

The two err differently: the additive model has the main effects and the strongest pairs by penalized likelihood, the
network whatever else there is. A weighted mean of models is stacking with one weight (Wolpert 1992,
doi:10.1016/S0893-6080(05)80023-1; Breiman 1996, doi:10.1007/BF00117832).

Shape suffixes: B rows, F numeric features, H the network's outputs of its first layer, L labels, Z = H + L, M members.
"""

from typing import Self

import torch
from torch import Tensor

from dkan_core.data.encoding.preprocessor import SCORE_LIMIT, STEPS
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_shape import SCORE_CODES, Blend
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.decoding import score_codes
from dkan_core.model.ensemble import mean_log_odds
from dkan_core.model.random_state import random_state
from dkan_core.model.tabular import TabularFastKAN


class BlendedFastKAN(TabularFastKAN):
    """A trained network and an additive model; it is not trained any more itself.

    The first layer's output is that of the network, followed by the sum of the additive model's terms.

    Shape:
        - Input: that of ``TabularFastKAN``
        - Output: calibrated log-odds ``(B, L)``
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        assert config.partner is not None, "a network by itself is a TabularFastKAN"
        self.additive = AdditiveFastKAN(config.partner)
        self.network_width = self.first_width
        self.first_width += self.additive.first_width

    @classmethod
    def of(cls, network: TabularFastKAN, additive: AdditiveFastKAN, blend: Blend) -> Self:
        """Return a blend of copies of two models, in eval mode, not calibrated.

        Args:
            network: The network.
            additive: The additive model, of one member and of the form "tables".
            blend: Its weight and its shape.
        """
        with random_state():
            model = cls(network.config.model_copy(update={"blended": blend}))
        model.load_state_dict({**model.state_dict(), **network.state_dict()})
        model.additive.load_state_dict(additive.state_dict())
        model.calibrate()
        return model.eval()

    @property
    def additive_weight(self) -> float:
        """The weight of the additive model's log-odds."""
        assert self.config.blended is not None
        return self.config.blended.weight

    def network_alone(self) -> TabularFastKAN:
        """Return a copy of the network without calibration, as the blend's does not apply to it."""
        with random_state():
            network = TabularFastKAN(self.config.model_copy(update={"blended": None}))
        state = self.state_dict()
        network.load_state_dict({name: state[name] for name in network.state_dict()})
        network.calibrate()
        return network.eval()

    def first_output(
        self,
        numeric: Tensor | None,
        categorical: Tensor | None,
        dropout_key_B: Tensor | None = None,
        sparse: Tensor | None = None,
    ) -> Tensor:
        """Return the network's first layer and the sum of the additive terms ``(B, Z)``."""
        network_BH = super().first_output(numeric, categorical, dropout_key_B, sparse)
        ids = None if self.additive.ids is None else sparse
        return torch.cat([network_BH, self.additive.first_output(numeric, categorical, sparse=ids)], dim=1)

    def mean_and_member_logits(self, first_BH: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-odds of the members' mean ``(B, L)`` and of each member ``(M, B, L)``, each blended."""
        network_BH, terms_BL = first_BH.tensor_split([self.network_width], dim=1)
        logits_MBL, additive_BL = super().logits_of(network_BH), terms_BL + self.additive.bias
        mean_BL = weighted_mean(mean_log_odds(logits_MBL), additive_BL, self.additive_weight)
        return mean_BL, weighted_mean(logits_MBL, additive_BL, self.additive_weight)

    def logits_of(self, first_BH: Tensor, dropout_key_B: Tensor | None = None) -> Tensor:
        """Return the log-odds ``(M, B, L)`` of each member's blend, given the first layer's output ``(B, Z)``."""
        assert dropout_key_B is None, "a blend is not trained"
        return self.mean_and_member_logits(first_BH)[1]

    @torch.no_grad()
    def term_slopes(self, numeric_BF: Tensor) -> Tensor:
        """Return how much the additive curves add to each label's log-odds by unit of each row's scores.

        A curve is a table: its slope at a code is that between the two neighbouring codes. Tables of two values have
        none, nor have the bins of pairs.

        Shape:
            - Output: ``(B, F, L)``
        """
        codes_BF = score_codes(numeric_BF).long()
        before_BF, after_BF = (codes_BF - 1).clamp(min=1), (codes_BF + 1).clamp(max=SCORE_CODES - 1)
        table_VL = self.additive_weight * self.calibration_scale * self.additive.mean_table()
        score_rows = self.additive.score_rows.flatten()
        firsts_F = torch.arange(0, len(score_rows), SCORE_CODES, device=score_rows.device)
        rises_BFL = table_VL[score_rows[after_BF + firsts_F]] - table_VL[score_rows[before_BF + firsts_F]]
        curved_F = torch.zeros(len(firsts_F), device=score_rows.device)
        curved_F[[term.features[0] for term in self.additive.layout.curved]] = 1
        units_BF = (after_BF - before_BF).clamp(min=1) * (2 * SCORE_LIMIT / STEPS)
        return rises_BFL * (curved_F / units_BF).unsqueeze(2)


def weighted_mean(network: Tensor, additive: Tensor, weight: float) -> Tensor:
    """Return the weighted mean of two models' log-odds.

    >>> weighted_mean(torch.tensor([1.0]), torch.tensor([-1.0]), 0.25).item()
    0.5
    """
    return (1 - weight) * network + weight * additive
