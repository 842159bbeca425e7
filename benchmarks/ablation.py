"""What each ingredient of the default model is worth: AP without it, on other splits of each data set.

    python -m benchmarks.ablation FILE.parquet ... [--folds 2] [--variants "no crosses,16 centers"]

Every variant is trained in this process on the same prepared data, seeds and splits, those of ``benchmarks.splits``:
each fold validates on one part of the rows and has another part that no choice of a run sees.
"""

import argparse
import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.quality.data import GROUP, SPLIT
from benchmarks.splits import MAX_FOLDS, without_test
from dkan_core import PrepareConfig, TrainConfig, prepare
from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.evaluation.metrics import macro_average_precision
from dkan_core.scoring.prepared import score_split
from dkan_core.training.roles.in_process import train_single
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.sizing import PAPER_GRID, WIDE_GRID

DEFAULT = "default"
Change = Callable[[ResolvedTrainConfig], ResolvedTrainConfig]

logger = logging.getLogger("benchmarks.ablation")


def _set(**settings: Any) -> Change:
    return lambda config: replace(config, **settings)


def _one_member(config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    return replace(config, members=1, hidden=(config.members * config.hidden[0],))


def _half_width(config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    return replace(config, hidden=tuple(width // 2 for width in config.hidden))


def _plain(config: ResolvedTrainConfig) -> ResolvedTrainConfig:
    low, high = PAPER_GRID
    return replace(config, model="fastkan", input_norm="layer", members=1, hidden=(64,), grid_min=low, grid_max=high)


CROSSES, FACTORS, GROUPS, MODEL = (
    "dkan_core.training.setup.feature_crosses",
    "dkan_core.training.setup.code_factors",
    "dkan_core.training.setup.parameter_groups",
    "dkan_core.model.architecture",
)
NO_VALUES = {f"{CROSSES}.MIN_VALUE_GAIN": math.inf, f"{CROSSES}.PLENTIFUL_ROWS": math.inf}
VARIANTS: dict[str, tuple[Change, dict[str, Any]]] = {
    "one member of the same total width": (_one_member, {}),
    "members half as wide": (_half_width, {}),
    "no weights for exact values": (_set(), NO_VALUES),
    "weights for all exact values": (_set(), {f"{CROSSES}.PLENTIFUL_ROWS": 0}),
    "no crosses": (_set(), {f"{CROSSES}.MAX_CROSSES": 0}),
    "codes decay like other weights": (_set(), {f"{GROUPS}.MIN_CODE_DECAY": 1.0, f"{GROUPS}.MAX_CODE_DECAY": 1.0}),
    "embeddings of rare codes learn like other weights": (_set(), {f"{GROUPS}.MIN_CODE_RATE": 1.0}),
    "embeddings of many codes start at random": (_set(), {f"{FACTORS}.MIN_GAIN": math.inf}),
    "weight decay 0.1": (_set(weight_decay=0.1), {}),
    "binary columns through the basis": (_set(), {f"{MODEL}.MAX_BINARY_KNOTS": 0}),
    "no dropout of binary inputs": (_set(binary_dropout=0.0), {}),
    "no dropout of hidden units": (_set(dropout=0.0), {}),
    "half the learning rate": (lambda config: replace(config, learning_rate=0.5 * config.learning_rate), {}),
    "no average over epochs": (_set(ema_decay=0.0), {}),
    "not blended with an additive model": (_set(blend=False), {}),
    "16 centers": (_set(num_centers=16), {}),
    "LayerNorm on the inputs": (_set(input_norm="layer"), {}),
    "grid from -2 to 2": (_set(grid_min=PAPER_GRID[0], grid_max=PAPER_GRID[1]), {}),
    "grid from -3 to 3": (_set(grid_min=WIDE_GRID[0], grid_max=WIDE_GRID[1]), {}),
    "one plain FastKAN": (_plain, {}),
}


def main() -> None:
    """Run the ablation and write ``ablation.json`` and ``ablation.md``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--folds", type=int, default=2, choices=range(1, MAX_FOLDS + 1))
    parser.add_argument("--variants", default=",".join(VARIANTS), help="separated by commas; default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("build/ablation"))
    options = parser.parse_args()
    variants = options.variants.split(",")
    if unknown := [name for name in variants if name not in VARIANTS]:
        parser.error(f"--variants: unknown {unknown[0]!r}; expected some of: {', '.join(VARIANTS)}")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    runs: list[dict[str, Any]] = []
    for fold in range(options.folds):
        for file in options.files:
            runs += measure(file, fold, variants)
            (options.out / "ablation.json").write_text(json.dumps(runs, indent=1))
            (options.out / "ablation.md").write_text(table(runs, variants))


def measure(file: Path, fold: int, variants: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield AP and CPU seconds of the default and of each variant on one split of a file."""
    names = pq.read_schema(file).names
    labels = tuple(name for name in names if name == "label" or name.startswith("label_"))
    group = GROUP if GROUP in names else None
    with tempfile.TemporaryDirectory() as scratch:
        source, folder = Path(scratch) / "rows.parquet", Path(scratch) / "prepared"
        pq.write_table(without_test(pq.read_table(file), fold), source)
        prepared = prepare(source, folder, PrepareConfig(label=labels, split_column=SPLIT, group=group, seed=fold))
        base = resolve_for(TrainConfig(device="cpu", workers=1, seed=fold, architecture_search=False), prepared)
        for name in (DEFAULT, *variants):
            change, constants = VARIANTS.get(name, (_set(), {}))
            with patched(constants):
                found = fit(folder, change(base))
            logger.info("%s, fold %d, %s: %s", file.stem, fold, name, found)
            yield {"set": file.stem, "fold": fold, "variant": name, **found}


@contextmanager
def patched(constants: dict[str, Any]) -> Iterator[None]:
    """Let the constants of modules have other values inside the block."""
    with ExitStack() as stack:
        for name, value in constants.items():
            stack.enter_context(patch(name, value))
        yield


def fit(folder: Path, config: ResolvedTrainConfig) -> dict[str, float]:
    """Return the best AP on validation, that model's AP on the unseen part, and CPU seconds of the training."""
    started, manifest = time.process_time(), read_manifest(folder)
    with open_split(folder, manifest, "train") as train, open_split(folder, manifest, "valid") as valid:
        result = train_single(train, valid, manifest, config)
    cpu = time.process_time() - started
    with open_split(folder, manifest, "test") as test:
        scored = score_split(result.model, test, torch.device("cpu"))
    unseen = macro_average_precision(scored.labels_NL, scored.log_odds_NL, scored.weight_N)
    return {"valid": result.metrics["average_precision"], "unseen": unseen, "cpu": cpu}


def table(runs: list[dict[str, Any]], variants: Sequence[str]) -> str:
    """Return Markdown: what AP each variant loses against the default, by set and on average over sets.

    A loss is the mean over validation and the unseen part, and over folds. The interval is 1.96 standard errors over
    sets: it says how far the mean may be off on other sets like these.
    """
    found = {(run["set"], run["fold"], run["variant"]): run for run in runs}
    sets = sorted({run["set"] for run in runs})
    lines = [
        f"| left out or changed | {' | '.join(sets)} | mean loss, 95% over sets | CPU |",
        f"|---|{'---:|' * (len(sets) + 2)}",
    ]
    for variant in variants:
        pairs = [(found[run["set"], run["fold"], DEFAULT], run) for run in runs if run["variant"] == variant]
        if not pairs:
            continue
        losses = {name: [_loss(one, other) for one, other in pairs if one["set"] == name] for name in sets}
        means = [float(np.mean(values)) for values in losses.values() if values]
        half = 1.96 * float(np.std(means, ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.nan
        cells = " | ".join(f"{np.mean(values):+.4f}" if values else "" for values in losses.values())
        cpu = float(np.exp(np.mean([math.log(other["cpu"] / one["cpu"]) for one, other in pairs])))
        lines.append(f"| {variant} | {cells} | {np.mean(means):+.4f} ± {half:.4f} | {cpu:.2f}x |")
    return "\n".join(lines) + "\n"


def _loss(default: dict[str, Any], other: dict[str, Any]) -> float:
    return float(np.mean([default[part] - other[part] for part in ("valid", "unseen")]))


if __name__ == "__main__":
    main()
