"""What a release says of itself: one version and one repository wherever they stand, notes, and types."""

import re
import subprocess
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import dkan_core

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
TEXTS = [
    *(ROOT / name for name in ("Dockerfile", "Makefile", "pyproject.toml")),
    *chain.from_iterable(
        folder.glob(pattern)
        for pattern in ("*.md", "*.yml", "**/*.md", "**/*.yaml", "**/*.py")
        for folder in (ROOT / "components", ROOT / "deploy", ROOT / "docs", ROOT / "pipelines")
    ),
    *ROOT.glob("*.md"),
    *ROOT.glob("*.yml"),
]


def make(*words: str) -> str:
    return subprocess.run(["make", "--silent", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_version_is_the_same_wherever_it_stands() -> None:
    assert dkan_core.__version__ == VERSION == make("version").strip()
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    assert [package["version"] for package in locked if package["name"] == "dkan"] == [VERSION]


def test_images_that_are_named_are_of_this_version() -> None:
    named = {(path.name, tag) for path in TEXTS for tag in re.findall(r"\bdkan:(\d[\w.]*\d)", path.read_text())}
    assert {tag for _, tag in named} == {VERSION}, named


def test_changelog_has_the_version_and_its_notes() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[(.*?)\](.*)$", changelog, re.MULTILINE)
    (unreleased, _), (released, _) = headings[:2]
    assert unreleased == "Unreleased"
    assert released == VERSION or (VERSION.endswith(".dev0") and released not in VERSION)
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for _, date in headings[1:])
    notes = make("release-notes", f"VERSION={released}")
    assert notes.count("\n- ") > 5 and "\n## " not in notes


def test_one_repository_is_named() -> None:
    own = re.compile(rf"https://github\.com/[\w-]+/{PROJECT['name']}\b")
    named = {url for path in TEXTS for url in own.findall(path.read_text())}
    assert named == {PROJECT["urls"]["Repository"]}
    assert all(url.startswith("https://") for url in PROJECT["urls"].values())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_nothing_that_is_ignored_is_tracked() -> None:
    """An environment that is tracked, be it as a link, takes the place of the real one wherever it is checked out."""
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert not subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_no_output_is_tracked() -> None:
    """Models and prepared data in the checkout are added as easily as sources. The lock file is as large."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [path for name in listed.split("\0") if (path := ROOT / name).is_file()]
    large = [path for path in files if path.stat().st_size > 1 << 20 and path != ROOT / "uv.lock"]
    assert not [*large, *(path for path in files if path.suffix in (".safetensors", ".log"))]


def test_package_says_that_it_is_typed() -> None:
    assert (Path(dkan_core.__file__).parent / "py.typed").is_file()
