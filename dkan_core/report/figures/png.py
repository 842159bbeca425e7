"""A canvas as PNG, for slides: on a white ground, drawn at twice its size and then halved, which smooths its edges."""

import functools
import importlib.util
import io
import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING

from dkan_core.report.figures.canvas import MUTED, PAPER, POINTS_PER_INCH, Area, Canvas, Dot, Line, Points, Text

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

# 860 pixels for the usual width of 5.4 inches: sharp on half a slide.
DPI = 160
OVERSAMPLING = 2
SCALE = OVERSAMPLING * DPI / POINTS_PER_INCH
# PIL's anchors of a line of text; the second letter is the baseline.
ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


def to_png(canvas: Canvas) -> bytes:
    """Return a figure as the bytes of a PNG file."""
    # Imported here, because most processes that can render a figure, such as for the report, write no PNG files.
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (round(canvas.width * SCALE), round(canvas.height * SCALE)), "white")
    # In this mode, transparent colors are blended with the image below.
    pen = ImageDraw.Draw(image, "RGBA")
    for mark in canvas.marks:
        if isinstance(mark, Line):
            _line(pen, mark)
        elif isinstance(mark, Area) and mark.crisp:
            # The last row and column of pixels belong to the next rectangle.
            (left, top), (right, bottom) = (mark.points_P2.min(axis=0) * SCALE), (mark.points_P2.max(axis=0) * SCALE)
            corners = (round(left), round(top), max(round(left), round(right) - 1), max(round(top), round(bottom) - 1))
            pen.rectangle(corners, _color(mark.color, mark.opacity))
        elif isinstance(mark, Area):
            pen.polygon(_scaled(mark.points_P2), _color(mark.color, mark.opacity))
        elif isinstance(mark, Dot):
            _circle(pen, mark, mark.radius + mark.rim / 2, PAPER)
            _circle(pen, mark, mark.radius - mark.rim / 2, mark.color)
        elif isinstance(mark, Text):
            _text(image, pen, mark)
    target = io.BytesIO()
    # The default level 6 takes three times as long, for files a tenth smaller.
    image.reduce(OVERSAMPLING).save(target, format="png", dpi=(DPI, DPI), compress_level=3)
    return target.getvalue()


def _scaled(points_P2: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in (points_P2 * SCALE).tolist()]


def _color(color: str, opacity: float = 1.0) -> tuple[int, int, int, int]:
    red, green, blue = bytes.fromhex(color.removeprefix("#"))
    return red, green, blue, round(255 * opacity)


def _line(pen: "ImageDraw", mark: Line) -> None:
    points = _scaled(mark.points_P2)
    width, color = max(1, round(mark.width * SCALE)), _color(mark.color, mark.opacity)
    if mark.dash is None:
        pen.line(points, color, width, joint="curve")
        return
    # Dashed lines are straight ones: each dash is cut from one segment.
    on, period = mark.dash[0] * SCALE, sum(mark.dash) * SCALE
    for (x, y), (end_x, end_y) in itertools.pairwise(points):
        length = math.hypot(end_x - x, end_y - y)
        across, down = ((end_x - x) / length, (end_y - y) / length) if length else (0.0, 0.0)
        for period_index in range(math.ceil(length / period)):
            start, stop = period_index * period, min(period_index * period + on, length)
            pen.line([(x + start * across, y + start * down), (x + stop * across, y + stop * down)], color, width)


def _circle(pen: "ImageDraw", mark: Dot, radius: float, color: str) -> None:
    x, y, r = mark.x * SCALE, mark.y * SCALE, radius * SCALE
    pen.ellipse((x - r, y - r, x + r, y + r), _color(color))


def _text(image: "Image", pen: "ImageDraw", mark: Text) -> None:
    from PIL import Image, ImageDraw

    font, anchor = _font(mark.size), ANCHORS[mark.anchor]
    if not mark.angle:
        pen.text((mark.x * SCALE, mark.baseline * SCALE), mark.text, _color(MUTED), font, anchor)
        return
    # Turned about its position, in the middle of a square of its own.
    half = math.ceil(font.getlength(mark.text) + font.size)
    square = Image.new("L", (2 * half, 2 * half))
    ImageDraw.Draw(square).text((half, half + (mark.baseline - mark.y) * SCALE), mark.text, 255, font, anchor)
    turned = square.rotate(mark.angle, Image.Resampling.BILINEAR)
    # Most of the square is empty, but would take as long to blend.
    if (inked := turned.getbbox()) is not None:
        corner = (round(mark.x * SCALE) - half + inked[0], round(mark.y * SCALE) - half + inked[1])
        image.paste(_color(MUTED)[:3], corner, turned.crop(inked))


@functools.cache
def _font(size: float) -> "FreeTypeFont":
    from PIL import ImageFont

    # Finds matplotlib's fonts without importing it.
    spec = importlib.util.find_spec("matplotlib")
    assert spec is not None and spec.submodule_search_locations
    fonts = Path(spec.submodule_search_locations[0]) / "mpl-data/fonts/ttf"
    return ImageFont.truetype(str(fonts / "DejaVuSans.ttf"), size * SCALE)
