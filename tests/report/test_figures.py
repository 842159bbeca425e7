"""Canvas, axes and files of figures: whatever is drawn lies on the canvas, reads as XML, and shows on a PNG."""

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import dkan_core
from dkan_core.evaluation.metrics import Ranking
from dkan_core.explanation.curves import Curve, Point
from dkan_core.explanation.figures.curves import draw_curve
from dkan_core.explanation.figures.drawing import Drawing, scaled_axis
from dkan_core.explanation.figures.heatmaps import draw_map
from dkan_core.explanation.figures.importance import draw_importance
from dkan_core.explanation.figures.waterfall import draw_waterfall
from dkan_core.explanation.importance import Importance
from dkan_core.explanation.interactions import PairAxis, PairMap
from dkan_core.explanation.reasons import Reason
from dkan_core.explanation.scales import Scale
from dkan_core.report.figures.axes import Axis, even_ticks, fit, tick_texts
from dkan_core.report.figures.canvas import ACCENT, WARM, Area, Canvas, Dot, Hint, Line, Points, Text, text_width
from dkan_core.report.figures.evaluation import precision_recall_figure, roc_figure
from dkan_core.report.figures.png import DPI, to_png
from dkan_core.report.figures.svg import page_element, to_svg

LONG = "a <b> & \x00 column with a long name, " * 3


def importance(name: str, effect: float, drop: float | None) -> Importance:
    return Importance(
        name=name,
        kind="numeric",
        effect=effect,
        effect_error=effect / 10,
        effect_rows=9,
        precision_drop=drop,
        precision_drop_error=drop if drop is None else abs(drop) / 5,
    )


def point(role: str, value: float | None, mean: float, rows: int = 10) -> Point:
    return Point(role=role, name=LONG, value=value, mean=mean, low=mean - 0.3, high=mean + 0.2, rows=rows)  # type: ignore[arg-type]


def curve(shape: str, points: list[Point], scale: str = "linear") -> Curve:
    density = {} if shape == "levels" else {"edges": [1.0, 10.0, 100.0, 1000.0], "counts": [900.0, 3.0, 5.0]}
    return Curve(
        name=LONG,
        kind="numeric",
        shape=shape,  # type: ignore[arg-type]
        scale=scale,  # type: ignore[arg-type]
        scale_width=30.0,
        points=points,
        density=density,
        hidden_rows=0,
        effect_rows=9,
    )


def pair() -> PairMap:
    levels = PairAxis(name=LONG, names=[LONG, "b"], edges=[], scale="linear", scale_width=1.0)
    numbers = PairAxis(name="x", names=["1", "2"], edges=[1.0, 10.0, 100.0], scale="log", scale_width=1.0)
    return PairMap(first=numbers, second=levels, joint=[[1, -2], [3, 0]], own=[[0, 0], [0, 0]], rows=[[1, 0], [0, 2]])


LINE = [point("curve", value, value / 500) for value in (1.0, 10.0, 100.0, 1000.0)]
DRAWINGS = {
    "importance": lambda: draw_importance([importance(LONG, 2.0, 0.1), importance("b", 0.1, -0.01)]),
    "one column without any effect": lambda: draw_importance([importance("a", 0.0, 0.0)]),
    "not shuffled": lambda: draw_importance([importance("a", 0.3, None)]),
    "curve": lambda: draw_curve(curve("curve", LINE), LONG),
    "curve with missing and marks": lambda: draw_curve(
        curve("curve", [*LINE, point("mark", 50.0, 3.0), point("missing", None, -1.0)], "asinh"), "label"
    ),
    "logarithmic curve": lambda: draw_curve(curve("curve", LINE, "log"), "label"),
    "levels": lambda: draw_curve(curve("levels", [point("level", None, 1.0, 10**9), point("missing", None, 0.0)]), "l"),
    "map": lambda: draw_map(pair()),
    "waterfall": lambda: draw_waterfall(
        [Reason(column=LONG, value=change, log_odds=float(change)) for change in ("9", "-8", "0")], 20.0, 2
    ),
}


def points_of(mark: Line | Area | Dot | Hint) -> Points:
    if isinstance(mark, Dot):
        return np.array([[mark.x, mark.y]])
    if isinstance(mark, Hint):
        return np.array([[mark.left, mark.top], [mark.right, mark.bottom]])
    return mark.points_P2


@pytest.mark.parametrize("name", DRAWINGS)
def test_everything_drawn_lies_on_the_canvas_and_reads_as_xml(name: str) -> None:
    drawing: Drawing = DRAWINGS[name]()
    canvas = drawing.canvas
    for mark in canvas.marks:
        if isinstance(mark, Text):
            assert 0 <= mark.x <= canvas.width and 0 < mark.baseline < canvas.height, mark
            if not mark.angle:
                width = text_width(mark.text, mark.size)
                left = mark.x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[mark.anchor]
                assert left >= -1 and left + width <= canvas.width + 14, mark
        else:
            points = points_of(mark)
            assert np.isfinite(points).all()
            assert ((points >= -0.01) & (points <= [canvas.width + 0.01, canvas.height + 0.01])).all(), mark
    root = ElementTree.fromstring(drawing.svg)
    assert len(root) == len(canvas.marks)
    assert drawing.svg == DRAWINGS[name]().svg
    element = page_element(drawing.svg, LONG.replace("\x00", ""))
    assert ElementTree.fromstring(element).get("aria-label") and "#" not in element


@pytest.mark.parametrize(
    ("name", "color"), [("importance", ACCENT), ("curve with missing and marks", ACCENT), ("map", WARM)]
)
def test_png_shows_what_the_svg_does(name: str, color: str) -> None:
    drawing = DRAWINGS[name]()
    image = Image.open(io.BytesIO(drawing.png))
    points = (drawing.canvas.width, drawing.canvas.height)
    assert np.abs(np.array(image.size) - np.array(points) * DPI / 72).max() <= 1
    pixels = np.asarray(image).reshape(-1, 3)
    drawn = np.frombuffer(bytes.fromhex(color[1:]), np.uint8)
    assert (pixels == 255).all(axis=1).mean() > 0.4 and (pixels == drawn).all(axis=1).any()


def test_a_png_has_lines_dashes_and_turned_text_where_they_belong() -> None:
    canvas = Canvas(72, 72)
    canvas.line([(0, 18), (72, 18)], ACCENT, width=4)
    canvas.line([(0, 54), (72, 54)], ACCENT, width=4, dash=(9, 9))
    canvas.text(36, 36, "IIII", angle=90)
    pixels = np.asarray(Image.open(io.BytesIO(to_png(canvas))).convert("L"))
    assert pixels.shape == (DPI, DPI) and (pixels[40] < 200).all()
    assert 0.4 < (pixels[120] < 200).mean() < 0.6
    rows, columns = np.nonzero(pixels[50:110] < 200)
    assert np.ptp(rows) > np.ptp(columns) > 5


def test_ticks_are_round_and_within() -> None:
    generator = np.random.default_rng(0)
    for _ in range(300):
        low, high = np.sort(generator.normal(size=2) * 10.0 ** generator.integers(-6, 7)).tolist()
        ticks = even_ticks(low, high)
        steps = np.diff(ticks)
        assert (
            1 <= len(ticks) <= 7 and low - 1e-6 * (high - low) <= ticks[0] and ticks[-1] <= high + 1e-6 * (high - low)
        )
        assert np.allclose(steps, steps[:1], rtol=1e-6) and len({text for _, text in tick_texts(ticks)}) == len(ticks)
    assert even_ticks(2.0, 2.0) == [2.0] and even_ticks(0.0, 3.0, whole=True) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("scale", [Scale(), Scale("log"), Scale("asinh", 2.0)])
def test_an_axis_is_even_on_its_own_scale(scale: Scale) -> None:
    axis = scaled_axis(scale, [1.0, 1000.0], "x", room=0.0)
    assert axis.shares(np.array([1.0, 1000.0])) == pytest.approx([0, 1], abs=1e-9)
    middle = scale.inverse(scale.forward(np.array([1.0, 1000.0])).mean(keepdims=True))
    assert axis.shares(middle) == pytest.approx([0.5])


def test_a_panel_has_room_for_its_texts() -> None:
    ticks = [(0.0, "a long name of a level"), (1.0, "b")]
    panel = fit(Canvas(400, 200), Axis(low=0, high=1, label="x"), Axis(low=0, high=1, ticks=ticks, label="y"))
    assert panel.box.left > text_width(ticks[0][1])
    assert panel.at([0], [0]).tolist() == [[panel.box.left, panel.box.bottom]]
    assert ElementTree.fromstring(to_svg(panel.canvas)).get("viewBox") == "0 0 400 200"


def test_nothing_is_drawn_with_a_plotting_library() -> None:
    # Half a CPU second to import, and a fifth of one for each figure.
    sources = {path: path.read_text() for path in Path(dkan_core.__file__).parent.rglob("*.py")}
    assert not [path for path, source in sources.items() if re.search(r"(import|from) matplotlib", source)]
    assert not [path for path, source in sources.items() if re.search(r"^(import|from) PIL", source, re.MULTILINE)]


def test_long_lines_of_hints_are_cut() -> None:
    canvas = Canvas(100.0, 100.0)
    canvas.hint(0.0, 0.0, 9.0, 9.0, f"name = {'v' * 10_000}\neffect +1")
    svg = to_svg(canvas)
    assert len(svg) < 1000 and "name = vvv" in svg and "v…\neffect +1</title>" in svg


def test_operating_points_are_marked_on_their_grid_lines() -> None:
    # Above 0.65 are 2 of 4 positives and 3 of 5 negatives.
    ranking = Ranking(np.array([0.2, 0.6, 0.7, 0.9]), np.array([0.1, 0.5, 0.8, 0.85, 0.95]))
    columns = re.findall(r'<path d="M([\d.]+),8L', roc := str(roc_figure(ranking, 0.65)))
    rows = re.findall(r'<path d="M39\.93,([\d.]+)L376\.8,\1"', roc)
    assert f'<circle cx="{columns[3]}" cy="{(float(rows[2]) + float(rows[3])) / 2:.2f}"' in roc
    middle = f"{(float(columns[2]) + float(columns[3])) / 2:.2f}"
    assert f'<circle cx="{middle}" cy="{rows[2]}"' in str(precision_recall_figure(ranking, 0.65))
