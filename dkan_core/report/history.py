"""The report's section on how training went: curves, speed, and where the time went."""

from collections.abc import Mapping, Sequence
from typing import Any

from dkan_core.report.figures import evaluation as figures
from dkan_core.report.templating import Card
from dkan_core.training import breakdown
from dkan_core.utils.messages import counted

History = Sequence[Mapping[str, Any]]

# The two losses, whose difference their figure is meant to show.
LOSSES = {"validation": "validation_loss", "training": "loss"}


def training_section(history: History) -> dict[str, Any]:
    """Return the page's values for a run.

    Args:
        history: One entry per evaluation, as in ``history.jsonl``, at least one; keys may be missing.
    """
    axis = next((key for key in ("epoch", "step") if all(key in entry for entry in history)), None)
    spent = breakdown.total(history)
    parts = [part for part in breakdown.PARTS if any(part in each for each in spent.values())]
    return {
        "pace": _pace(history),
        "curves": [card for card in (_precision_card(history, axis), _loss_card(history, axis)) if card is not None],
        "parts": parts,
        "meaning": breakdown.MEANING,
        "times": [(name, _times(each, parts)) for name, each in spent.items()],
    }


def _precision_card(history: History, axis: str | None) -> Card | None:
    name = "Validation average precision"
    # An evaluation of labels with only one class has no average precision.
    measured = [entry for entry in history if entry.get("average_precision") is not None]
    if not measured:
        return None
    y = [entry["average_precision"] for entry in measured]
    x = _positions(measured, axis)
    figure = figures.history_figure(name, x, {name.lower(): y}, xlabel=_word(axis), mark_best=True)
    return name, f"Evaluated on a snapshot while training went on. The dot is the best, {max(y):.4f}.", figure


def _loss_card(history: History, axis: str | None) -> Card | None:
    curves = {name: [entry.get(key) for entry in history] for name, key in LOSSES.items()}
    curves = {name: values for name, values in curves.items() if any(value is not None for value in values)}
    if not curves:
        return None
    name = "Loss" if len(curves) > 1 else f"{next(iter(curves)).capitalize()} loss"
    about = "Training: the mean since the last evaluation, with dropout and of each ensemble member by itself."
    if "validation" in curves:
        about = f"Mean binary cross-entropy. {about} Where validation rises and training falls, the model overfits."
    figure = figures.history_figure(name, _positions(history, axis), curves, xlabel=_word(axis), mark_best=False)
    return name, about, figure


def _positions(history: History, axis: str | None) -> list[float]:
    return [entry[axis] if axis else number for number, entry in enumerate(history, 1)]


def _word(axis: str | None) -> str:
    return (axis or "evaluation").capitalize()


def _times(spent: Mapping[str, Any], parts: Sequence[breakdown.Part]) -> list[str]:
    """Return the lines about a process's time by part, and its memory."""
    shares = [f"{breakdown.share(spent, part):.1%}" if part in spent else "" for part in parts]
    return [*shares, f"{spent.get('seconds', 0.0):,.1f}", f"{spent['peak_memory'] / 1e6:,.0f} MB"]


def _pace(history: History) -> str:
    last = history[-1]
    parts = [counted(len(history), "evaluation")]
    if last.get("seconds") is not None:
        parts.append(counted(round(last["seconds"]), "second"))
    if last.get("rows_per_second") is not None:
        parts.append(f"{last['rows_per_second']:,.0f} rows per second at the end")
    return ", ".join(parts) + "."
