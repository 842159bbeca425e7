"""A row's log-odds as a waterfall: from the baseline, one step for each of the strongest columns, to the sum."""

from collections.abc import Sequence

from dkan_core.explanation.figures.drawing import BAR_HEIGHT, BAR_SHARE, WIDE, Drawing, levels_axis, paint_bar, short
from dkan_core.explanation.reasons import Reason
from dkan_core.report.figures.axes import Panel, even_axis, fit
from dkan_core.report.figures.canvas import ACCENT, DASHED, MUTED, QUIET, SMALL_SIZE, WARM, Canvas
from dkan_core.utils.messages import counted

# Characters beside the axis; values are shortened before names of columns are.
TEXT_LENGTH = 44
# Room for the number behind the longest bar.
NUMBER_ROOM = 48.0


def draw_waterfall(reasons: Sequence[Reason], baseline: float, top: int, part: str = "column") -> Drawing:
    """Draw how a row's log-odds come about.

    Args:
        reasons: Of all columns, the strongest first.
        baseline: What they start from.
        top: How many have a step of their own; the others share the last one.
        part: What each of them is: a column, or a term.
    """
    steps = [(short(reason.text, TEXT_LENGTH), reason.log_odds) for reason in reasons[:top]]
    texts = [reason.text for reason in reasons[:top]]
    if reasons[top:]:
        name = counted(len(reasons) - top, f"other {part}")
        steps.append((name, sum(reason.log_odds for reason in reasons[top:])))
        texts.append(name)
    sums = [baseline]
    for _, change in steps:
        sums.append(sums[-1] + change)
    names = ["baseline", *(name for name, _ in steps), "log-odds of the row"]
    canvas = Canvas(WIDE, BAR_HEIGHT * len(names) + 54)
    y = levels_axis(names)
    panel = fit(canvas, even_axis(min(sums), max(sums), "Log-odds", share=0.08), y, right=NUMBER_ROOM)
    canvas.line(panel.at([baseline, baseline], [y.low, y.high]), QUIET, width=1.2, dash=DASHED)
    _paint_sum(panel, 0, baseline)
    for position, (_, change) in enumerate(steps, 1):
        _paint_step(panel, position, sums[position - 1], change)
        above, below = panel.down([position - 0.5, position + 0.5]).tolist()
        said = f"{texts[position - 1]}\n{change:+.3f}: from {sums[position - 1]:.3f} to {sums[position]:.3f}"
        canvas.hint(0.0, above, canvas.width, below, said)
    _paint_sum(panel, len(names) - 1, sums[-1])
    return Drawing(canvas)


def _paint_step(panel: Panel, position: int, start: float, change: float) -> None:
    stop, half = start + change, BAR_SHARE / 2
    paint_bar(panel, position, stop, WARM if change > 0 else ACCENT, BAR_SHARE, start=start)
    # A line to the start of the next step.
    panel.canvas.line(panel.at([stop, stop], [position + half, position + 1 - half]), MUTED, width=0.8)
    _write(panel, position, max(start, stop), f"{change:+.3f}")


def _paint_sum(panel: Panel, position: int, value: float) -> None:
    panel.dot(value, position, MUTED, radius=3.5)
    _write(panel, position, value, f"{value:.3f}")


def _write(panel: Panel, position: int, value: float, number: str) -> None:
    ((x, y),) = panel.at([value], [position])
    panel.canvas.text(float(x) + 7, float(y), number.replace("-", "−"), size=SMALL_SIZE, anchor="start")
