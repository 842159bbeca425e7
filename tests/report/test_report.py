"""The report is well-formed, self-contained, safe with any name, and the same for the same input."""

import base64
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from jinja2 import UndefinedError

import dkan_core
from dkan_core.evaluation.comparison import Comparison, comparison_section
from dkan_core.evaluation.curves import confusion_matrix
from dkan_core.evaluation.drift.measures import ColumnDrift, Drift
from dkan_core.evaluation.drift.summary import render_drift
from dkan_core.evaluation.metrics import best_f1_threshold, compute_metrics
from dkan_core.report.evaluation import LABEL_SECTIONS, render_report
from dkan_core.report.templating import inline_script, render_html
from dkan_core.utils.arrays import Array

EXPLORER = Path(dkan_core.__file__).parent / "report/templates/explorer.js"
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


SLICES = [("common", 50_000), ("rare", 29)]


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
        "thresholds": {name: best_f1_threshold(labels[:, index], scores[:, index]) for index, name in enumerate(names)},
        "history": HISTORY,
        "data_summary": {"rows": {"train": 1000, "test": 400}, "features": [f"f{index}" for index in range(100)]},
        "model_summary": {"hidden": [64, 32], "thresholds": {"is_late": 0.5}, "dropout": 0.1, "weights": None},
    }
    return render_report(**{**given, **changes})


def check_scripts(page: str) -> None:
    """Check that a page has at most one script, of ours, and that its policy allows that and nothing else."""
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in unescape(policy[1]).split("; "))
    assert rules["default-src"] == "'none'" and rules["style-src"] == "'unsafe-inline'"
    scripts = re.findall(r"<script[^>]*>.*?</script>", page, flags=re.DOTALL)
    assert len(scripts) == page.lower().count("<script") == ("script-src" in rules)
    for script in scripts:
        text = script.removeprefix("<script>").removesuffix("</script>")
        assert text in {EXPLORER.read_text(encoding="utf-8"), inline_script("columns.js", "hints.js")}
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules["script-src"] == f"'sha256-{digest}'"
    # Of what a browser would run as well.
    assert not re.search(
        r"<[^>]*\s(?:on\w+\s*=|(?:href|src|action)\s*=\s*[\"']?(?:javascript|data):)", page, re.IGNORECASE
    )


def check_page(page: str) -> list[str]:
    """Check what holds for every report, and return its figures."""
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert not parser.tags & {"link", "img", "iframe", "object", "image"}
    check_scripts(page)
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
    assert len(check_page(page)) == 8
    precision = compute_metrics(labels, scores, ["active"])["average_precision"]
    # Of 400 rows, three digits say something.
    for text in (f">{precision:.3f}<", "no skill", "Calibration", "Alerts per 1,000 rows", "operating", ">is_late<"):
        assert text in page
    for text in ("Cumulative gain", "Lift", "<title>recall ", "at threshold", " positives, ", " rows have "):
        assert text in page, text
    assert "f23 and 76 more" in page


def test_multi_label_page_limits_the_sections_and_says_so() -> None:
    labels, scores = sample(LABEL_SECTIONS + 2, rows=60)
    labels[:, 3:] *= labels[:, 3:] == 255  # all but three labels without a positive: no curves to draw
    names = [f"label {index}" for index in range(labels.shape[1])]
    page = render(labels, scores, names)
    assert len(check_page(page)) == 6 + 3 * 6 + 2
    # A switch that needs no script: one radio button for each panel, and one panel that is shown at first.
    assert page.count('type="radio"') == page.count('class="panel"') == LABEL_SECTIONS + 1
    assert page.count("checked>") == 1 and f".panel:nth-of-type({LABEL_SECTIONS + 1})" in page
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
    assert HOSTILE not in page and "<script>alert" not in page
    assert page.count("&lt;script&gt;") >= 6


def test_positives_are_counted_whatever_they_weigh() -> None:
    labels, scores = sample(1)
    metrics = compute_metrics(labels, scores, ["a"], np.where(labels[:, 0] == 1, 1.0, 0.01))
    assert f"{np.count_nonzero(labels == 1)} positives" in render(labels, scores, ["a"], metrics=metrics)


def test_a_single_positive_is_one_positive() -> None:
    labels, scores = sample(1)
    labels[np.flatnonzero(labels == 1)[1:]] = 0
    page = render(labels, scores, ["a"], metrics=compute_metrics(labels, scores, ["a"]))
    assert "1 positive<" in page and "1 positives" not in page


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
    assert len(check_page(render(labels, scores, ["a"], history=[]))) == 6
    without_loss = [{"step": 5, "average_precision": 0.4}]
    page = render(labels, scores, ["a"], history=without_loss)
    assert len(check_page(page)) == 7
    assert "Training loss" not in page and "overfits" not in page


def test_validation_loss_is_drawn_beside_that_of_training() -> None:
    labels, scores = sample(1)
    plain = check_page(render(labels, scores, ["a"]))
    history = [{**entry, "validation_loss": 0.3 + 0.01 * entry["epoch"]} for entry in HISTORY]
    # A run that went on with this version has it from then on.
    del history[0]["validation_loss"]
    page = render(labels, scores, ["a"], history=history)
    assert len(check_page(page)) == len(plain)
    assert "overfits" in page and "<title>epoch 1: training 1</title>" in page
    assert "<title>epoch 2: validation 0.32, training 0.5</title>" in page


@pytest.mark.parametrize("rows", [2, 5_000])
def test_few_rows_and_identical_scores(rows: int) -> None:
    labels = np.zeros((rows, 1), np.uint8)
    labels[::2] = 1
    page = render(labels, np.full((rows, 1), 0.5, np.float32), ["a"], data_summary={}, model_summary={})
    assert len(check_page(page)) == 8


def test_page_stays_small_on_many_rows() -> None:
    labels, scores = sample(1, rows=200_000)
    assert len(render(labels, scores, ["a"])) < 200_000


def test_every_string_of_a_comparison_is_escaped() -> None:
    labels, scores = sample(1)
    metrics = compute_metrics(labels, scores, ["active"])
    found = comparison_section(metrics, Comparison(model=HOSTILE, metrics={**metrics, "roc_auc": None}))
    assert "<script" not in found and "&lt;script&gt;" in found
    assert found.count("<td>+0.000</td>") == 3 and "undefined" in found
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
    assert "9 rows of 1 file" in page and "1 files" not in page
    assert all(text in page for text in ("0.3000", "large", "50.00%", "25.00%", "1,200", "Unknown: the model"))


def test_name_that_a_template_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="why_not"):
        render_html("comparison", model="m", rows=[])


def test_contents_lead_to_every_section_and_tables_name_their_heads() -> None:
    labels, scores = sample(1)
    page = render(labels, scores, ["y"], provenance={"model": HOSTILE})
    anchors = re.findall(r'<h2 id="(section-\d+)">', page)
    assert len(anchors) == page.count("<h2") > 3
    contents = re.search(r'<nav class="contents".*?</nav>', page)
    assert contents is not None
    assert re.findall(r'href="#(.*?)"', contents[0]) == anchors
    assert ">Provenance</a>" in contents[0]
    assert not re.search(r"<th(?![^>]*scope=)[ >]", page) and page.count('scope="col"') >= 5 and 'scope="row"' in page


def test_split_and_warnings_come_first() -> None:
    labels, scores = sample(1)
    metrics = compute_metrics(labels, scores, ["y"]) | {
        "warnings": [f"column {HOSTILE} alone predicts it; known before?"]
    }
    page = render(labels, scores, ["y"], metrics=metrics, split="Split by day.")
    assert page.index("one label: y. Split by day.") < page.index('class="warning"') < page.index('class="tiles"')
    assert HOSTILE not in page and "known before?</p>" in page


def test_what_the_explorer_starts_from_counts_every_row() -> None:
    labels, scores = sample(1)
    page = render(labels, scores, ["y"])
    found = re.search(r'data-counts="(.*?)"', page)
    assert found is not None
    counts = json.loads(unescape(found[1]))
    for threshold, true, false in zip(counts["thresholds"][1:], counts["true"][1:], counts["false"][1:], strict=True):
        (_, alarms), (_, hits) = confusion_matrix(labels[:, 0], scores[:, 0], threshold)
        assert (true, false) == (hits, alarms)
    assert (counts["true"][0], counts["false"][0]) == (0, 0)
    assert (counts["true"][-1], counts["false"][-1]) == (counts["positives"], counts["negatives"])
    operating = best_f1_threshold(labels[:, 0], scores[:, 0])
    assert counts["thresholds"][counts["operating"]] == pytest.approx(operating, rel=1e-8)
    (left, alarms), (missed, hits) = confusion_matrix(labels[:, 0], scores[:, 0], operating)
    text = f"finds {hits} positives and misses {missed}; it alerts on {alarms} negatives and correctly rejects {left}."
    assert text in page
    # Shown by the script alone: where none runs, nothing is there that does not work.
    assert re.search(r'data-counts="[^"]*" hidden>', page)


def test_worst_errors_and_columns_are_shown_and_escaped() -> None:
    labels, scores = sample(2)
    reasons = [{"text": f"{HOSTILE} = 3", "log_odds": -1.25}]
    error = {"number": 1234, "probability": 0.01, "reasons": reasons}
    errors = {"a": {"source": HOSTILE, "false_positives": [], "false_negatives": [error]}}
    column = dict.fromkeys(("kind", "distinct", "missing", "missing_in_training", "psi", "verdict", "unseen"), HOSTILE)
    columns = {"shown": [{"name": HOSTILE, **column}], "hidden": 7, "rows": 400, "moderate": 0.1, "large": 0.25}
    page = render(labels, scores, ["a", "b"], errors=errors, columns=columns)
    check_page(page)
    assert HOSTILE not in page and page.count("&lt;script&gt;") == 2 + 8
    assert all(text in page for text in ("1,234", "-1.25", "Lowest-scored positives", "7 more columns"))
    assert "Highest-scored negatives" not in page and page.count("Worst errors") == 1


def test_slices_of_few_rows_are_in_italics() -> None:
    labels, scores = sample(1)
    level = dict.fromkeys(("prevalence", "mean_probability", "average_precision", "roc_auc"), 0.123456)
    levels = [{"level": name, "rows": rows, **level, "average_precision_interval": None} for name, rows in SLICES]
    metrics = compute_metrics(labels, scores, ["y"]) | {"slices": {"label": "y", "columns": {"color": levels}}}
    page = render(labels, scores, ["y"], metrics=metrics)
    check_page(page)
    assert re.findall(r'<tr class="few"><th scope="row" class="name">(.*?)<', page) == ["rare"]
    # As many digits as so many rows give.
    assert page.count("<td>0.123</td>") == 4 and page.count("<td>0.1235</td>") == 4
