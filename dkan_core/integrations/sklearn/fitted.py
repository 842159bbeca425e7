"""What the methods of a fitted classifier share: its attributes, and the log-odds of rows."""

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dkan_core.config import TrainConfig, build_config
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.evaluation.drift.unseen import unseen_warnings
from dkan_core.integrations.sklearn.parameters import thread_count
from dkan_core.integrations.sklearn.rows import check_sparsity, read_features
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.base import TabularModel
from dkan_core.scoring.probabilities import log_odds
from dkan_core.training.setup.placement import worker_devices
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.caller import warn_caller
from dkan_core.utils.torch_resources import best_device, torch_threads


class FittedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the mixins of ``FastKANClassifier``, whose parameters it has."""

    device: str | None
    n_jobs: int | None
    threshold: "float | Literal['best']"

    module_: TabularModel
    preprocessor_: Preprocessor
    metrics_: dict[str, Any]
    history_: list[dict[str, Any]]
    classes_: npt.NDArray[Any]
    n_features_in_: int
    feature_names_in_: npt.NDArray[Any]
    _columns_by_name: bool
    _feature_names: list[str]

    def _take_model(self, module: TabularModel, metrics: dict[str, Any]) -> None:
        self.module_, self.metrics_ = module, metrics
        self._feature_names = [*getattr(self, "feature_names_in_", [])]
        # Those of an earlier model.
        self.__dict__.pop("feature_importances_", None)

    def _take_history(self, history: list[dict[str, Any]]) -> None:
        self.history_ = history
        self.n_iter_ = math.ceil((history or [self.metrics_])[-1]["epoch"])
        self.validation_average_precision_ = float(self.metrics_["average_precision"])

    def _encode(self, table: pa.Table) -> Arrays:
        check_sparsity(table, self.preprocessor_)
        return self.preprocessor_.transform(table, "X")

    def _log_odds(self, X: Any) -> npt.NDArray[np.float32]:
        """Return the log-odds of each label, (N, L)."""
        check_is_fitted(self)
        arrays = self._encode(read_features(self, X, fitting=False))
        for text in unseen_warnings(self.preprocessor_, arrays):
            warn_caller(f"X: {text}")
        device = self._device
        with torch_threads(thread_count(self.n_jobs)):
            log_odds_NL: npt.NDArray[np.float32] = log_odds(self.module_.to(device), arrays, device).cpu().numpy()
        return log_odds_NL

    @property
    def architecture_(self) -> ModelConfig:
        """Architecture of the model."""
        return self.module_.config

    @property
    def _device(self) -> torch.device:
        if self.device in (None, "auto"):
            return best_device()
        # Checked anew: a model that was fitted on a GPU may be loaded where there is none.
        return torch.device(worker_devices(build_config(TrainConfig, {"device": self.device, "workers": 1}))[0])
