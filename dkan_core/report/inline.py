"""Pages inside other pages: what a notebook shows of a report."""

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from dkan_core.utils.storage.files import write_atomic

# Pixels of the frame: the first figures of a report are visible, and the notebook can still be scrolled past it.
HEIGHT = 640


@dataclass(frozen=True)
class Page:
    """A self-contained HTML page."""

    html: str = field(repr=False)

    def _repr_html_(self) -> str:
        """Return a frame that shows the page; its styles stay apart from those of the notebook."""
        return inline_page(self.html)

    def save(self, path: str | Path) -> None:
        """Write the page to a file.

        Raises:
            OutputError: It cannot be written.
        """
        write_atomic(Path(path), self.html)


def inline_page(html: str, title: str = "Report") -> str:
    """Return a frame that shows a page inside another one; screen readers say the title.

    >>> inline_page('<p title="x">')[-58:]
    'border:0" srcdoc="&lt;p title=&quot;x&quot;&gt;"></iframe>'
    """
    # Converted to str first, because ``escape`` leaves a Markup unchanged, and an attribute needs it escaped.
    page = escape(str(html))
    return f'<iframe title="{title}" style="width:100%;height:{HEIGHT}px;border:0" srcdoc="{page}"></iframe>'
