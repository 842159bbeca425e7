"""``dkan demo`` prints what the README shows, and what it names is there."""

import re
from pathlib import Path
from urllib.parse import urlparse

from tests import warm

README = Path(__file__).parents[2] / "README.md"
NUMBER = re.compile(r"\d+(\.\d+)?")
# What follows from the numbers, and where the demo ran.
VARIES = re.compile(r"^(strongest columns|report|what it learned) .*$", re.MULTILINE)


def shape(text: str) -> str:
    """Return a text without its numbers, and the columns that were strongest."""
    return NUMBER.sub("#", VARIES.sub(r"\1", text)).strip()


def test_demo_prints_what_the_readme_shows_and_leaves_what_it_names(tmp_path: Path) -> None:
    done = warm.server().run(["demo"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "the lines of the demo are all that is said"
    shown = re.search(r"```text\n(1/4.*?)```", README.read_text(), re.DOTALL)
    assert shown is not None
    assert shape(done.stdout) == shape(shown[1])
    for address in re.findall(r"file://\S+", done.stdout):
        assert Path(urlparse(address).path).is_file()
    values = [
        float(value) for value in re.findall(r"^\s*(?:average|no|logistic) .*?(\d\.\d+)", done.stdout, re.MULTILINE)
    ]
    precision, base_rate, regression = values
    assert 0.35 < base_rate < 0.4 < 0.9 < min(precision, regression)
    again = warm.server().run(["demo"], tmp_path)
    assert again.returncode == 2 and "already holds an earlier result; pass --overwrite" in again.stderr
