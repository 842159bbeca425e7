"""``explain``: what a model learned, as numbers, as a page, and as figures for slides."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from markupsafe import Markup

from dkan_core.data.format.manifest import PreparedData, open_prepared
from dkan_core.data.format.shard_writer import Arrays
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.errors import ConfigError, DataError, redact
from dkan_core.evaluation.prediction import check_match
from dkan_core.explanation.against import compare_explanations
from dkan_core.explanation.curve_drawings import draw_curve
from dkan_core.explanation.drawings import Drawing, draw_importance
from dkan_core.explanation.heatmaps import draw_map
from dkan_core.explanation.learned import Effort, Explanation, read_explanation
from dkan_core.explanation.section import render_explanation, render_section
from dkan_core.model.saved_model import SavedModel
from dkan_core.utils.storage.files import write_atomic, write_json
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.storage.staging import staged_folder

NUMBERS, PAGE, IMPORTANCE, CURVES, INTERACTIONS = (
    "explanation.json",
    "explanation.html",
    "importance",
    "curves",
    "interactions",
)
OUTPUTS = (f"{IMPORTANCE}.svg", f"{IMPORTANCE}.png", CURVES, INTERACTIONS, PAGE, NUMBERS)
# For the report of ``evaluate``, which should not take much longer for it: some seconds, also with 1,024 columns. With
# the card of importances, seven curves fill four rows of two.
QUICK = Effort(top=7, shuffles=0, slopes=False, curve_rows=150, maps=0, cells=2e7)
QUICK_ROWS, QUICK_BARS = 2000, 10
# File systems take 255 bytes; a suffix and a number against clashes are added.
NAME_LENGTH = 80

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
    """Read what a model learned off a prepared split; write ``explanation.json``, ``explanation.html`` and figures.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        prepared: Folder or URI that ``prepare`` wrote, with the encoding the model was trained with.
        out: Folder or URI for the results.
        split: "train", "valid" or "test".
        top: Columns that are shuffled and whose curve is drawn.
        rows: Rows of the split to read, its first ones; ``prepare`` has shuffled them.
        label: Label to explain. Default: curves of the one with the most positives, importances averaged over all.
        seed: Decides the shuffles; the same seed gives the same files.
        against: An earlier model, folder or URI: its curves stand beside the model's, with the importances and the rows
            whose scores changed.
        overwrite: Whether an earlier result in ``out`` may be replaced.

    Returns:
        Importances, curves and interactions: what ``explanation.json`` holds.

    Raises:
        ConfigError: A setting is out of range, or there is no such label.
        DataError: The model or the data cannot be read, or do not belong together.
        OutputError: ``out`` cannot take the result.
    """
    for name, value, low in (("top", top, 1), ("rows", rows, 2), ("seed", seed, 0)):
        if value < low:
            raise ConfigError(f"{name} must be {low} or more, got {value}")
    with staged_folder(out, names=OUTPUTS, overwrite=overwrite) as folder:
        with local_copy(model) as model_folder:
            saved = SavedModel(model_folder)
        with open_prepared(prepared, split) as (data, manifest):
            check_match(saved, manifest, prepared)
            if label is not None and label not in manifest.labels:
                raise ConfigError(f"label must be one of {', '.join(manifest.labels)}, got {label!r}")
            arrays = read_rows(data, manifest, split, rows)
        positives = {name: manifest.splits[split].classes[name]["1"] for name in manifest.labels}
        effort = Effort(top=top)
        found = read_explanation(saved, positives, arrays, split=split, label=label, effort=effort, seed=seed)
        if against is not None:
            with local_copy(against) as earlier_folder:
                earlier = SavedModel(earlier_folder)
            where = redact(str(against))
            found = compare_explanations(
                saved, earlier, found, arrays, labels=manifest.labels, where=where, effort=effort
            )
        _write(found, folder)
        write_json(folder / NUMBERS, found.to_dict())
    logger.info("%s counts most for %s; page in %s/%s", found.importance[0].name, found.label, out, PAGE)
    return found


def quick_explanation(
    saved: SavedModel,
    positives: Mapping[str, int],
    arrays: Arrays,
    split: str,
    *,
    label: str | None = None,
    share: float = 1.0,
) -> Explanation:
    """Return what a model learned, from a few rows, within seconds.

    Args:
        saved: The model.
        positives: How many rows have each label, of all rows that were evaluated.
        arrays: Some of them, as ``read_rows`` returns them.
        split: The split's name, or what else they are called.
        label: The label to explain. Default: importances are means over all.
        share: Of the usual effort, where several labels are explained one after the other.
    """
    effort = replace(QUICK, cells=share * QUICK.cells)
    return read_explanation(saved, positives, arrays, split=split, label=label, effort=effort, seed=0)


def quick_comparison(
    saved: SavedModel, earlier: SavedModel, found: Explanation, arrays: Arrays, labels: Sequence[str], where: str
) -> Explanation:
    """Return a quick explanation beside what an earlier model had learned.

    Args:
        saved: The model.
        earlier: The earlier one.
        found: What ``quick_explanation`` returned.
        arrays: The rows that it was given.
        labels: Names of their labels.
        where: Where the earlier model lies.
    """
    return compare_explanations(saved, earlier, found, arrays, labels=labels, where=where, effort=QUICK)


def learned_section(found: Explanation) -> Markup:
    """Return a report's section on what a model learned."""
    curves = _drawn_curves(found)
    return render_section(found, draw_importance(found.importance[:QUICK_BARS]), QUICK_BARS, curves)


def read_rows(folder: Path, manifest: PreparedData, split: str, rows: int) -> Arrays:
    """Return the first rows of a split.

    Args:
        folder: Prepared folder.
        manifest: What is in it.
        split: "train", "valid" or "test".
        rows: How many to read, at most.

    Raises:
        DataError: There is no such split, or no two rows in it.
    """
    with open_split(folder, manifest, split) as reader:
        if reader.rows < 2:
            raise DataError(f"{folder}: its {split} split has {reader.rows} rows; explaining takes two or more")
        return next(all_batches(reader, min(rows, reader.rows)))


def _drawn_curves(found: Explanation) -> list[Drawing]:
    """Return each curve, with that of an earlier model where there is one."""
    return [
        draw_curve(curve, found.label, found.against.curve_of(curve.name) if found.against else None)
        for curve in found.curves
    ]


def _write(found: Explanation, folder: Path) -> None:
    importance = draw_importance(found.importance[: len(found.curves)])
    curves = _drawn_curves(found)
    maps = [draw_map(pair) for pair in found.maps]
    _save(folder / IMPORTANCE, importance)
    for name, drawing in zip(safe_names(curve.name for curve in found.curves), curves, strict=True):
        _save(folder / CURVES / name, drawing)
    pairs = safe_names(f"{pair.first.name}--{pair.second.name}" for pair in found.maps)
    for name, drawing in zip(pairs, maps, strict=True):
        _save(folder / INTERACTIONS / name, drawing)
    write_atomic(folder / PAGE, render_explanation(found, importance, curves, maps))


def _save(path: Path, drawing: Drawing) -> None:
    path.parent.mkdir(exist_ok=True)
    write_atomic(path.with_name(f"{path.name}.svg"), drawing.svg)
    write_atomic(path.with_name(f"{path.name}.png"), drawing.png)


def safe_names(names: Iterable[str]) -> list[str]:
    """Return a file name for each name, no two alike on any file system.

    >>> safe_names(["a/b", "A_b", "../..", "x"])
    ['a_b', 'A_b-2', 'column', 'x']
    """
    taken: dict[str, int] = {}
    found = []
    for name in names:
        # Names of columns are whatever the data say: neither a slash nor dots may lead out of the folder.
        safe = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[:NAME_LENGTH].strip("._-") or "column"
        taken[safe.lower()] = count = taken.get(safe.lower(), 0) + 1
        found.append(safe if count == 1 else f"{safe}-{count}")
    return found
