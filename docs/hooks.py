"""Hooks of mkdocs: the Python API in full, pages that lie outside of ``docs``, and links that lead out of it.

Nothing here imports mkdocs before it calls a hook, so that the tests can check the links without it.
"""

import posixpath
import re
import tomllib
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from docs.generate import filled, python_api
from pipelines.assets import asset_folders

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


@cache
def site_pages() -> dict[str, str]:
    """Return the path in the site of the README of each component and pipeline, by its path in the repository.

    >>> site_pages()["components/training/train_fastkan/README.md"]
    'reference/components/train_fastkan.md'
    """
    return {f"{each}/README.md": f"reference/{each.split('/')[0]}/{each.split('/')[-1]}.md" for each in asset_folders()}


def relinked(markdown: str, source: str, *, page: str, repository: str | None) -> str:
    """Return Markdown whose relative links lead where they lead in the repository.

    Args:
        markdown: Text with links relative to ``source``.
        source: Path in the repository of the file that the text stands in.
        page: Path of the page in the site.
        repository: Address under which the repository's files are shown; without one, a link to a file that is no page
            becomes its text.
    """
    pages = {f"docs/{path.relative_to(DOCS).as_posix()}": path.relative_to(DOCS).as_posix() for path in _docs_files()}
    pages |= site_pages()

    def relink(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        found = pages.get(wanted) or pages.get(f"{wanted}/README.md")
        if found:
            address = posixpath.relpath(found, posixpath.dirname(page) or ".")
        elif repository:
            address = f"{repository}/{wanted}"
        else:
            return label
        return f"{image}[{label}]({address}{'#' * bool(anchor)}{anchor})"

    texts = FENCE.split(markdown)
    return "".join(text if text.startswith("```") else LINK.sub(relink, text) for text in texts)


def _docs_files() -> list[Path]:
    return [path for path in DOCS.rglob("*") if path.suffix in {".md", ".png"}]


def repository_files() -> str | None:
    """Return the address under which the repository's files are shown, if the project names a repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = {name.lower(): each for name, each in project.get("urls", {}).items()}.get("repository")
    return f"{address.rstrip('/')}/blob/main" if address else None


def on_files(files: Any, config: Any) -> Any:
    """Add the READMEs of components and pipelines to the site (a hook of mkdocs)."""
    file = import_module("mkdocs.structure.files").File
    for source, page in site_pages().items():
        files.append(file.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Describe the public names in full, and let links lead where they do in the repository (a hook of mkdocs)."""
    path = page.file.src_uri
    sources = {page: source for source, page in site_pages().items()}
    source = sources.get(path, f"docs/{path}")
    markdown = filled(markdown, {"python-api": python_api})
    return relinked(markdown, source, page=path, repository=repository_files())
