"""The models, behind one interface: a function that fits on train, stops on valid, and returns how to score test.

A model's library is imported only in the subprocess of a fit, so that one which is not installed spoils no other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from benchmarks.quality.data import DataSet
from benchmarks.timing import cpu_seconds

Array = npt.NDArray[Any]


class Budget:
    """The CPU seconds that this process and its finished children may use; ``None`` for no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.ran_out = False

    def left(self) -> float | None:
        """Return the CPU seconds left."""
        return None if self.seconds is None else max(0.0, self.seconds - cpu_seconds())

    def share(self, parts: int) -> Callable[[], bool]:
        """Return a check that is true, and remembered, once one of ``parts`` equal shares of what is left is used."""
        left = self.left()
        end = None if left is None else cpu_seconds() + left / parts

        def over() -> bool:
            if end is None or cpu_seconds() < end:
                return False
            self.ran_out = True
            return True

        return over


@dataclass(frozen=True, kw_only=True)
class Job:
    """One fit."""

    data: DataSet
    seed: int
    threads: int
    scratch: Path
    """A folder of the fit's own."""
    budget: Budget


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fitted model.

    Shape:
        - score(): ``(N, L)``, the probabilities of the test split, read from its Parquet file, in order
    """

    score: Callable[[], Array]
    rounds: list[int]
    """Rounds, epochs or iterations of what was kept: one per label, or one for all."""


@dataclass(frozen=True)
class Model:
    """Where a model is, and the modules it cannot do without."""

    module: str
    function: str
    needs: tuple[str, ...]


MODELS = {
    "dkan": Model("dkan", "fit_dkan", ("dkan_core", "torch")),
    "fastkan": Model("dkan", "fit_fastkan", ("dkan_core", "torch")),
    "catboost": Model("boosting", "fit_catboost", ("catboost", "pandas")),
    "lightgbm": Model("boosting", "fit_lightgbm", ("lightgbm", "pandas")),
    "xgboost": Model("boosting", "fit_xgboost", ("xgboost", "pandas")),
    "tabm": Model("tabm", "fit_tabm", ("tabm", "rtdl_num_embeddings", "torch", "sklearn")),
    "additive": Model("dkan", "fit_additive", ("dkan_core", "torch")),
    "dkan-refit": Model("dkan", "fit_dkan_twice", ("dkan_core", "torch")),
    "additive-refit": Model("dkan", "fit_additive_twice", ("dkan_core", "torch")),
    "ebm": Model("ebm", "fit_ebm", ("interpret", "pandas")),
    "ebm-train": Model("ebm", "fit_ebm_on_train", ("interpret", "pandas")),
    "logistic": Model("logistic", "fit_logistic", ("sklearn",)),
}
