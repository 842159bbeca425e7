"""Fills the templates of every page, section and model card, which lie in ``templates/``.

A template has the markup and the words, and its caller gives the data. All values are escaped except ``Markup``
(figures and rendered sections), which goes into a page unchanged. A name that the template uses but the caller does
not give is an error.
"""

import base64
import functools
import hashlib
import html
import itertools
import math
import re
from importlib import resources
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from dkan_core.utils.messages import brief

if TYPE_CHECKING:
    from jinja2 import Environment

# Up to here, a float holds every whole number.
EXACT = 2.0**53
# The heading of a section, whose text is escaped already.
HEADING = re.compile(r"<h2>(.*?)</h2>")

Card = tuple[str, str, Markup]
"""Heading, explanation and figure."""


def render_html(template: str, **values: Any) -> Markup:
    """Return a page, or a section of one.

    Args:
        template: Name of a file in ``templates/``, without ``.html.j2``.
        values: What the template shows.
    """
    return Markup(_environment().get_template(f"{template}.html.j2").render(values))


def render_markdown(template: str, **values: Any) -> str:
    """Return a Markdown document; arguments as for ``render_html``."""
    return _markdown_environment().get_template(f"{template}.md.j2").render(values)


@functools.cache
def _environment() -> "Environment":
    # Imported here, because few of the processes that import this module render anything.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dkan_core.report"),
        autoescape=True,
        # A misspelled name is an error, not an empty cell.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"count": "{:,}".format, "score": score, "text": as_text}
    environment.filters |= {"headings": headings, "anchored": anchored, "hash_source": hash_source}
    environment.filters |= {"digits": digits_of, "brief": brief}
    return environment


@functools.cache
def _markdown_environment() -> "Environment":
    # Cached with its compiled templates: a run writes a model card at every evaluation that improves the model.
    return _environment().overlay(autoescape=False, finalize=_escape_unless_safe)


def inline_script(*names: str) -> Markup:
    """Return scripts of ``templates/`` as one inline script, which the page's policy allows by its hash."""
    folder = resources.files("dkan_core.report").joinpath("templates")
    text = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    # These would end the script early.
    assert "</" not in text and "<!--" not in text
    return Markup(text)


def hash_source(script: str) -> Markup:
    """Return the source by which a Content-Security-Policy allows an inline script (CSP Level 3, section 2.3.1).

    >>> hash_source("alert(1)")
    Markup("'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='")
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")


def digits_of(rows: int) -> int:
    """Return how many decimals of a share of so many rows are meaningful: one more than are certain, at most four.

    >>> [digits_of(rows) for rows in (0, 20, 94, 2_000, 60_000)]
    [2, 2, 3, 3, 4]
    """
    # The standard error of a share is at most half of 1 / sqrt(rows).
    return min(4, max(2, math.ceil(math.log10(2 * math.sqrt(max(1, rows)))) + 1))


def _escape_unless_safe(value: Any) -> Any:
    return escape_markdown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def headings(body: str) -> list[tuple[str, Markup]]:
    """Return number and text of each section of a page, for its contents.

    >>> headings("<h2>Labels</h2><p>...</p><h2>A &lt; B</h2>")
    [('section-1', Markup('Labels')), ('section-2', Markup('A &lt; B'))]
    """
    return [(f"section-{number}", Markup(text)) for number, text in enumerate(HEADING.findall(body), 1)]


def anchored(body: str) -> Markup:
    """Return a page whose sections can be linked to.

    >>> anchored("<h2>Labels</h2>")
    Markup('<h2 id="section-1">Labels</h2>')
    """
    numbers = itertools.count(1)
    return Markup(HEADING.sub(lambda found: f'<h2 id="section-{next(numbers)}">{found[1]}</h2>', body))


def escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows literally: names of columns and labels may contain anything.

    >>> print(escape_markdown("a_b <img> [x](http://y)\n# z"))
    a\_b &lt;img&gt; \[x\]\(http\://y\) \# z
    """
    # A line end could start a heading or a table of its own.
    line = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"[\\`*_{}\[\]()#!|~:@]", r"\\\g<0>", html.escape(line, quote=False))


def score(value: float | None, digits: int = 4) -> str:
    """Write a metric with so many decimals, or a small one with as many digits as it needs.

    >>> score(0.5), score(0.51234, 3), score(0.000123456), score(None)
    ('0.5000', '0.512', '0.000123', '–')
    """
    if value is None:
        return "–"
    return f"{value:.{digits - 1}g}" if 0 < abs(value) < 10.0 ** (1 - digits) else f"{value:.{digits}f}"


def as_text(value: Any) -> str:
    """Write a setting or a fact; a whole number in full, also as a float, which counts are in Kubeflow's metrics.

    >>> [as_text(value) for value in (1200, "a<b", None, True, 1 / 3, 1e8)]
    ['1,200', 'a<b', '–', 'yes', '0.333333', '100,000,000']
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        number = float(value)
        return f"{number:,.0f}" if number.is_integer() and abs(number) < EXACT else f"{number:.6g}"
    return str(value)
