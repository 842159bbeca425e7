"""Links of the pages lead somewhere, and every page is reached."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from docs.hooks import relinked
from tests.pages import FILES, PAGES, ROOT


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and mkdocs make them of its headings."""
    text = path.read_text()
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_headings(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            there = path.parent / name if name else path
            assert there.exists(), f"{path}: {target}"
            there = there / "README.md" if there.is_dir() else there
            assert not anchor or anchor in anchors(there.resolve()), f"{path}: {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_prose_fit_into_the_limit_of_the_code(path: Path) -> None:
    prose = re.sub(r"^ *```.*?^ *```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    # A word may stand across the end of the line.
    assert not [line for line in prose.splitlines() if " " in line[120:] and not line.lstrip().startswith("|")]


def test_tables_end_before_the_next_heading() -> None:
    assert not [path for path in FILES if re.search(r"\|\n#", path.read_text())]


def test_links_out_of_the_site_lead_into_the_repository() -> None:
    text = "[a](../../Dockerfile) [b](../../components/training/train_fastkan/README.md#use) [c](train.md)"
    shown = relinked(text, "docs/guides/data.md", page="guides/data.md", repository="https://host/blob/main")
    assert shown == (
        "[a](https://host/blob/main/Dockerfile) [b](../reference/components/train_fastkan.md#use) [c](train.md)"
    )
    assert relinked(text, "docs/guides/data.md", page="guides/data.md", repository=None).startswith("a [b](")


def test_every_page_is_in_the_navigation_and_in_the_list_of_pages() -> None:
    class Loader(yaml.SafeLoader):
        """Takes names of Python objects as text."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    shown, others = (re.findall(r"[\w/-]+\.md", str(settings[key])) for key in ("nav", "not_in_nav"))
    assert sorted([*shown, *others]) == PAGES
    listed = re.findall(r"\]\(([\w/-]+\.md)", (ROOT / "docs/index.md").read_text())
    assert {page for page in shown if not page.startswith("benchmarks/")} <= {"index.md", *listed}
