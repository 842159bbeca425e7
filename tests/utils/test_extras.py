"""Extras name what to install, and the Python that they need where it is not every one of dkan's."""

import re
import tomllib
from pathlib import Path

import pytest

from dkan_core import ConfigError, serve
from dkan_core.utils import extras

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_extras_that_need_an_older_python_are_those_of_the_project() -> None:
    found = {
        extra: tuple(map(int, limit.split(".")))
        for extra, requirements in PROJECT["optional-dependencies"].items()
        for limit in re.findall(r"; python_version < '([\d.]+)'", " ".join(requirements))
    }
    assert found == extras.BELOW


@pytest.mark.parametrize(
    ("below", "message"),
    [
        ((3, 99), r"kserve is not installed; in a checkout of dkan run: pip install '\.\[serve\]'"),
        (
            (3, 11),
            r"kserve is not installed: it needs Python below 3\.11, and this is Python 3\.\d+\.\d+.*; .*pip install .*",
        ),
    ],
)
def test_serve_says_what_it_needs_before_it_reads_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: tuple[int, int], message: str
) -> None:
    monkeypatch.setitem(extras.BELOW, "serve", below)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "kserve" else True)
    with pytest.raises(ConfigError, match=f"^{message}$"):
        serve(tmp_path / "none")
