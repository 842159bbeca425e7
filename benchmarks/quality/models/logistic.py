"""Logistic regression on one-hot categories and standardised numbers: the linear baseline."""

from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks.quality.data import Encoder
from benchmarks.quality.models import Array, Fitted, Job
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.evaluation.metrics import average_precision

STRENGTHS = (0.01, 0.1, 1.0, 10.0)
MAX_ITERATIONS = 1000


def fit_logistic(job: Job) -> Fitted:
    """Fit a label at a time, with the C of ``STRENGTHS`` that has the best validation AP."""
    train, valid = job.data.read("train"), job.data.read("valid")
    features = _Features(Encoder(job.data, train))
    x_train, x_valid = features.fit(train), features.transform(valid)
    y_train, y_valid = job.data.labels_NL(train), job.data.labels_NL(valid)
    models = []
    for label in range(y_train.shape[1]):
        over = job.budget.share(y_train.shape[1] - label)
        best: Any = None
        best_ap = -1.0
        for strength in STRENGTHS:
            if best is not None and over():
                break
            measured = y_train[:, label] != NOT_MEASURED
            model = LogisticRegression(C=strength, max_iter=MAX_ITERATIONS, random_state=job.seed)
            model.fit(x_train[measured], y_train[measured, label])
            ap = average_precision(y_valid[:, label], model.predict_proba(x_valid)[:, 1])
            if ap > best_ap:
                best, best_ap = model, ap
        models.append(best)
    return Fitted(score=partial(_score, job, features, models), rounds=[int(model.n_iter_[0]) for model in models])


def _score(job: Job, features: "_Features", models: list[Any]) -> Array:
    x = features.transform(job.data.read("test"))
    return np.stack([model.predict_proba(x)[:, 1] for model in models], axis=1)


class _Features:
    """Numbers with the median where missing, a column that says so, and mean 0 and variance 1; one-hot categories."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.numeric: Pipeline = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
        self.one_hot = OneHotEncoder(handle_unknown="ignore", drop=None)

    def fit(self, train: Any) -> Any:
        if self.encoder.data.numeric:
            self.numeric.fit(self.encoder.numeric_NF(train))
        if self.encoder.data.categorical:
            self.one_hot.fit(self.encoder.codes_NC(train))
        return self.transform(train)

    def transform(self, table: Any) -> Any:
        if not self.encoder.data.categorical:
            return self.numeric.transform(self.encoder.numeric_NF(table))
        one_hot = self.one_hot.transform(self.encoder.codes_NC(table))
        if not self.encoder.data.numeric:
            return one_hot
        numeric = sparse.csr_matrix(self.numeric.transform(self.encoder.numeric_NF(table)))
        return sparse.hstack([numeric, one_hot], format="csr")
