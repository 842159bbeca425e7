"""One row per model: on a data set, and over all of them.

Shape suffixes: B resamples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.quality.runner import NOT_INSTALLED, OK, Cell
from benchmarks.quality.scores import interval

REFERENCE, CPU_REFERENCE = "dkan", "lightgbm"

Array = npt.NDArray[Any]
Row = dict[str, Any]


def set_rows(
    cells: Mapping[str, Sequence[Cell]], resampled: Mapping[str, Array], reference: str = REFERENCE
) -> list[Row]:
    """Summarize the seeds of each model on one data set.

    Args:
        cells: The cells of each model.
        resampled: AP on the resamples, ``(B,)``, of each model with a result.
        reference: Model that the others are compared with.
    """
    return [_set_row(model, runs, resampled, reference) for model, runs in cells.items()]


def _set_row(model: str, runs: Sequence[Cell], resampled: Mapping[str, Array], reference: str) -> Row:
    good = [cell for cell in runs if cell["status"] == OK]
    problems = [f"seed {cell['seed']}: {cell['reason']}" for cell in runs if cell["status"] != OK]
    if not good:
        return {"model": model, "status": runs[0]["status"], "problems": problems}
    aps = [cell["metrics"]["average_precision"] for cell in good]
    difference = None
    if model != reference and reference in resampled:
        difference_B = resampled[model] - resampled[reference]
        difference = {"interval": interval(difference_B)}
    metrics = ("average_precision", "roc_auc", "log_loss", "calibration_error")
    return {
        "model": model,
        "status": OK,
        "problems": problems,
        "seeds": len(good),
        **{name: _mean([cell["metrics"][name] for cell in good]) for name in metrics},
        "prevalence": good[0]["metrics"]["prevalence"],
        "spread": float(np.std(aps, ddof=1)) if len(aps) > 1 else None,
        "interval": interval(resampled[model]),
        "difference": difference,
        "cpu_seconds": _mean([cell["cpu_seconds"] for cell in good]),
        "rows_per_second": _mean([cell["rows_per_second"] for cell in good]),
        "rounds": _mean([_mean(cell["rounds"]) for cell in good]),
        "capped": any(cell["capped"] for cell in good),
    }


def add_differences(rows: Sequence[Row], reference: str = REFERENCE) -> None:
    """Put into each row's ``difference`` that of the mean AP to the reference's."""
    found = next((row for row in rows if row["model"] == reference and row["status"] == OK), None)
    for row in rows:
        if found is not None and row.get("difference") is not None:
            row["difference"]["value"] = row["average_precision"] - found["average_precision"]


def over_sets(tables: Sequence[Sequence[Row]]) -> list[Row]:
    """Summarize each model over the data sets; the best mean rank comes first.

    - ``rank``: mean over sets of the rank by AP, 1 the best; equal APs share the mean of their ranks.
    - ``normalised``: mean over sets of (AP - prevalence) / (best AP - prevalence), so 1 is the best model of a set
      and 0 the AP of a random order. A set on which no model beats the prevalence is left out.
    - ``wins``, ``ties``, ``losses``: sets on which the reference's AP is higher, not to be told apart, and lower, by
      the interval of the paired resamples of the test rows.
    - ``difference``: mean over sets of the AP minus the reference's, with its 95% over sets: 1.96 standard errors of
      that mean, which hold what differs from set to set and the luck of the rows.
    - ``cpu_ratio``: geometric mean over sets of the fit's CPU seconds to those of LightGBM.

    A model without a result on a set (it failed, or had to be killed) is last there, with 0; one that is not
    installed has no row.
    """
    models = [row["model"] for row in tables[0] if row["status"] != NOT_INSTALLED] if tables else []
    rows = [
        {
            "model": model,
            "sets": sum(_by_model(table)[model]["status"] == OK for table in tables),
            "rank": _mean([ranks(table)[model] for table in tables]),
            "normalised": _mean_defined(normalised(table).get(model) for table in tables),
            **against_reference([row for table in tables if (row := _by_model(table)[model]).get("difference")]),
            "cpu_ratio": _geometric_mean([ratio for table in tables if (ratio := _cpu_ratio(table, model))]),
        }
        for model in models
    ]
    return sorted(rows, key=lambda row: row["rank"])


def against_reference(rows: Sequence[Row]) -> Row:
    """Compare a model with the reference, given its rows on the sets where both have a result."""
    differences = [row["difference"]["value"] for row in rows]
    intervals = [row["difference"]["interval"] for row in rows]
    wins = sum(high < 0 for _, high in intervals)
    losses = sum(low > 0 for low, _ in intervals)
    error = float(np.std(differences, ddof=1)) / math.sqrt(len(rows)) if len(rows) > 1 else None
    return {
        "wins": wins,
        "ties": len(rows) - wins - losses,
        "losses": losses,
        "difference": _mean(differences) if rows else None,
        "difference_error": error,
    }


def ranks(table: Sequence[Row]) -> dict[str, float]:
    """Return each model's rank by AP, 1 the best; those without a result share the last ranks."""
    tried = [row for row in table if row["status"] != NOT_INSTALLED]
    aps = {row["model"]: row["average_precision"] if row["status"] == OK else -math.inf for row in tried}
    found = list(aps.values())
    return {model: sum(other > ap for other in found) + (found.count(ap) + 1) / 2 for model, ap in aps.items()}


def normalised(table: Sequence[Row]) -> dict[str, float]:
    """Return each model's AP on a scale from the prevalence, 0, to the set's best model, 1."""
    good = [row for row in table if row["status"] == OK]
    best = max((row["average_precision"] for row in good), default=0.0)
    floor = good[0]["prevalence"] if good else 0.0
    if best <= floor:
        return {}
    found = {row["model"]: (row["average_precision"] - floor) / (best - floor) for row in good}
    return {row["model"]: found.get(row["model"], 0.0) for row in table if row["status"] != NOT_INSTALLED}


def _cpu_ratio(table: Sequence[Row], model: str) -> float | None:
    row, reference = _by_model(table)[model], _by_model(table).get(CPU_REFERENCE, {"status": NOT_INSTALLED})
    if row["status"] != OK or reference["status"] != OK:
        return None
    return float(row["cpu_seconds"] / reference["cpu_seconds"])


def _by_model(table: Sequence[Row]) -> dict[str, Row]:
    return {row["model"]: row for row in table}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _mean_defined(values: Iterable[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return _mean(defined) if defined else None


def _geometric_mean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
