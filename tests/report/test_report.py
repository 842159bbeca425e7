"""The report is well-formed, self-contained, safe with any name, and the same for the same input."""

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from jinja2 import UndefinedError

from dkan_core.batch_scoring.summary import render_drift
from dkan_core.evaluation.comparison import Comparison, comparison_section
from dkan_core.evaluation.drift.measures import ColumnDrift, Drift
from dkan_core.evaluation.metrics import Array, best_f1_threshold, compute_metrics
from dkan_core.report.evaluation import LABEL_SECTIONS, render_report
from dkan_core.report.templating import render_html

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "<script>alert('x')</script>"
HISTORY = [
    {
        "epoch": float(epoch),
        "step": 10 * epoch,
        "loss": 1 / epoch,
        "average_precision": 0.5 - 0.2 / epoch,
        "best_average_precision": 0.5,
        "rows_per_second": 1e6,
        "seconds": 3.0 * epoch,
    }
    for epoch in range(1, 8)
]


class Balanced(HTMLParser):
    """Collect ids and script tags, and fail on a tag that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another tag"


def sample(labels: int, rows: int = 400, seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    truth = (generator.random((rows, labels)) < 0.2).astype(np.uint8)
    truth[generator.random((rows, labels)) < 0.1] = 255
    scores = 1 / (1 + np.exp(-generator.normal(size=(rows, labels)) - 2.0 * (truth == 1) + 1.5))
    return truth, scores.astype(np.float32)


def render(labels: Array, scores: Array, names: list[str], **changes: Any) -> str:
    given: dict[str, Any] = {
        "title": "Test split",
        "labels": labels,
        "probabilities": scores,
        "names": names,
        "metrics": compute_metrics(labels, scores, names),
        "thresholds": {name: best_f1_threshold(labels[:, place], scores[:, place]) for place, name in enumerate(names)},
        "history": HISTORY,
        "data_summary": {"rows": {"train": 1000, "test": 400}, "features": [f"f{place}" for place in range(100)]},
        "model_summary": {"hidden": [64, 32], "input_norm": "none", "dropout": 0.1, "weights": None},
    }
    return render_report(**{**given, **changes})


def check_page(page: str) -> list[str]:
    """Check what holds for every report, and return its figures."""
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert not parser.tags & {"script", "link", "img", "iframe", "object", "image"}
    figures = re.findall(r"<svg .*?</svg>", page, flags=re.DOTALL)
    for figure in figures:
        root = ElementTree.fromstring(figure)
        assert root.get("aria-label")
        assert root.findall(".//{http://www.w3.org/2000/svg}text")
    outside = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?://|@import|url\((?!#)", outside)
    targets = re.findall(r'(?:url\(#|xlink:href="#)([^)"]+)', page)
    assert set(targets) <= set(parser.ids)
    assert not re.search(r">\s*-?(nan|inf|None)\s*<", page)
    return figures


def test_single_label_page_shows_everything() -> None:
    labels, scores = sample(1)
    page = render(labels, scores, ["active"])
    assert len(check_page(page)) == 6
    precision = compute_metrics(labels, scores, ["active"])["average_precision"]
    for text in (f"{precision:.4f}", "no skill", "Calibration", "Alerts per 1,000 rows", "operating", "input norm"):
        assert text in page
    assert "f23 and 76 more" in page


def test_multi_label_page_limits_the_sections_and_says_so() -> None:
    labels, scores = sample(LABEL_SECTIONS + 2, rows=60)
    labels[:, 3:] *= labels[:, 3:] == 255  # all but three labels without a positive: no curves to draw
    names = [f"label {place}" for place in range(labels.shape[1])]
    page = render(labels, scores, names)
    assert len(check_page(page)) == 4 + 3 * 4 + 2
    assert page.count("<details>") == LABEL_SECTIONS
    assert "2 more are in the table" in page
    assert all(f">{name}<" in page for name in names)


def test_same_input_gives_the_same_bytes() -> None:
    labels, scores = sample(2)
    assert render(labels, scores, ["a", "b"]) == render(labels, scores, ["a", "b"])


@pytest.mark.parametrize("count", [1, 2])
def test_every_string_is_escaped(count: int) -> None:
    labels, scores = sample(count)
    names = [HOSTILE, "a & b"][:count]
    page = render(
        labels,
        scores,
        names,
        title=HOSTILE,
        data_summary={HOSTILE: [HOSTILE, {"inner": HOSTILE}]},
        model_summary={"deep": {HOSTILE: {HOSTILE: HOSTILE}}},
    )
    check_page(page)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 6


def test_label_without_positives() -> None:
    labels, scores = sample(1)
    labels[labels == 1] = 0
    page = render(labels, scores, ["never"], thresholds={})
    assert len(check_page(page)) == 2
    assert "need both a positive and a negative row" in page


def test_page_without_measured_labels_is_well_formed() -> None:
    labels, scores = sample(1)
    check_page(render(np.full_like(labels, 255), scores, ["unknown"], thresholds={}))


def test_history_may_be_empty_or_lack_the_loss() -> None:
    labels, scores = sample(1)
    assert len(check_page(render(labels, scores, ["a"], history=[]))) == 4
    without_loss = [{"step": 5, "average_precision": 0.4}]
    page = render(labels, scores, ["a"], history=without_loss)
    assert len(check_page(page)) == 5
    assert "Training loss" not in page


@pytest.mark.parametrize("rows", [2, 5_000])
def test_few_rows_and_identical_scores(rows: int) -> None:
    labels = np.zeros((rows, 1), np.uint8)
    labels[::2] = 1
    page = render(labels, np.full((rows, 1), 0.5, np.float32), ["a"], data_summary={}, model_summary={})
    assert len(check_page(page)) == 6


def test_page_stays_small_on_many_rows() -> None:
    labels, scores = sample(1, rows=200_000)
    assert len(render(labels, scores, ["a"])) < 200_000


def test_every_string_of_a_comparison_is_escaped() -> None:
    labels, scores = sample(1)
    metrics = compute_metrics(labels, scores, ["active"])
    found = comparison_section(metrics, Comparison(model=HOSTILE, metrics={**metrics, "roc_auc": None}))
    assert "<script" not in found and "&lt;script&gt;" in found
    assert found.count("<td>+0.0000</td>") == 3 and "undefined" in found
    refused = comparison_section(metrics, Comparison(model=HOSTILE, why_not=HOSTILE))
    assert "<script" not in refused and refused.count("&lt;script&gt;") == 2
    check_page(render(labels, scores, ["active"], compared=found))
    assert HOSTILE in unescape(render(labels, scores, ["active"], compared=HOSTILE)), "plain text is no markup"


def test_every_string_of_a_drift_page_is_escaped() -> None:
    known = ColumnDrift(name=HOSTILE, kind="number", psi=0.3, ks=0.1, missing=0.0, missing_in_training=0.5)
    unknown = ColumnDrift(
        name="color",
        kind="category",
        psi=None,
        ks=None,
        missing=0.25,
        missing_in_training=None,
        unseen_rows=1200,
        unseen=0.5,
        examples=(HOSTILE, "b"),
    )
    page = render_drift(Drift(rows=9, columns=(known, unknown)), None, title=HOSTILE, files=1)
    check_page(page)
    assert "<script" not in page and page.count("&lt;script&gt;") == 5
    assert all(text in page for text in ("0.3000", "large", "50.00%", "25.00%", "1,200", "unknown: the model"))


def test_name_that_a_template_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="why_not"):
        render_html("comparison", model="m", rows=[])
