"""A trained model that is called with raw rows, as a script calls a network that it has trained itself.

Shape suffixes: N rows, F features, L labels.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.evaluation.drift.unseen import UnseenValues
from dkan_core.integrations.notebook.rows import read_features
from dkan_core.model.base import TabularModel
from dkan_core.scoring.probabilities import SCORING_ROWS, log_odds, to_probability
from dkan_core.utils.caller import warn_caller


class Predictor(nn.Module):
    """Encodes raw rows as in training, and scores them with the network that was trained.

    It takes what ``main`` takes: an array, a tensor or a frame of features; a pair of features and labels, whose labels
    are ignored; a DataLoader over either; or a list of these, whose rows follow each other. NaN is missing, as in
    training. A few thousand rows are encoded at a time, however many a loader has.

    It scores and does not train: there is no dropout, and no gradient reaches the rows. ``network`` takes encoded rows.

    Args:
        network: Trained network.
        preprocessor: Encoding of raw rows.
        feature_names: Name of each feature, in the order of the rows.
        named: Whether a frame's columns must have these names, in this order.
    """

    def __init__(
        self, network: TabularModel, preprocessor: Preprocessor, feature_names: Sequence[str], *, named: bool
    ) -> None:
        super().__init__()
        self.network = network
        self.preprocessor = preprocessor
        self.feature_names = tuple(feature_names)
        self.named = named

    @property
    def labels(self) -> tuple[str, ...]:
        """Name of each label."""
        return self.network.config.labels

    def forward(self, rows: object) -> Tensor:
        """Return log-odds, which ``torch.sigmoid`` turns into the probabilities of ``predict_proba``.

        Args:
            rows: Raw rows.

        Shape:
            - Output: ``(N, L)`` float32, also for one label; where ``rows`` is a tensor on its device, else on the CPU

        Raises:
            DataError: The features are not those of training: too few, too many, in another order, of another kind.
        """
        device = rows.device if isinstance(rows, Tensor) else torch.device("cpu")
        return self._log_odds(rows).to(device)

    def predict_proba(self, rows: object) -> npt.NDArray[np.float32]:
        """Return the probability that a label is 1.

        Args:
            rows: Raw rows.

        Shape:
            - Output: ``(N,)`` of one label, ``(N, L)`` of several

        Raises:
            DataError: The features are not those of training: too few, too many, in another order, of another kind.
        """
        probabilities_NL = to_probability(self._log_odds(rows).numpy())
        return probabilities_NL[:, 0] if len(self.labels) == 1 else probabilities_NL

    def _log_odds(self, rows: object) -> Tensor:
        """Return log-odds ``(N, L)`` on the CPU; warn of values that the model does not know."""
        # On each call, because train() of an enclosing module would switch dropout on again.
        self.network.eval()
        device = next(self.network.parameters()).device
        scored, unseen = [torch.zeros(0, len(self.labels))], UnseenValues(self.preprocessor)
        for table in read_features(rows, "rows", self.feature_names, named=self.named, rows=SCORING_ROWS):
            arrays = self.preprocessor.transform(table, "rows")
            unseen.count(arrays)
            scored.append(log_odds(self.network, arrays, device).cpu())
        for text in unseen.warnings():
            warn_caller(f"rows: {text}")
        return torch.cat(scored)
