"""Explainable Boosting Machines of InterpretML with the library's defaults: an additive model of boosted trees."""

import numpy as np

from benchmarks.quality.data import Encoder
from benchmarks.quality.models import Array, Fitted, Job
from benchmarks.quality.models.boosting import Frame, Rows, measured, string_frame


def fit_ebm(job: Job) -> Fitted:
    """Fit one model for each label; its bags stop early on rows of train, so valid is only joined to it."""
    from interpret.glassbox import ExplainableBoostingClassifier

    train, valid = job.data.read("train"), job.data.read("valid")
    encoder = Encoder(job.data, train)
    x_train, x_valid = string_frame(encoder, train), string_frame(encoder, valid)
    y_train, y_valid = job.data.labels_NL(train), job.data.labels_NL(valid)
    fitted = []
    for label in range(len(job.data.labels)):
        x_N, y_N = _joined(measured(x_train, y_train[:, label]), measured(x_valid, y_valid[:, label]))
        model = ExplainableBoostingClassifier(random_state=job.seed, n_jobs=job.threads)
        fitted.append(model.fit(x_N, y_N))

    def score() -> Array:
        frame = string_frame(encoder, job.data.read("test"))
        return np.stack([model.predict_proba(frame)[:, 1] for model in fitted], axis=1)

    return Fitted(score=score, rounds=[int(np.mean(model.best_iteration_)) for model in fitted])


def _joined(train: Rows, valid: Rows) -> Rows:
    import pandas as pd

    frames = [pd.DataFrame(frame) for frame in (train[0], valid[0])]
    joined: Frame = pd.concat(frames, ignore_index=True)
    return joined, np.concatenate([train[1], valid[1]])
