"""Every module leaves the plural endings of its messages to ``counted``."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HELPER = ROOT / "dkan_core" / "utils" / "messages.py"
FOLDERS = ("dkan_core", "pipelines", "benchmarks", "examples")


def endings(source: str) -> list[int]:
    """Return the lines where a text has an ending, or a number with its noun, that depends on how many there are."""
    found = []
    if not re.search(r"""["'](s["']|1 )""", source):
        return []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue):
            wrong = [each for each in ast.walk(node) if isinstance(each, ast.Constant) and each.value == "s"]
        elif isinstance(node, ast.IfExp):
            branches = (node.body, node.orelse)
            wrong = [each for each in branches if isinstance(each, ast.Constant) and str(each.value).startswith("1 ")]
        else:
            wrong = []
        found += [each.lineno for each in wrong]
    return found


def test_plural_endings_are_left_to_the_helper() -> None:
    sources = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != HELPER]
    found = {f"{path.relative_to(ROOT)}:{line}" for path in sources for line in endings(path.read_text())}
    assert not found, "write counted(count, noun)"


@pytest.mark.parametrize(
    "source",
    [
        """f"{n} row{'s' if n > 1 else ''}" """,
        """f"{n} row{'s' * (n > 1)}" """,
        """f"{n} row{'s'[: n != 1]}" """,
        """ "1 row" if n == 1 else f"{n} rows" """,
    ],
)
def test_plural_ending_is_found_however_it_is_spelt(source: str) -> None:
    assert endings(source.strip()) == [1]
