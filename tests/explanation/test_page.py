"""The page of an explanation in a browser: of many columns, some are found; all is there without a script."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dkan_core import explain
from dkan_core.explanation.curves import Curve, Point
from dkan_core.explanation.drawings import Drawings, LabelDrawings
from dkan_core.explanation.explanation import Explanation
from dkan_core.explanation.figures.curves import draw_curve
from dkan_core.explanation.figures.heatmaps import draw_map
from dkan_core.explanation.figures.importance import draw_importance
from dkan_core.explanation.importance import Importance
from dkan_core.explanation.interactions import Interaction, PairAxis, PairMap
from dkan_core.explanation.label_explanation import LabelExplanation
from dkan_core.explanation.page import render_explanation
from dkan_core.report.figures.canvas import ACCENT
from docs.chromium import PROGRAM, Chromium
from tests.report.test_in_chromium import SMALLEST, WIDER, WIDTHS
from tests.report.test_report import check_page

pytestmark = [pytest.mark.browser, pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")]

COLUMNS = 100
ROWS = "[...document.querySelectorAll('tr[data-name]')]"
CARDS = "[...document.querySelectorAll('figure[data-name]')]"
SEARCH = """((text) => { const field = document.querySelector('[data-columns] input');
  field.value = text; field.dispatchEvent(new Event('input')); })"""
SORT = """((key) => { const order = document.querySelector('[data-columns] select');
  order.value = key; order.dispatchEvent(new Event('change')); })"""

MAP = PairMap(
    first=PairAxis(
        name="hour",
        names=["3", "7"],
        edges=[1.0, 4.5, 9.0],
        scale="linear",
        scale_width=1.0,
        ranges=["1 to 4.5", "4.5 to 9"],
    ),
    second=PairAxis(name="kind", names=["a", "b"], edges=[], scale="linear", scale_width=1.0),
    joint=[[1.0, -2.0], [3.0, 0.5]],
    own=[[0.5, -0.5], [0.5, -0.5]],
    rows=[[3, 6], [1, 0]],
)


def make_curve(name: str, index: int) -> Curve:
    points = [
        Point(role="curve", name=str(x), value=float(x), mean=x / 20, low=x / 20 - 1, high=x / 20 + 1, rows=50 + index)
        for x in range(13)
    ]
    density = {"edges": [float(x) for x in range(14)], "counts": [50.0] * 13}
    return Curve(
        name=name,
        kind="numeric",
        shape="curve",
        scale="linear",
        scale_width=1.0,
        points=points,
        density=density,
        hidden_rows=0,
        effect_rows=500,
    )


def page_of(labels: Sequence[str], columns: int, prefix: str = "column") -> str:
    """Return the page of some labels and columns, each with its curve."""
    names = [f"{prefix} {index:04}" for index in range(columns)]
    importance = [
        Importance(
            name=name,
            kind="numeric",
            effect=1 / (1 + index),
            effect_error=0.01,
            effect_rows=9,
            # Half of them were shuffled, the weakest with the largest loss.
            precision_drop=index / columns if index % 2 else None,
            precision_drop_error=0.0 if index % 2 else None,
        )
        for index, name in enumerate(names)
    ]
    curves = [make_curve(name, index) for index, name in enumerate(names)]
    learned = {
        label: LabelExplanation(
            label=label,
            average_precision=0.5,
            importance=importance,
            curves=curves,
            interactions=[Interaction(first="hour", second="kind", strength=0.5, share=0.1)],
            maps=[MAP],
        )
        for label in labels
    }
    found = Explanation(split="valid", rows=2000, seed=0, average_precision=0.5, importance=importance, labels=learned)
    bars = draw_importance(importance[:12])
    drawn = [draw_curve(curve, "label") for curve in curves]
    drawings = {label: LabelDrawings(importance=bars, curves=drawn, maps=[draw_map(MAP)]) for label in labels}
    return render_explanation(found, Drawings(overview=bars if len(drawings) > 1 else None, labels=drawings))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of many columns."""
    path = tmp_path_factory.mktemp("page") / "explanation.html"
    path.write_text(page_of(["label"], COLUMNS), encoding="utf-8")
    return path


def test_columns_are_found_and_sorted_with_their_curves(browser: Chromium, page: Path) -> None:
    browser.open(page)
    assert browser.ask(f"[{ROWS}.length, {CARDS}.length]") == [COLUMNS, COLUMNS]
    browser.ask(f"{SEARCH}('COLUMN 009')")
    shown = "filter((each) => !each.hidden).map((each) => each.dataset.name)"
    wanted = [f"column {index:04}" for index in (9, *range(90, 100))]
    assert browser.ask(f"{ROWS}.{shown}") == browser.ask(f"{CARDS}.{shown}") == wanted
    assert browser.ask("document.querySelector('[data-columns] output').textContent") == "11 of 100 columns, 11 drawn"
    assert browser.ask(f"{ROWS}[95].closest('details').open") is True
    browser.ask(f"{SORT}('lost')")
    by_loss = [f"column {index:04}" for index in (99, 97, 95, 93, 91, 9, 90, 92, 94, 96, 98)]
    assert browser.ask(f"{ROWS}.{shown}") == browser.ask(f"{CARDS}.{shown}") == by_loss
    browser.ask(f"{SEARCH}('')")
    browser.ask(f"{SORT}('effect')")
    first = "slice(0, 2).map((each) => each.dataset.name)"
    assert browser.ask(f"{ROWS}.{first}") == browser.ask(f"{CARDS}.{first}") == ["column 0000", "column 0001"]


def test_many_columns_are_laid_out_as_they_come_near(browser: Chromium, page: Path) -> None:
    browser.open(page)
    assert page.stat().st_size < 30_000 * COLUMNS
    # The last card has no layout until somebody comes near it.
    seen = f"{CARDS}.at(-1).querySelector('svg').checkVisibility({{contentVisibilityAuto: true}})"
    assert browser.ask(seen) is False
    browser.ask(f"{CARDS}.at(-1).scrollIntoView()")
    while not browser.ask(seen):
        time.sleep(0.05)


def test_long_names_of_a_figure_are_whole_on_a_phone(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "explanation.html"
    path.write_text(page_of(["label"], columns=3, prefix="WWW with a rather long name"), encoding="utf-8")
    browser.open(path, width=min(WIDTHS))
    left = "each.getBoundingClientRect().left - each.closest('.card').getBoundingClientRect().left"
    assert browser.ask(f"Math.min(...[...document.querySelectorAll('svg.wide text')].map((each) => {left}))") >= 0


def test_all_is_there_without_a_script_and_in_words(browser: Chromium, page: Path) -> None:
    browser.open(page, script=False)
    text = page.read_text(encoding="utf-8")
    assert len(check_page(text)) == 2 + COLUMNS
    assert '<div class="finder" data-columns role="search" hidden>' in text
    # A hint over each point, and the same numbers in a table.
    hint = "<title>column 0000 = 12\neffect +0.600\n80% of rows -0.400 to +1.600\n50 rows (7.7%)</title>"
    assert hint in text and "<td>+0.600</td>" in text
    where, own = "hour = 3 (1 to 4.5)\nkind = b", "beyond the sum of the two -0.500"
    hint = f"<title>{where}\nboth together -2.000\n{own}\n6 rows (60%)</title>"
    assert hint in text and "\nno rows</title>" in text
    cells = "<td>b</td><td>-2.000</td><td>-0.500</td><td>6</td></tr>"
    assert cells in text and '<td class="name">3 (1 to 4.5)</td>' in text
    ends = "lowest -2.00 at 3 (1 to 4.5) and b, highest +3.00 at 7 (4.5 to 9) and a"
    assert f'"Effect of hour × kind: {ends}; beyond the sum of the two -0.50 to +0.50"' in text


def test_values_of_figures_are_told_by_keyboard(browser: Chromium, page: Path) -> None:
    browser.open(page)
    browser.ask("globalThis.map = [...document.querySelectorAll('figure.card svg')].at(-1)")
    browser.ask("map.focus()")
    press = "((key) => map.dispatchEvent(new KeyboardEvent('keydown', {key, cancelable: true})))"
    told = "map.parentNode.querySelector('output').textContent"
    chosen = "map.querySelectorAll('.chosen').length"
    found = []
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "ArrowLeft"):
        assert browser.ask(f"{press}('{key}')") is False, "the page does not scroll"
        assert browser.ask(chosen) == 1
        found.append(browser.ask(told).split(", both")[0])
    first, second = "hour = 3 (1 to 4.5)", "hour = 7 (4.5 to 9)"
    assert found == [f"{first}, kind = a", f"{first}, kind = b", f"{second}, kind = b", f"{second}, kind = a"]
    browser.ask("map.blur()")
    assert browser.ask(told) == "" and browser.ask(chosen) == 0


def test_labels_are_looked_at_one_by_one(browser: Chromium, many: tuple[Path, Path], tmp_path: Path) -> None:
    explain(*many, tmp_path / "out", top=3, rows=100)
    path = tmp_path / "out/explanation.html"
    panels = "[...document.querySelectorAll('.panel')].map((each) => each.getBoundingClientRect().height > 0)"
    for width in WIDTHS:
        for dark in (False, True):
            # The switch is no script.
            browser.open(path, width=width, dark=dark, script=dark)
            assert browser.ask(panels) == [True, False, False]
            browser.ask("document.getElementById('label-0').focus()")
            for index in (1, 2):
                browser.press("ArrowRight")
                assert browser.ask(panels) == [each == index for each in range(3)]
                assert browser.ask(WIDER) <= 0 and browser.ask(SMALLEST) > 8
            assert browser.complaints() == []


def test_search_and_order_are_those_of_a_label(browser: Chromium, tmp_path: Path) -> None:
    path = tmp_path / "explanation.html"
    path.write_text(page_of(("one", "two"), columns=9), encoding="utf-8")
    browser.open(path)
    shown = "[...document.querySelectorAll('.panel')].map((panel) => [...panel.querySelectorAll('tr[data-name]')]"
    names = f"{shown}.filter((each) => !each.hidden).map((each) => each.dataset.name))"
    every = [f"column {index:04}" for index in range(9)]
    assert browser.ask(names) == [every, every]
    browser.ask(f"{SEARCH}('0003')")
    assert browser.ask(names) == [["column 0003"], every]
    browser.ask(f"{SEARCH}('')")
    browser.ask(f"{SORT}('lost')")
    assert browser.ask(names) == [[every[index] for index in (7, 5, 3, 1, 0, 2, 4, 6, 8)], every]


def test_levels_of_few_rows_are_gray() -> None:
    levels = [
        Point(role="level", name=name, value=None, mean=mean, low=mean, high=mean, rows=rows)
        for name, mean, rows in (("many", 1.0, 30), ("few", -1.0, 29))
    ]
    curve = replace(make_curve("kind", 0), shape="levels", points=levels)
    many, few = (draw_curve(replace(curve, points=[each]), "label").svg for each in levels)
    assert ACCENT in many and ACCENT not in few
