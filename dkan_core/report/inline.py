"""Pages inside other pages: what a notebook shows of a report."""

from html import escape

# Pixels of the frame: the first figures of a report are visible, and the notebook can still be scrolled past it.
HEIGHT = 640


def inline_page(html: str, title: str = "Report") -> str:
    """Return a frame that shows a page inside another one; screen readers say the title.

    >>> inline_page('<p title="x">')[-58:]
    'border:0" srcdoc="&lt;p title=&quot;x&quot;&gt;"></iframe>'
    """
    # Converted to str first, because ``escape`` leaves a Markup unchanged, and an attribute needs it escaped.
    page = escape(str(html))
    return f'<iframe title="{title}" style="width:100%;height:{HEIGHT}px;border:0" srcdoc="{page}"></iframe>'
