"""Fills the templates of every page, section and model card, which lie in ``templates/``.

A template has the markup and the words, its caller the data. Whatever a template shows is escaped; only ``Markup``,
which figures and rendered sections are, goes into a page as it is. A name that a template has and its caller did not
give is an error.
"""

import functools
import html
import re
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

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
    """Return a Markdown document; arguments as of ``render_html``."""
    environment = _environment().overlay(autoescape=False, finalize=_escape_unless_safe)
    return environment.get_template(f"{template}.md.j2").render(values)


@functools.cache
def _environment() -> "Environment":
    # Imported here: the processes of a run import modules that can render, and few of them ever do.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("dkan_core.report"),
        autoescape=True,
        # A name that is spelled otherwise in template and caller is an error, not an empty cell.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"count": "{:,}".format, "score": score, "text": _text}
    return environment


def _escape_unless_safe(value: Any) -> Any:
    return escape_markdown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def escape_markdown(text: str) -> str:
    r"""Return text that Markdown shows as it is: names of columns and labels come from whoever wrote the data.

    >>> print(escape_markdown("a_b <img> [x](http://y)\n# z"))
    a\_b &lt;img&gt; \[x\]\(http\://y\) \# z
    """
    # A line end could start a heading or a table of its own.
    line = "".join(character if character.isprintable() else " " for character in text)
    return re.sub(r"[\\`*_{}\[\]()#!|~:@]", r"\\\g<0>", html.escape(line, quote=False))


def score(value: float | None) -> str:
    """Write a metric with four places, or as many digits as a small one needs.

    >>> score(0.5), score(0.000123456), score(None)
    ('0.5000', '0.000123', '–')
    """
    if value is None:
        return "–"
    return f"{value:.3g}" if 0 < abs(value) < 0.001 else f"{value:.4f}"


def _text(value: Any) -> str:
    """Write a setting or a fact.

    >>> [_text(value) for value in (1200, "a<b", None, True, 1 / 3)]
    ['1,200', 'a<b', '–', 'yes', '0.333333']
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Integral):
        return f"{int(value):,}"
    if isinstance(value, Real):
        return f"{float(value):.6g}"
    return str(value)
