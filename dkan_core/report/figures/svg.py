"""A canvas as SVG: text stays text, and the page's style sheet sets the colors. The same marks give the same bytes."""

import re

from markupsafe import Markup, escape

from dkan_core.report.figures.canvas import (
    ACCENT,
    FONT_SIZE,
    GRID,
    MUTED,
    PAPER,
    QUIET,
    WARM,
    Area,
    Canvas,
    Dot,
    Hint,
    Line,
    Mark,
    Points,
    Text,
)

VARIABLES = {
    MUTED: "--muted",
    GRID: "--grid",
    ACCENT: "--accent",
    WARM: "--warm",
    QUIET: "--quiet",
    PAPER: "--card",
}
# From this width on, in points (two panels or more), a figure scrolls on a phone, where its letters would be too small.
WIDE = 500.0
FONTS = "'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif"


def to_svg(canvas: Canvas) -> str:
    """Return a figure as the text of an SVG file; its ground is transparent, so that a page shows through."""
    size = f'width="{_number(canvas.width)}pt" height="{_number(canvas.height)}pt"'
    view = f'viewBox="0 0 {_number(canvas.width)} {_number(canvas.height)}"'
    style = f'style="font-family:{FONTS};font-size:{FONT_SIZE}px"'
    body = "\n".join(map(_element, canvas.marks))
    kind = ' class="wide"' if canvas.width > WIDE else ""
    return f'<svg xmlns="http://www.w3.org/2000/svg"{kind} {size} {view} {style}>\n{body}\n</svg>\n'


def page_element(svg: str, title: str) -> Markup:
    """Return an SVG file as an element of a page, with the colors of the page and a title for screen readers."""
    for color, variable in VARIABLES.items():
        svg = svg.replace(color, f"var({variable})")
    return Markup('<svg role="img" aria-label="{}" ').format(title) + Markup(svg.strip().removeprefix("<svg "))


def _element(mark: Mark) -> str:
    if isinstance(mark, Text):
        return _text(mark)
    if isinstance(mark, Hint):
        return _hint(mark)
    if isinstance(mark, Dot):
        rim = f";stroke:{PAPER};stroke-width:{_number(mark.rim)}" if mark.rim else ""
        position = f'cx="{_number(mark.x)}" cy="{_number(mark.y)}" r="{_number(mark.radius)}"'
        return f'<circle {position} style="fill:{mark.color}{rim}"/>'
    if isinstance(mark, Area):
        crisp = ' shape-rendering="crispEdges"' if mark.crisp else ""
        return f'<path d="{_path(mark.points_P2)}z" style="fill:{mark.color}{_opacity("fill", mark)}"{crisp}/>'
    style = f"fill:none;stroke:{mark.color};stroke-width:{_number(mark.width)}{_opacity('stroke', mark)}"
    dash = f";stroke-dasharray:{mark.dash[0]:g},{mark.dash[1]:g}" if mark.dash else ""
    return f'<path d="{_path(mark.points_P2)}" style="{style}{dash};stroke-linecap:round"/>'


def _hint(mark: Hint) -> str:
    position = f'x="{_number(mark.left)}" y="{_number(mark.top)}"'
    size = f'width="{_number(mark.right - mark.left)}" height="{_number(mark.bottom - mark.top)}"'
    text = "\n".join(map(_plain, mark.text.split("\n")))
    return f'<rect class="hint" {position} {size} fill="transparent"><title>{text}</title></rect>'


def _plain(text: str) -> Markup:
    # XML allows no control characters, not even escaped.
    return escape(re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", " ", text))


def _text(mark: Text) -> str:
    anchor = f";text-anchor:{mark.anchor}" if mark.anchor != "start" else ""
    size = f";font-size:{mark.size:g}px" if mark.size != FONT_SIZE else ""
    x, y = _number(mark.x), _number(mark.y)
    turn = f' transform="rotate({_number(-mark.angle)} {x} {y})"' if mark.angle else ""
    style = f"fill:{MUTED}{anchor}{size}"
    return f'<text x="{x}" y="{_number(mark.baseline)}" style="{style}"{turn}>{_plain(mark.text)}</text>'


def _opacity(which: str, mark: Line | Area) -> str:
    return f";{which}-opacity:{mark.opacity:.3g}" if mark.opacity < 1 else ""


def _path(points_P2: Points) -> str:
    return "M" + "L".join(f"{_number(x)},{_number(y)}" for x, y in points_P2.tolist())


def _number(value: float) -> str:
    """Write a length, to a hundredth of a point.

    >>> _number(1.0), _number(-0.001), _number(12.346)
    ('1', '0', '12.35')
    """
    return f"{round(value, 2) + 0.0:.10g}"
