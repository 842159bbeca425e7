"""``explain``: what a model learned, as numbers, as a page, and as figures for slides."""

import itertools
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from dkan_core.data.format.manifest import PreparedData, open_prepared
from dkan_core.data.loading.loader import open_split, read_sample
from dkan_core.errors import ConfigError, DataError, redact
from dkan_core.explanation.comparison import check_earlier, compare_explanations
from dkan_core.explanation.drawings import LabelDrawings, draw_explanation
from dkan_core.explanation.explanation import Explanation, explain_labels
from dkan_core.explanation.figures.drawing import Drawing
from dkan_core.explanation.label_explanation import Effort, LabelExplanation
from dkan_core.explanation.page import render_explanation
from dkan_core.model.saved_model import SavedModel, load_model
from dkan_core.scoring.prepared import check_match, known_split
from dkan_core.utils.arrays import Arrays
from dkan_core.utils.messages import counted
from dkan_core.utils.storage.files import write_atomic, write_json
from dkan_core.utils.storage.staging import staged_folder

NUMBERS, PAGE, IMPORTANCE, CURVES, INTERACTIONS, LABELS = (
    "explanation.json",
    "explanation.html",
    "importance",
    "curves",
    "interactions",
    "labels",
)
OUTPUTS = (f"{IMPORTANCE}.svg", f"{IMPORTANCE}.png", CURVES, INTERACTIONS, LABELS, PAGE, NUMBERS)
# Pattern of the figures' files, whose names come from ``safe_names``.
_FIGURE = r"[\w.-]+\.(svg|png)"
CONTENTS = {
    CURVES: _FIGURE,
    INTERACTIONS: _FIGURE,
    LABELS: rf"[\w.-]+/({IMPORTANCE}\.(svg|png)|({CURVES}|{INTERACTIONS})/{_FIGURE})",
}
# For the report of ``evaluate``, which this should delay by some seconds only, also with 1,024 columns. With the card
# of importances, seven curves fill four rows of two.
QUICK = Effort(top=7, shuffles=0, slopes=False, curve_rows=150, maps=0, cells=2e7)
QUICK_ROWS = 2000
# File systems allow 255 bytes; a suffix and a number against clashes are added to this.
NAME_BYTES = 160

logger = logging.getLogger(__name__)


def explain(
    model: str | Path,
    prepared: str | Path,
    out: str | Path,
    *,
    split: str = "valid",
    top: int = 12,
    rows: int = 20_000,
    label: str | None = None,
    seed: int = 0,
    against: str | Path | None = None,
    overwrite: bool = False,
) -> Explanation:
    """Explain what a model learned, from its answers on a prepared split.

    Writes ``explanation.json``, ``explanation.html`` and figures.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        prepared: Folder or URI that ``prepare`` wrote, with the encoding the model was trained with.
        out: Folder or URI for the results.
        split: "train", "valid" or "test".
        top: How many columns to shuffle, and to draw curves of.
        rows: How many rows of the split to read: a sample with rows of every shard.
        label: Label to explain. Default: all.
        seed: Decides the shuffles; the same seed gives the same files.
        against: An earlier model, as a folder or URI, to compare with: curves and importances side by side, and the
            rows whose scores changed.
        overwrite: Whether an earlier result in ``out`` may be replaced.

    Returns:
        Importances, curves and interactions of each label: what ``explanation.json`` holds.

    Raises:
        ConfigError: A setting is out of range, or there is no such label.
        DataError: The model or the data cannot be read, or do not belong together.
        OutputError: ``out`` cannot take the result.
    """
    for name, value, low in (("top", top, 1), ("rows", rows, 2), ("seed", seed, 0)):
        if value < low:
            raise ConfigError(f"{name} must be {low} or more, got {value}")
    with staged_folder(out, names=OUTPUTS, overwrite=overwrite, contents=CONTENTS) as folder:
        saved = load_model(model)
        with open_prepared(prepared, split) as (data, manifest):
            check_match(saved, manifest, prepared)
            if known := known_split(saved, split):
                logger.warning("%s; read the test split: --split test", known)
            if label is not None and label not in manifest.labels:
                raise ConfigError(f"label must be one of {', '.join(manifest.labels)}, got {label!r}")
            arrays = read_rows(data, manifest, split, rows)
        effort = Effort(top=top)
        labels = manifest.labels if label is None else [label]
        where, earlier = redact(str(against)), None
        if against is not None:
            earlier = load_model(against)
            check_earlier(saved, earlier, labels, where)
        found = explain_labels(saved, arrays, labels, split=split, effort=effort, seed=seed)
        if earlier is not None:
            found = compare_explanations(
                saved, earlier, found, arrays, labels=manifest.labels, where=where, effort=effort
            )
        found = replace(found, page=_write(found, folder))
        write_json(folder / NUMBERS, found.to_dict())
    for name, each in found.labels.items():
        logger.info("%s counts most for %s", each.importance[0].name, name)
    logger.info("page in %s/%s", out, PAGE)
    return found


def quick_explanation(saved: SavedModel, arrays: Arrays, labels: Sequence[str], split: str) -> Explanation:
    """Return what a model learned, from a few rows, within seconds.

    Args:
        saved: The model.
        arrays: Some of the rows, as ``read_rows`` returns them.
        labels: The labels to explain.
        split: The split's name, or what else they are called.
    """
    effort = replace(QUICK, cells=QUICK.cells / len(labels))
    return explain_labels(saved, arrays, labels, split=split, effort=effort, seed=0)


def read_rows(folder: Path, manifest: PreparedData, split: str, rows: int) -> Arrays:
    """Return a sample of a split.

    Raises:
        DataError: There is no such split, or no two rows in it.
    """
    with open_split(folder, manifest, split) as reader:
        if reader.rows < 2:
            raise DataError(
                f"{folder}: its {split} split has {counted(reader.rows, 'row')}; explaining takes two or more"
            )
        return read_sample(reader, rows)


def _write(found: Explanation, folder: Path) -> str:
    """Write the figures and the page, which is returned."""
    drawings = draw_explanation(found)
    if drawings.overview is not None:
        _save(folder / IMPORTANCE, drawings.overview)
    for name, (label, drawn) in zip(safe_names(drawings.labels), drawings.labels.items(), strict=True):
        _write_figures(found.labels[label], drawn, folder / LABELS / name if drawings.overview else folder)
    page = str(render_explanation(found, drawings))
    write_atomic(folder / PAGE, page)
    return page


def _write_figures(found: LabelExplanation, drawings: LabelDrawings, folder: Path) -> None:
    _save(folder / IMPORTANCE, drawings.importance)
    for name, drawing in zip(safe_names(curve.name for curve in found.curves), drawings.curves, strict=True):
        _save(folder / CURVES / name, drawing)
    pairs = safe_names(f"{pair.first.name}--{pair.second.name}" for pair in found.maps)
    for name, drawing in zip(pairs, drawings.maps, strict=True):
        _save(folder / INTERACTIONS / name, drawing)


def _save(path: Path, drawing: Drawing) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path.with_name(f"{path.name}.svg"), drawing.svg)
    write_atomic(path.with_name(f"{path.name}.png"), drawing.png)


def safe_names(names: Iterable[str]) -> list[str]:
    """Return a file name for each name, no two alike on any file system.

    Clashing names are numbered by name, not by importance, which changes with every training.

    >>> safe_names(["a/b", "A_b", "../..", "Größe"])
    ['a_b-2', 'A_b', 'column', 'Größe']
    """
    found: dict[int, str] = {}
    taken = set()
    for index, name in sorted(enumerate(names), key=itemgetter(1)):
        # Column names are arbitrary text: neither a slash nor dots may lead out of the folder.
        safe = re.sub(r"[^\w.-]+", "_", name).encode()[:NAME_BYTES].decode(errors="ignore").strip("._-") or "column"
        numbered = (safe if number == 1 else f"{safe}-{number}" for number in itertools.count(1))
        found[index] = next(each for each in numbered if each.lower() not in taken)
        taken.add(found[index].lower())
    return [found[index] for index in range(len(found))]
