"""Several runs to the best of them."""

from components.training.choose_best_run.component import choose_best_run

__all__ = ["choose_best_run"]
