"""The frame of every HTML page: one file that needs no network and no script, and the pieces that pages share."""

import html
from collections.abc import Sequence
from importlib import resources
from string import Template


def render_page(*, title: str, lead: str, body: str) -> str:
    """Return a whole page; ``body`` is HTML, title and lead are text."""
    return Template(_packaged("report.html")).substitute(
        title=html.escape(title), lead=html.escape(lead), style=_packaged("report.css"), body=body
    )


def _packaged(name: str) -> str:
    return resources.files("dkan_core").joinpath(name).read_text(encoding="utf-8")


def note(text: str, shown: bool = True) -> str:
    """Return a paragraph of explanation."""
    return f'<p class="note">{html.escape(text)}</p>' if shown else ""


def cards(items: Sequence[tuple[str, str, str]], kind: str = "figures") -> str:
    """Return cards side by side, each of (heading, explanation, figure), all HTML."""
    parts = [
        f'<figure class="card"><figcaption><h3>{name}</h3><span>{explanation}</span></figcaption>{figure}</figure>'
        for name, explanation, figure in items
    ]
    return f'<div class="{kind}">{"".join(parts)}</div>'


def table(heads: Sequence[str], rows: Sequence[str]) -> str:
    """Return a table; heads and rows are HTML."""
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def tiles(items: Sequence[tuple[str, str, str]]) -> str:
    """Return a row of large numbers, each of (name, value, what stands beside it); the first one stands out."""
    cells = [
        f'<div class="tile{" first" if place == 0 else ""}"><div class="name">{name}</div>'
        f'<div class="value">{value}</div><div class="beside">{beside}</div></div>'
        for place, (name, value, beside) in enumerate(items)
    ]
    return f'<div class="tiles">{"".join(cells)}</div>'
