"""A page of reasons: every row has its own, they add up to its score, and nothing of the data becomes markup."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import ExplainedRow, explain_rows, predict
from dkan_core.explanation import rows as rows_module
from dkan_core.explanation.figures.waterfall import draw_waterfall
from dkan_core.explanation.reasons import Reason
from dkan_core.report.figures.canvas import Area
from tests.command import check, dkan
from tests.explanation.known import HOSTILE
from tests.report.test_report import check_page

ROWS = 7


@pytest.fixture(scope="module")
def some(many: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a few raw rows, one without a value."""
    path = tmp_path_factory.mktemp("some") / "some.parquet"
    table = pq.read_table(many[0].parent / "rows.parquet", columns=[HOSTILE, "b", "c"]).slice(20, ROWS)
    missing = pa.array([None, *table["c"].to_pylist()[1:]], pa.float64())
    pq.write_table(table.set_column(2, "c", missing), path)
    return path


@pytest.fixture(scope="module")
def explained(
    many: tuple[Path, Path], some: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[ExplainedRow], str]:
    """Return the reasons for these rows, and the page."""
    out = tmp_path_factory.mktemp("why") / "out"
    found = explain_rows(many[0], some, out, label="often", top=2)
    assert [path.name for path in out.iterdir()] == ["rows.html"]
    return found, (out / "rows.html").read_text()


def test_reasons_and_baseline_add_up_to_the_probability_that_predict_gives(
    many: tuple[Path, Path], some: Path, explained: tuple[list[ExplainedRow], str], tmp_path: Path
) -> None:
    predict(many[0], some, tmp_path / "scores.parquet", reasons=3)
    scores = pq.read_table(tmp_path / "scores.parquet")
    found = explained[0]
    assert [row.number for row in found] == list(range(ROWS))
    probability = np.array([row.probability for row in found])
    assert probability.tolist() == scores["often_probability"].to_pylist()
    log_odds = np.array([row.log_odds for row in found])
    np.testing.assert_allclose(1 / (1 + np.exp(-log_odds)), probability, atol=1e-5)
    for row, expected in zip(found, scores["often_reasons"].to_pylist(), strict=True):
        assert [(reason.column, reason.value) for reason in row.reasons] == [
            (reason["column"], reason["value"]) for reason in expected
        ]
        np.testing.assert_allclose(
            [reason.log_odds for reason in row.reasons], [reason["log_odds"] for reason in expected], atol=1e-6
        )
    assert {reason.value for reason in found[0].reasons if reason.column == "c"} == {None}


def test_page_has_contents_and_a_section_with_words_for_each_row(explained: tuple[list[ExplainedRow], str]) -> None:
    found, page = explained
    figures = check_page(page)
    assert len(figures) == ROWS and "<script" not in page
    links = re.findall(r'href="#([\w-]+)"', page)
    ids = set(re.findall(r'id="([\w-]+)"', page))
    assert {f"row-{row.number}" for row in found} <= set(links) <= ids
    for row, figure in zip(found, figures, strict=True):
        spoken = re.findall(r'aria-label="([^"]*)"', figure)[0]
        assert f"Row {row.number}:" in spoken and f"log-odds of {row.log_odds:.3f}" in spoken
        assert f"{row.reasons[0].log_odds:+.3f}" in spoken and f"<td>{row.reasons[0].log_odds:+.4f}</td>" in page
        # Two columns have steps of their own, the third one is the rest.
        assert "1 other column" in figure
    assert "prefers-color-scheme: dark" in page and "var(--warm)" in page
    assert page.count("<td>–</td>") == 1


def test_steps_lead_from_the_baseline_to_the_row() -> None:
    reasons = [Reason(column=f"c{place}", value="1", log_odds=change) for place, change in enumerate((2.0, -3.0, 0.5))]
    for top, changes in ((1, [2.0, -2.5]), (2, [2.0, -3.0, 0.5]), (3, [2.0, -3.0, 0.5])):
        marks = draw_waterfall(reasons, -1.0, top).canvas.marks
        bars = [mark.points_P2[:, 0] for mark in marks if isinstance(mark, Area)]
        assert len(bars) == len(changes)
        for before, after in pairwise(bars):
            assert before[1] == pytest.approx(after[0])
        widths = [bar[1] - bar[0] for bar in bars]
        np.testing.assert_allclose(np.divide(widths, widths[0]), np.divide(changes, changes[0]))


def test_first_rows_are_shown_and_the_page_says_so(
    many: tuple[Path, Path], some: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "MAX_ROWS", 3)
    pq.write_table(pq.read_table(some).slice(0, 2), tmp_path / "a.parquet")
    pq.write_table(pq.read_table(some).slice(2), tmp_path / "b.parquet")
    found = explain_rows(many[0], tmp_path, tmp_path / "out")
    assert [row.number for row in found] == [0, 1, 2]
    assert f"The first 3 of {ROWS} rows" in (tmp_path / "out/rows.html").read_text()


def test_long_value_is_cut_where_it_is_shown() -> None:
    reason = Reason(column="notes", value="word " * 400, log_odds=1.0)
    row = ExplainedRow(number=0, probability=0.5, baseline=-1.0, reasons=[reason])
    page = rows_module._render([row], "often", 12, 1, "column")
    shown = re.sub(r'aria-label="[^"]*"|<title>[^<]*', "", page)
    assert shown.count("word word") > 2 and "word " * 30 not in shown


def test_command_replaces_its_page_and_nothing_else(
    many: tuple[Path, Path],
    some: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for top in (1, 2):
        words = ["explain", many[0], "--rows", some, "--top", top, "--label", "rare", "--out", tmp_path / "out"]
        assert dkan(*words, *["--overwrite"] * (top > 1), monkeypatch=monkeypatch) == 0
    page = (tmp_path / "out/rows.html").read_text()
    assert "Score explanations: rare" in page and "1 other column<" in page
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("mine")
    code = dkan(*words[:-1], tmp_path / "mine", monkeypatch=monkeypatch)
    check(code, capfd.readouterr().err, "which this command did not write")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rows", "{some}", "--label", "x"], "label must be one of rare, often, never, got 'x'"),
        (["--rows", "{some}", "--top", "0"], "top must be 1 or more, got 0"),
        (["--rows", "{folder}/none.parquet"], "none.parquet: no such file"),
        (["--rows", "{empty}"], "empty.parquet: has no rows to explain"),
        (["--rows", "{other}"], "other.parquet: .*'c'"),
        (["{data}", "--rows", "{some}"], "some.parquet is explained without prepared data; leave out"),
        ([], "DIR is missing"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    words: list[str],
    message: str,
    many: tuple[Path, Path],
    some: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    places: dict[str, Any] = {"some": some, "folder": tmp_path, "data": many[1]}
    for name, table in (("empty", pq.read_table(some).slice(0, 0)), ("other", pq.read_table(some).drop_columns("c"))):
        pq.write_table(table, tmp_path / f"{name}.parquet")
        places[name] = tmp_path / f"{name}.parquet"
    given = [word.format(**places) for word in words]
    code = dkan("explain", many[0], *given, "--out", tmp_path / "out", monkeypatch=monkeypatch)
    check(code, capfd.readouterr().err, message)
    assert not (tmp_path / "out").exists()
