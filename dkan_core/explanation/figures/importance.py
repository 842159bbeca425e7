"""Importances as bars, in the order in which they are given."""

from collections.abc import Sequence

from dkan_core.explanation.figures.drawing import (
    BAR_HEIGHT,
    BAR_SHARE,
    WIDE,
    Drawing,
    levels_axis,
    paint_bar,
    short,
    zero_line,
)
from dkan_core.explanation.importance import Importance
from dkan_core.report.figures.axes import Axis, Box, Panel, even_axis, even_ticks, tick_texts
from dkan_core.report.figures.canvas import ACCENT, CARD_WIDTH, MUTED, WARM, Canvas

# The table below has all columns, and the rest of the page should not be pages away.
MAX_BARS = 40


def draw_importance(ranked: Sequence[Importance], *, wide: bool = False) -> Drawing:
    """Draw the effects as bars and, where it was measured, the loss of average precision as dots next to them.

    Args:
        ranked: The importances.
        wide: Whether the figure is as wide as the page also where no loss was measured.
    """
    measured = any(importance.precision_drop is not None for importance in ranked)
    canvas = Canvas(WIDE if measured or wide else CARD_WIDTH, BAR_HEIGHT * max(3, len(ranked)) + 54)
    names = levels_axis([short(importance.name) for importance in ranked])
    ends = [importance.effect + importance.effect_error for importance in ranked]
    high = 1.05 * max(ends) or 1.0
    effects = Axis(low=0.0, high=high, ticks=tick_texts(even_ticks(0.0, high, 5)), label="Effect, in log-odds")
    left, bottom = 2 + names.room_left, canvas.height - 2 - effects.room_below
    right = (left + canvas.width) / 2 - 12 if measured else canvas.width - 12
    panel = Panel(canvas, Box(left=left, top=8, right=right, bottom=bottom), effects, names)
    for position, importance in enumerate(ranked):
        paint_bar(panel, position, importance.effect, ACCENT, BAR_SHARE)
        error = importance.effect_error
        spread = [importance.effect - error, importance.effect + error]
        canvas.line(panel.at(spread, [position, position]), MUTED, width=1.2)
        top, bottom = panel.down([position - 0.5, position + 0.5]).tolist()
        canvas.hint(0.0, top, canvas.width, bottom, _described(importance))
    if measured:
        _draw_drops(canvas, Box(left=right + 24, top=8, right=canvas.width - 12, bottom=bottom), ranked)
    return Drawing(canvas)


def _described(importance: Importance) -> str:
    """Describe what a bar shows."""
    text = f"{importance.name}\neffect {importance.effect:.3f} ± {importance.effect_error:.3f}"
    if importance.precision_drop is not None:
        text += (
            f"\naverage precision lost {importance.precision_drop:.4f} ± {importance.precision_drop_error or 0.0:.4f}"
        )
    return text


def _draw_drops(canvas: Canvas, box: Box, ranked: Sequence[Importance]) -> None:
    drops = [
        (position, importance.precision_drop, importance.precision_drop_error or 0.0)
        for position, importance in enumerate(ranked)
        if importance.precision_drop is not None
    ]
    low, high = min(drop - error for _, drop, error in drops), max(drop + error for _, drop, error in drops)
    axis = even_axis(min(low, 0.0), max(high, 0.0), "Average precision lost when shuffled", most=5)
    panel = Panel(canvas, box, axis, levels_axis([""] * len(ranked)))
    zero_line(panel, vertical=True)
    for position, drop, error in drops:
        canvas.line(panel.at([drop - error, drop + error], [position, position]), WARM, width=1.6)
        panel.dot(drop, position, WARM)
