"""Explainable Boosting Machines of InterpretML with the library's defaults: an additive model of boosted trees."""

from collections.abc import Sequence

import numpy as np

from benchmarks.quality.data import Encoder
from benchmarks.quality.models import Array, Fitted, Job
from benchmarks.quality.models.boosting import Frame, Rows, measured, string_frame


def fit_ebm(job: Job) -> Fitted:
    """Fit one model for each label; its bags stop early on rows of train, so valid is only joined to it."""
    return _fit(job, ("train", "valid"))


def fit_ebm_on_train(job: Job) -> Fitted:
    """Do the same without valid, which other models do not fit either."""
    return _fit(job, ("train",))


def _fit(job: Job, splits: Sequence[str]) -> Fitted:
    from interpret.glassbox import ExplainableBoostingClassifier

    tables = [job.data.read(split) for split in splits]
    encoder = Encoder(job.data, tables[0])
    rows = [(string_frame(encoder, table), job.data.labels_NL(table)) for table in tables]
    fitted = []
    for label in range(len(job.data.labels)):
        x_N, y_N = _joined([measured(frame, labels_NL[:, label]) for frame, labels_NL in rows])
        model = ExplainableBoostingClassifier(random_state=job.seed, n_jobs=job.threads)
        fitted.append(model.fit(x_N, y_N))

    def score() -> Array:
        frame = string_frame(encoder, job.data.read("test"))
        return np.stack([model.predict_proba(frame)[:, 1] for model in fitted], axis=1)

    return Fitted(score=score, rounds=[int(np.mean(model.best_iteration_)) for model in fitted])


def _joined(parts: Sequence[Rows]) -> Rows:
    import pandas as pd

    joined: Frame = pd.concat([pd.DataFrame(frame) for frame, _ in parts], ignore_index=True)
    return joined, np.concatenate([labels_N for _, labels_N in parts])
