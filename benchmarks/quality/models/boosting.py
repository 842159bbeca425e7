"""Gradient-boosted trees with their libraries' defaults: up to 1,000 rounds, stopped on validation AP.

Several labels are one model each, over the rows where the label was measured.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.quality.data import Encoder
from benchmarks.quality.models import Array, Fitted, Job
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.evaluation.metrics import average_precision

ROUNDS, PATIENCE = 1000, 50

Frame = Any
"""A pandas frame, or the matrix itself where every column is a number."""
Rows = tuple[Frame, Array]
"""Features, and one label of them."""
Booster = tuple[Callable[[Frame], Array], int]
"""Probabilities of a frame, and the rounds kept."""


def fit_lightgbm(job: Job) -> Fitted:
    """Fit LightGBM; strings are pandas categories."""
    return _one_a_label(job, _lightgbm, _category_frame)


def fit_xgboost(job: Job) -> Fitted:
    """Fit XGBoost; strings are pandas categories."""
    return _one_a_label(job, _xgboost, _category_frame)


def fit_catboost(job: Job) -> Fitted:
    """Fit CatBoost; strings are its own categories, with its learning rate chosen from the data."""
    return _one_a_label(job, _catboost, string_frame)


def _one_a_label(
    job: Job,
    fit: Callable[[Rows, Rows, Job, Callable[[], bool]], Booster],
    frame_of: Callable[[Encoder, pa.Table], Frame],
) -> Fitted:
    train, valid = job.data.read("train"), job.data.read("valid")
    encoder = Encoder(job.data, train)
    x_train, x_valid = frame_of(encoder, train), frame_of(encoder, valid)
    y_train, y_valid = job.data.labels_NL(train), job.data.labels_NL(valid)
    boosters = []
    for label in range(len(job.data.labels)):
        over = job.budget.share(len(job.data.labels) - label)
        rows = (measured(x_train, y_train[:, label]), measured(x_valid, y_valid[:, label]))
        boosters.append(fit(*rows, job, over))

    def score() -> Array:
        frame = frame_of(encoder, job.data.read("test"))
        return np.stack([predict(frame) for predict, _ in boosters], axis=1)

    return Fitted(score=score, rounds=[rounds for _, rounds in boosters])


def measured(frame: Frame, labels_N: Array) -> Rows:
    """Return the rows where a label was measured, and the label."""
    kept = labels_N != NOT_MEASURED
    return (frame, labels_N) if kept.all() else (frame[kept], labels_N[kept])


def _category_frame(encoder: Encoder, table: pa.Table) -> Frame:
    if not encoder.data.categorical:
        return encoder.numeric_NF(table)  # a thousand columns of a frame are slow to hand over
    frame = pd.DataFrame(encoder.numeric_NF(table), columns=list(encoder.data.numeric))
    codes_NC = encoder.codes_NC(table)
    coded = {
        name: pd.Categorical.from_codes(codes_NC[:, index] - 1, categories=encoder.categories[index])
        for index, name in enumerate(encoder.data.categorical)
    }
    return pd.concat([frame, pd.DataFrame(coded, index=frame.index)], axis=1)


def string_frame(encoder: Encoder, table: pa.Table) -> Frame:
    """Return the features with categories as strings."""
    if not encoder.data.categorical:
        return encoder.numeric_NF(table)
    frame = pd.DataFrame(encoder.numeric_NF(table), columns=list(encoder.data.numeric))
    texts = {name: table[name].fill_null("").to_numpy() for name in encoder.data.categorical}
    return pd.concat([frame, pd.DataFrame(texts, index=frame.index)], axis=1)


def _lightgbm(train: Rows, valid: Rows, job: Job, over: Callable[[], bool]) -> Booster:
    import lightgbm as lgb

    history: dict[str, dict[str, list[float]]] = {}

    def stop(env: Any) -> None:
        if over():
            raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    stop.order = 40  # type: ignore[attr-defined] # after the round's score is recorded
    train_set = lgb.Dataset(*train)
    booster = lgb.train(
        {
            "objective": "binary",
            "metric": "average_precision",
            "num_threads": job.threads,
            "seed": job.seed,
            "verbosity": -1,
        },
        train_set,
        num_boost_round=ROUNDS,
        valid_sets=[lgb.Dataset(*valid, reference=train_set)],
        valid_names=["valid"],
        callbacks=[lgb.record_evaluation(history), lgb.early_stopping(PATIENCE, verbose=False), stop],
    )
    rounds = 1 + int(np.argmax(history["valid"]["average_precision"]))
    return partial(booster.predict, num_iteration=rounds, num_threads=job.threads), rounds


def _xgboost(train: Rows, valid: Rows, job: Job, over: Callable[[], bool]) -> Booster:
    import xgboost as xgb

    class Stop(xgb.callback.TrainingCallback):  # type: ignore[misc]
        """End the training when the CPU seconds are used."""

        def after_iteration(self, *_: Any) -> bool:
            return over()

    def matrix(frame: Frame, labels_N: Array | None = None) -> Any:
        return xgb.DMatrix(frame, label=labels_N, enable_categorical=True, nthread=job.threads)

    early = xgb.callback.EarlyStopping(rounds=PATIENCE, metric_name="ap", data_name="valid", maximize=True)
    booster = xgb.train(
        {
            "objective": "binary:logistic",
            "disable_default_eval_metric": 1,
            "nthread": job.threads,
            "seed": job.seed,
            "verbosity": 0,
        },
        matrix(*train),
        num_boost_round=ROUNDS,
        evals=[(matrix(*valid), "valid")],
        custom_metric=lambda scores_N, rows: ("ap", average_precision(rows.get_label(), scores_N)),
        callbacks=[early, Stop()],
        verbose_eval=False,
    )
    rounds = int(booster.best_iteration) + 1
    return lambda frame: np.asarray(booster.predict(matrix(frame), iteration_range=(0, rounds))), rounds


def _catboost(train: Rows, valid: Rows, job: Job, over: Callable[[], bool]) -> Booster:
    import catboost

    class Stop:
        """End the training when the CPU seconds are used."""

        def after_iteration(self, *_: Any) -> bool:
            return not over()

    class AveragePrecision:
        """CatBoost's own PRAUC interpolates: its first trees, which tie most rows, then look best on weak signals."""

        def is_max_optimal(self) -> bool:
            return True

        def evaluate(self, approxes: Any, target: Any, _weight: Any) -> tuple[float, float]:
            return average_precision(np.asarray(target) > 0, np.asarray(approxes[0])), 1.0

        def get_final_error(self, error: float, _weight: float) -> float:
            return error

    model = catboost.CatBoostClassifier(
        iterations=ROUNDS,
        loss_function="Logloss",
        eval_metric=AveragePrecision(),
        cat_features=list(job.data.categorical),
        thread_count=job.threads,
        random_seed=job.seed,
        allow_writing_files=False,
        logging_level="Silent",
    )
    pools = [catboost.Pool(*rows, cat_features=list(job.data.categorical)) for rows in (train, valid)]
    model.fit(pools[0], eval_set=pools[1], early_stopping_rounds=PATIENCE, use_best_model=True, callbacks=[Stop()])
    return lambda frame: model.predict_proba(frame, thread_count=job.threads)[:, 1], int(model.tree_count_)
