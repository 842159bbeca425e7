"""The pictures of README and docs: what ``dkan demo`` leaves, as headless Chromium shows it.

``python -m docs.pictures`` redraws them, where a test says that they are stale. With three arguments it draws the
pages of another version, for a page of the docs that compares the two.
"""

import argparse
import base64
import contextlib
import hashlib
import io
import json
import re
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image

import dkan_core
from dkan_core.cli.demo import EVAL, LEARNED, PREPARED, ROWS, RUN
from dkan_core.data.example_data import LABEL
from dkan_core.evaluation.metrics import compute_metrics
from dkan_core.report.evaluation import render_report
from docs.chromium import Chromium, chromium

IMAGES = Path(__file__).parent / "images"
STAMP = IMAGES / "pictures.json"
"""Fingerprint of the pages that the pictures show."""

WIDTHS = {1400: 3400, 390: 4200}
"""Of the windows that the pages are shown in, and how much of a page is drawn; pixels."""

TOP = 1180
"""How much of the report the README shows."""


def draw() -> None:
    """Draw every picture from a demo that runs for it, and note what the pages look like."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # The pages name the places that they are made of: relative ones, as a reader of the docs has them.
        with contextlib.chdir(folder):
            earlier = folder / _run_demo()
        with chromium(folder / "profile") as browser:
            draw_pages(browser, folder / EVAL, folder / LEARNED, "")
            _shoot(browser, folder / EVAL / "report.html", 1400, IMAGES / "report.png", bottom=TOP)
            _shoot(browser, earlier / "report.html", 1400, IMAGES / "kubeflow-report.png", bottom=620)
            curves = "[...document.querySelectorAll('h2')].find((each) => each.textContent.startsWith('Ranking'))"
            top = browser.ask(f"{curves}.getBoundingClientRect().top")
            _shoot(browser, earlier / "report.html", 1400, IMAGES / "kubeflow-curves.png", top=top, bottom=top + 1000)
    STAMP.write_text(json.dumps({"pages": fingerprint()}, indent=2) + "\n", encoding="utf-8")


def _run_demo() -> str:
    """Run the demo, and evaluate its model beside a smaller one; return where that lies."""
    dkan_core.write_sample(ROWS)
    dkan_core.prepare(ROWS, PREPARED, dkan_core.PrepareConfig(label=(LABEL,)))
    settings = dkan_core.TrainConfig(device="cpu", strategy="single")
    model = dkan_core.train(PREPARED, RUN, settings).model
    smaller = dkan_core.TrainConfig(device="cpu", strategy="single", epochs=1, members=1, hidden=(4,))
    previous = dkan_core.train(PREPARED, "previous", smaller).model
    dkan_core.evaluate(model, PREPARED, EVAL)
    dkan_core.evaluate(model, PREPARED, "compared", previous=previous)
    dkan_core.explain(model, PREPARED, LEARNED, split="test")
    return "compared"


def draw_pages(browser: Chromium, evaluated: Path, learned: Path, name: str) -> None:
    """Draw the report and the explanation at both widths.

    Args:
        browser: Shows them.
        evaluated: Folder that ``evaluate`` wrote.
        learned: Folder that ``explain`` wrote.
        name: What the files' names begin with.
    """
    for width, height in WIDTHS.items():
        for page in (evaluated / "report.html", learned / "explanation.html"):
            _shoot(browser, page, width, IMAGES / f"{name}{page.stem}-{width}.png", bottom=height)


def _shoot(browser: Chromium, page: Path, width: int, target: Path, *, top: float = 0, bottom: float) -> None:
    browser.open(page, width=width)
    # What is below the window is drawn only once somebody scrolls there.
    browser.ask("document.querySelectorAll('.card').forEach((card) => { card.style.contentVisibility = 'visible'; })")
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top, "scale": 1}
    data = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
    image = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    # So few colors are a third of the bytes, and look the same.
    image.quantize(256, kmeans=1).save(target, optimize=True)


def fingerprint() -> str:
    """Return a digest of how the pages look, whatever numbers they show."""
    random = np.random.default_rng(0)
    labels = (random.random((400, 1)) < 0.3).astype(np.uint8)
    scores = random.random((400, 1)).astype(np.float32)
    page = render_report(
        title="Page",
        labels=labels,
        probabilities=scores,
        names=["label"],
        metrics=compute_metrics(labels, scores, ["label"]),
        thresholds={"label": 0.5},
        history=[{"epoch": 1.0, "loss": 0.5, "validation_loss": 0.5, "average_precision": 0.5}],
        data_summary={"rows": 400},
        model_summary={"members": 1},
    )
    templates = resources.files("dkan_core.report").joinpath("templates")
    names = ("explanation.html.j2", "explanation_notes.html.j2", "explanation_section.html.j2", "macros.html.j2")
    others = [templates.joinpath(name).read_text(encoding="utf-8") for name in names]
    # Where a curve lies and what it shows differ in the last digits from one processor to the next.
    plain = re.sub(r'\bd="[^"]*"|data-counts="[^"]*"|[\d.,]+', "#", page)
    parts = sorted({*re.split(r"(?<=>)|\n", plain)})
    return hashlib.sha256("\n".join([*parts, *others]).encode()).hexdigest()


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m docs.pictures", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="EVAL LEARNED NAME", help="pages to draw; default: the demo's")
    given = parser.parse_args().pages
    if not given:
        draw()
        return
    evaluated, learned, name = given
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
        draw_pages(browser, Path(evaluated), Path(learned), f"{name}-")


if __name__ == "__main__":
    main()
