"""``edit`` writes a new model from an additive model and manual changes to some of its terms."""

import json
import logging
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.manifest import open_prepared
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.loading.loader import open_split
from dkan_core.editing.apply import apply_edits
from dkan_core.editing.edits import Edit, read_edits
from dkan_core.errors import ConfigError, DataError, OutputError
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import terms_of
from dkan_core.model.base import TabularModel
from dkan_core.model.model_folder import ESTIMATOR, SCORES, check_model_replaceable
from dkan_core.model.saved_model import SavedModel, save_model
from dkan_core.scoring.prepared import ScoredSplit, check_match, known_split, score_split
from dkan_core.scoring.probabilities import to_probability
from dkan_core.training.validation.model_metrics import describe_probabilities
from dkan_core.utils.storage.paths import is_remote, local_path
from dkan_core.utils.storage.remote import local_copy
from dkan_core.utils.torch_resources import best_device

DEFAULT_SPLIT = "valid"
MEASURES = ("average_precision", "log_loss", "brier")
OF_LAST_EDITS = ("edits_split", "edits_before", "edits_after")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class EditResult:
    """An edited model, and what the edits did to its quality."""

    model: str
    """Path or URI of the edited model."""

    edits: list[dict[str, Any]]
    """All edits of the model, earlier ones first."""

    before: dict[str, float | None]
    """On the split: average precision, log loss, Brier score, mean probability and prevalence, means over
    labels; empty where no data were given."""

    after: dict[str, float | None]

    def __str__(self) -> str:
        lines = [f"edits in {self.model}: {len(self.edits)}"]
        for name, value in self.before.items():
            after = self.after[name]
            if value is not None and after is not None:
                lines.append(f"{name.replace('_', ' '):<20} {value:.4f} -> {after:.4f}")
        return "\n".join(lines)

    # At the end of a notebook's cell as well.
    __repr__ = __str__


def edit(
    model: str | Path,
    edits: str | Path | Sequence[Edit | Mapping[str, Any]],
    out: str | Path,
    *,
    data: str | Path | None = None,
    split: str = DEFAULT_SPLIT,
    overwrite: bool = False,
) -> EditResult:
    """Change terms of an additive model and write the result as a new model.

    Args:
        model: Folder that ``train`` or ``edit`` wrote, with an additive model; a path or an fsspec URI.
        edits: A TOML file of ``[[edit]]`` tables, or the edits themselves.
        out: Folder or URI of the new model.
        data: Prepared folder or URI to measure quality on, before and after.
        split: "train", "valid" or "test". With "valid", metrics and thresholds of the new model are recomputed, as
            they were chosen on that split; else they stay as they were.
        overwrite: Whether an earlier model in ``out`` may be replaced.

    Returns:
        Where the new model lies, the edits, and its quality before and after them.

    Raises:
        ConfigError: An edit is wrong, or does not fit the model; or ``split`` is given without ``data``.
        DataError: The model is not additive, or data and model do not belong together.
        OutputError: ``out`` cannot take the model; what was there stays.
    """
    if data is None and split != DEFAULT_SPLIT:
        raise ConfigError(f"split {split} needs data: the prepared folder to measure on")
    asked = read_edits(edits)
    check_model_replaceable(out, overwrite=overwrite)
    with local_copy(model) as folder:
        saved = SavedModel(folder)
        # The model's folder may be inside a run's folder.
        below = saved.folder.relative_to(folder).parts
    own = posixpath.join(str(model).rstrip("/"), *below) if is_remote(model) else str(saved.folder.resolve())
    if own == (str(out).rstrip("/") if is_remote(out) else str(local_path(out).resolve())):
        raise OutputError(f"{out}: is the model that is edited, which stays as it is; write the new one elsewhere")
    edited, metrics = edit_terms(saved.module, saved.preprocessor, saved.metrics, asked, where=str(model))
    before: dict[str, float | None] = {}
    after: dict[str, float | None] = {}
    if data is not None:
        scored = [_score(module, saved, data, split) for module in (saved.module, edited)]
        before, after = (_measures(each, saved.config.labels) for each in scored)
        metrics |= {"edits_split": split, "edits_before": before, "edits_after": after}
        if known := known_split(saved, split):
            logger.warning("%s", known)
        elif split == DEFAULT_SPLIT:
            metrics |= _description(scored[1], saved.config.labels)
    # Holds a classifier's classes, which edits do not change.
    also = {ESTIMATOR: json.loads(saved.files.read(ESTIMATOR))} if ESTIMATOR in saved.files.files else None
    save_model(out, edited, saved.preprocessor, metrics, also=also)
    logger.info("edits of %s: %d; model in %s", model, len(asked), out)
    return EditResult(model=str(out), edits=metrics["edits"], before=before, after=after)


def edit_terms(
    module: TabularModel,
    preprocessor: Preprocessor,
    metrics: Mapping[str, Any],
    edits: Sequence[Edit],
    *,
    where: str,
) -> tuple[AdditiveFastKAN, dict[str, Any]]:
    """Return a model after some edits, and its metrics with a list of all edits; the given model is not changed.

    Args:
        module: The model.
        preprocessor: Its encoding.
        metrics: What its folder says of it.
        edits: What to change, in this order.
        where: What messages call the model.

    Raises:
        ConfigError: An edit does not fit the model.
        DataError: The model is not additive.
    """
    if not isinstance(module, AdditiveFastKAN):
        raise DataError(f"{where}: has no terms to edit; only models trained with model additive can be edited")
    earlier = metrics.get("edits", [])
    edited = apply_edits(terms_of(module), preprocessor, edits, earlier).to_model()
    done = [*earlier, *(each.to_dict() for each in edits)]
    # Measures of earlier edits do not apply to these, and the distribution of old scores no longer measures drift.
    kept = {name: value for name, value in metrics.items() if name not in OF_LAST_EDITS}
    if "labels" in kept:
        facts = kept["labels"].items()
        kept["labels"] = {label: {name: each[name] for name in each if name != SCORES} for label, each in facts}
    return edited, {**kept, "edits": done}


def _score(module: TabularModel, saved: SavedModel, data: str | Path, split: str) -> ScoredSplit:
    device = best_device()
    with open_prepared(data, split) as (folder, manifest):
        check_match(saved, manifest, data)
        with open_split(folder, manifest, split) as reader:
            return score_split(module.to(device), reader, device)


def _description(scored: ScoredSplit, names: Sequence[str]) -> dict[str, Any]:
    return describe_probabilities(scored.labels_NL, to_probability(scored.log_odds_NL), names, scored.weight_N)


def _measures(scored: ScoredSplit, names: Sequence[str]) -> dict[str, float | None]:
    """Return the quality of scores, the mean probability and the prevalence, means over measured labels."""
    described = _description(scored, names)
    measured_NL = (scored.labels_NL != NOT_MEASURED).astype(np.float64)
    weight_NL = measured_NL if scored.weight_N is None else measured_NL * scored.weight_N[:, None]
    total_L = weight_NL.sum(axis=0)
    counts_L = total_L > 0

    def mean(values_NL: npt.NDArray[Any]) -> float | None:
        sum_L = (weight_NL * values_NL).sum(axis=0)
        return float((sum_L[counts_L] / total_L[counts_L]).mean()) if counts_L.any() else None

    found = {name: described[name] for name in MEASURES}
    expected, positive = mean(to_probability(scored.log_odds_NL)), mean(scored.labels_NL == 1)
    return {**found, "mean_probability": expected, "prevalence": positive}
