"""The ``dkan`` command in this process, and what every refusal of it looks like."""

import re
import sys

import pytest

from dkan_core import cli


def dkan(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["dkan", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def check(code: int, error: str, message: str) -> None:
    assert code == 2, error
    plain = " ".join(error.replace("│", " ").split())
    assert "Traceback" not in error
    assert re.search(message, plain), plain
