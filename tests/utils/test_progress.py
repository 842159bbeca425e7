"""Progress in a log, where no terminal shows a bar."""

import io
import sys

import pytest
from rich.console import Console

from dkan_core.utils.progress import on_terminal, progress


def test_units_that_were_not_needed_are_counted_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with progress("reading", 1_000, "rows") as advance:
        advance(1)
        assert not caplog.messages
    assert caplog.messages == ["reading 1,000 of 1,000 rows"]


def test_work_that_failed_is_not_said_to_be_done(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with pytest.raises(ValueError, match="damaged"), progress("reading", 1_000, "rows"):
        raise ValueError("damaged")
    assert not caplog.messages


def test_bar_shows_a_label_with_brackets_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("dkan_core.utils.progress.console", Console(file=shown, force_terminal=True, width=100))
    monkeypatch.setattr("dkan_core.utils.progress.on_terminal", lambda: True)
    with progress("explaining [red]price[/usd]", 10, "steps") as advance:
        advance(1)
    assert "explaining [red]price[/usd]" in shown.getvalue()


def test_closed_standard_error_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (None, closed):
        monkeypatch.setattr(sys, "stderr", stream)
        assert not on_terminal()
