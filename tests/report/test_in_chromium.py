"""Both pages as a reader sees them, in headless Chromium: on a screen and a phone, light and dark, offline."""

import base64
import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dkan_core import TrainResult, evaluate, explain, train
from dkan_core.evaluation.curves import confusion_matrix
from dkan_core.evaluation.metrics import best_f1_threshold
from dkan_core.utils.arrays import Array
from docs.chromium import PROGRAM, Chromium
from tests.additive_data import QUICK, prepare_rows
from tests.report.contrast import UNREADABLE
from tests.report.test_report import render, sample

pytestmark = [pytest.mark.browser, pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")]

WIDTHS = (1400, 390)
# As columns and labels are called: long, in other scripts, with what HTML and CSS have a meaning for.
NAMES = ["年齢と収入の区分コード" * 6, "العمر عند التشخيص", "🎉 " + "name_without_any_space" * 9, "<b>&\"'"]
# Cells and figures scroll within the page; nothing may make the page itself wider than the window.
WIDER = "document.documentElement.scrollWidth - window.innerWidth"
# Of everything that has text of its own.
SMALLEST = """Math.min(...[...document.querySelectorAll("body *")]
  .filter((each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) &&
    !["SCRIPT", "STYLE", "TITLE", "title"].includes(each.tagName) && each.getBoundingClientRect().width)
  .map((each) => parseFloat(getComputedStyle(each).fontSize) *
    (each.ownerSVGElement ? Math.hypot(each.getScreenCTM().a, each.getScreenCTM().b) : 1)))"""


@pytest.fixture(scope="module")
def pages(trained: TrainResult, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write pages of a real model and of one whose terms are tables, and a report with labels of awkward names."""
    folder = tmp_path_factory.mktemp("pages")
    evaluate(trained.model, prepared, folder / "eval", slices=("site",), previous=trained.model)
    explain(trained.model, prepared, folder / "learned", split="test", top=4, rows=60)
    rows = prepare_rows(folder, ("label",))
    additive = train(rows, folder / "run", replace(QUICK, epochs=1, members=1))
    explain(additive.model, rows, folder / "terms")
    labels, scores = sample(len(NAMES))
    (folder / "several.html").write_text(render(labels, scores, NAMES), encoding="utf-8")
    return {
        "report": folder / "eval/report.html",
        "explanation": folder / "learned/explanation.html",
        "terms": folder / "terms/explanation.html",
        "several labels": folder / "several.html",
    }


@pytest.mark.parametrize("name", ["report", "explanation", "terms", "several labels"])
def test_page_fits_every_window_and_says_nothing_on_the_console(
    name: str, browser: Chromium, pages: dict[str, Path]
) -> None:
    for width in WIDTHS:
        for dark in (False, True):
            browser.open(pages[name], width=width, dark=dark)
            assert browser.ask(WIDER) <= 0, (name, width)
            assert browser.ask(SMALLEST) > 8, (name, width)
            ground, ink = (
                browser.ask(f"getComputedStyle(document.body).{key}") for key in ("backgroundColor", "color")
            )
            assert width != WIDTHS[0] or browser.ask(UNREADABLE) == []
            assert (brightness(ground) < brightness(ink)) == dark
            assert browser.complaints() == []


def brightness(color: str) -> float:
    """Return the mean of the three parts of ``rgb(1, 2, 3)``."""
    return float(np.mean([int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")]))


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array, Array]:
    """Write a report of one label, and return it with labels and scores."""
    labels, scores = sample(1)
    path = tmp_path_factory.mktemp("explored") / "report.html"
    path.write_text(render(labels, scores, ["y"]), encoding="utf-8")
    return path, labels[:, 0], scores[:, 0]


def shown(browser: Chromium, name: str, context: int | None = None) -> str:
    found: str = browser.ask(f"document.querySelector('[data-show=\"{name}\"]').textContent", context)
    return found


def counts(browser: Chromium, context: int | None = None) -> list[list[int]]:
    """Return the 2 x 2 counts that the explorer shows, as ``confusion_matrix`` has them."""
    cells = [["left", "alarms"], ["missed", "found"]]
    return [[int(shown(browser, name, context).replace(",", "")) for name in row] for row in cells]


def test_explorer_counts_right_wherever_the_slider_is(browser: Chromium, explored: tuple[Path, Array, Array]) -> None:
    path, labels, scores = explored
    browser.open(path)
    assert counts(browser) == confusion_matrix(labels, scores, best_f1_threshold(labels, scores)), "it starts there"
    browser.ask("document.querySelector('[data-input=threshold]').focus()")
    seen = set()
    for key in ("Home", *["ArrowRight"] * 3, *["End"], *["ArrowLeft"] * 40):
        browser.press(key)
        index = int(browser.ask("document.querySelector('[data-input=threshold]').value"))
        exact = browser.ask(
            f"(({{thresholds}}) => thresholds[thresholds.length - 1 - {index}])"
            "(JSON.parse(document.querySelector('[data-counts]').dataset.counts))"
        )
        found = counts(browser)
        assert found == confusion_matrix(labels, scores, 2.0 if exact is None else exact)
        assert shown(browser, "threshold") == ("above every score" if exact is None else f"{exact:.4g}")
        seen.add(str(found))
    assert len(seen) > 20
    (left, alarms), (missed, hits) = found
    assert shown(browser, "recall") == f"{hits / (hits + missed):.1%}"
    assert shown(browser, "precision") == f"{hits / (hits + alarms):.1%}"
    assert shown(browser, "false-rate") == f"{alarms / (alarms + left):.1%}"
    assert browser.complaints() == []


def fill(browser: Chromium, name: str, value: str) -> None:
    box = f"document.querySelector('[data-input={name}]')"
    browser.ask(f"{box}.value = '{value}'; {box}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def test_cheapest_threshold_follows_costs_and_prevalence(
    browser: Chromium, explored: tuple[Path, Array, Array]
) -> None:
    path, labels, scores = explored
    browser.open(path)
    measured = labels != 255
    truth, of = labels[measured] == 1, scores[measured]
    rates = [((of >= each) & truth).sum() / truth.sum() for each in np.unique(of)]
    alarms = [((of >= each) & ~truth).sum() / (~truth).sum() for each in np.unique(of)]
    for miss, alarm, prevalence in ((10, 1, 5), (1, 3, 40), (1, 0.5, 50)):
        fill(browser, "miss", str(miss))
        fill(browser, "alarm", str(alarm))
        fill(browser, "prevalence", str(prevalence))
        share = prevalence / 100
        pairs = zip(rates, alarms, strict=True)
        costs = [1000 * (share * (1 - hit) * miss + (1 - share) * false * alarm) for hit, false in pairs]
        lowest = min(*costs, 1000 * share * miss)
        browser.ask("document.querySelector('[data-go=cheapest]').click()")
        assert float(shown(browser, "cost").replace(",", "")) == pytest.approx(lowest, rel=0.006)
        assert shown(browser, "cheapest").startswith(shown(browser, "cost"))
    fill(browser, "prevalence", "")
    fill(browser, "miss", "-1")
    browser.ask("document.querySelector('[data-go=operating]').click()")
    assert counts(browser) == confusion_matrix(labels, scores, best_f1_threshold(labels, scores))
    assert browser.complaints() == []


def test_explorer_works_in_a_sandboxed_frame_and_the_table_without_script(
    browser: Chromium, explored: tuple[Path, Array, Array], tmp_path: Path
) -> None:
    path, labels, scores = explored
    # As the Kubeflow UI shows a page: another origin, without storage.
    frame = f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(path.read_text(encoding="utf-8"))}"></iframe>'
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{frame}", encoding="utf-8")
    browser.open(tmp_path / "frame.html")
    (child,) = browser.call("Page.getFrameTree")["frameTree"]["childFrames"]
    context = browser.call("Page.createIsolatedWorld", frameId=child["frame"]["id"])["executionContextId"]
    assert browser.ask("window.origin", context) == "null"
    assert counts(browser, context) == confusion_matrix(labels, scores, best_f1_threshold(labels, scores))
    assert browser.complaints() == []
    browser.open(path, script=False)
    text = browser.ask("document.body.innerText")
    assert "Alerts per 1,000 rows" in text and "Cheapest threshold" not in text


def test_switch_shows_one_label_at_a_time_and_takes_the_keyboard(browser: Chromium, pages: dict[str, Path]) -> None:
    # Nothing of it is script.
    browser.open(pages["several labels"], script=False)
    panels = "[...document.querySelectorAll('.panel')].map((each) => each.getBoundingClientRect().height > 0)"
    assert browser.ask(panels) == [True, *[False] * len(NAMES)]
    browser.ask("document.getElementById('label-0').focus()")
    for index in range(1, len(NAMES) + 1):
        browser.press("ArrowRight")
        assert browser.ask(panels) == [each == index for each in range(len(NAMES) + 1)]
        assert browser.ask(WIDER) <= 0


def test_pages_print_on_few_sheets_without_what_only_a_screen_can_do(browser: Chromium, pages: dict[str, Path]) -> None:
    for name, most in (("report", 8), ("explanation", 4)):
        browser.open(pages[name])
        printed = base64.b64decode(browser.call("Page.printToPDF")["data"])
        assert max(map(int, re.findall(rb"/Count (\d+)", printed))) <= most, name
        dark = {"name": "prefers-color-scheme", "value": "dark"}
        browser.call("Emulation.setEmulatedMedia", media="print", features=[dark])
        grid = browser.ask("getComputedStyle(document.documentElement).getPropertyValue('--grid')")
        shown = browser.ask(
            "getComputedStyle(document.querySelector('.figures')).gridTemplateColumns.split(' ').length"
        )
        hidden = browser.ask("[...document.querySelectorAll('.contents')].every((each) => !each.offsetHeight)")
        browser.call("Emulation.setEmulatedMedia", media="")
        assert (shown, hidden, grid) == (3, True, "#e4e8ed"), name
