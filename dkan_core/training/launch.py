"""``train``: resolves settings, makes the run's folder ready, runs it, and says how it ended.

No process of a run imports the caller's script, so a script needs no ``__main__`` guard and a notebook works.
"""

import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dkan_core.config import TrainConfig
from dkan_core.data.loader import open_split
from dkan_core.data.manifest import open_prepared
from dkan_core.errors import DkanError, OutputError, TrainingError
from dkan_core.model.saved_model import write_model_files
from dkan_core.storage import (
    check_free,
    is_remote,
    leftovers,
    local_path,
    output_error,
    read_if_there,
    remove,
    replace_remote,
    write_atomic,
    write_json,
)
from dkan_core.training.checkpoints import Checkpoint, checkpoint_folder, clear_checkpoints, find_checkpoint
from dkan_core.training.evaluator import MODEL_FOLDER
from dkan_core.training.ledger import ENDINGS
from dkan_core.training.meeting import TorchRun
from dkan_core.training.processes import ForkServer
from dkan_core.training.recipe import MAX_RATE, describe_strategy, resolve, scaled_learning_rate
from dkan_core.training.run import LOGS, Outcome, Run
from dkan_core.training.torchrun import Ranks, follow

METRICS, HISTORY, TENSORBOARD, CHECKPOINTS = "metrics.json", "history.jsonl", "tensorboard", "checkpoints"
WRITTEN = (MODEL_FOLDER, HISTORY, LOGS, TENSORBOARD, METRICS)
OUTPUTS = (CHECKPOINTS, *WRITTEN)
LEDGER_FACTS = ("ranges", "rows", "refused", "backoffs", "late", "reassigned")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run ended with."""

    average_precision: float
    """Validation AP of the best model; the mean over labels."""

    model: str
    """Folder of the best model: path or URI."""

    metrics: dict[str, Any]
    """What ``metrics.json`` holds."""

    history: list[dict[str, Any]]
    """One entry an evaluation."""


def train(
    prepared: str | Path, run: str | Path, config: TrainConfig | None = None, *, overwrite: bool = False
) -> TrainResult:
    """Train on a prepared data set, evaluate beside it, keep the best model by validation AP.

    Args:
        prepared: Folder or fsspec URI that ``prepare`` wrote.
        run: Folder or URI for ``model/``, ``metrics.json``, ``history.jsonl``, ``logs/`` and ``checkpoints/``.
        config: Settings; what is None in it is chosen from the data.
        overwrite: Whether an earlier run in ``run`` may be replaced.

    Under torchrun every rank calls it: the one of rank 0 writes the run, and all return what it returns.

    Raises:
        UserError: The data, a setting or the output folder is wrong.
        TrainingError: A process died again and again, or the loss is no finite number; the message says where.
        KeyboardInterrupt: Ctrl-C was pressed twice; pressed once, the run ends in order.
    """
    config = config or TrainConfig()
    torchrun = TorchRun.read()
    ranks = Ranks(torchrun) if torchrun else None
    if ranks is not None and ranks.place.rank:
        return _take_part(prepared, config, ranks)
    check_free(run, ours=OUTPUTS, overwrite=overwrite or config.resume == "auto")
    with open_prepared(prepared) as (data, manifest):
        for split in ("train", "valid"):
            open_split(data, manifest, split).close()
        asked, config = config, resolve(config, manifest.splits["train"].rows, len(manifest.labels), torchrun)
        where = checkpoint_folder(config, manifest.fingerprint) or f"{run}/{CHECKPOINTS}"
        checkpoint = find_checkpoint(where, config, manifest.fingerprint)
        if checkpoint is None or config.resume != "auto":
            _check_replaceable(run, where, config, overwrite=overwrite)
        log_plan(config, rate_is_default=asked.learning_rate is None)
        if checkpoint is not None and checkpoint.has_no_time_left(config):
            used, limit = checkpoint.ledger.used, config.max_seconds
            logger.warning("no time is left: %.1f s of --max-seconds %g are used; no step is taken", used, limit)
        if ranks is not None:
            ranks.gather()
        with _run_folder(run) as folder:
            _make_ready(folder, checkpoint)
            if checkpoint is not None and (checkpoint.is_finished or checkpoint.is_out_of_time(config)):
                outcome = _take_over(folder, checkpoint, ranks)
            else:
                with ForkServer() as fork_server:
                    outcome = Run(data, manifest, folder, config, where, checkpoint, fork_server, ranks).execute()
            metrics = _write_metrics(folder, config, outcome)
    best = float(metrics["average_precision"])
    logger.info("best validation average precision %.4f; model in %s/%s", best, run, MODEL_FOLDER)
    result = TrainResult(
        average_precision=best, model=f"{run}/{MODEL_FOLDER}", metrics=metrics, history=outcome.history
    )
    if ranks is not None:
        ranks.tell("result", asdict(result))
        ranks.part()
    return result


def _take_over(folder: Path, checkpoint: Checkpoint, ranks: Ranks | None) -> Outcome:
    """Write what a finished run has left in its checkpoint; nothing is trained."""
    if ranks is not None:
        ranks.tell("plan", None)
    lines = "".join(json.dumps(entry) + "\n" for entry in checkpoint.history)
    write_atomic(folder / HISTORY, lines)
    return Outcome(checkpoint.history, checkpoint.ledger, {})


def _write_metrics(folder: Path, config: TrainConfig, outcome: Outcome) -> dict[str, Any]:
    """Write what is known of the best model and of the run, and return it."""
    if not (folder / MODEL_FOLDER).exists():
        raise TrainingError("no evaluation gave finite scores; lower learning_rate or check the row weights")
    metrics: dict[str, Any] = json.loads((folder / MODEL_FOLDER / METRICS).read_text(encoding="utf-8"))
    metrics["training"] = _training_facts(config, outcome)
    write_json(folder / METRICS, metrics)
    return metrics


def _check_replaceable(run: str | Path, where: str, config: TrainConfig, *, overwrite: bool) -> None:
    """Make way for a run that does not go on from its own checkpoints.

    Raises:
        OutputError: There is a finished run, or checkpoints of another one, that may not be replaced.
    """
    if config.resume == "auto" and not overwrite and read_if_there(f"{run}/{METRICS}") is not None:
        raise OutputError(
            f"{run}: holds a finished run and {where} no checkpoint of it; pass --overwrite to replace it"
        )
    if config.resume not in ("auto", "never") and config.resume.startswith(where):
        return
    clear_checkpoints(where, allowed=overwrite)


def _take_part(prepared: str | Path, config: TrainConfig, ranks: Ranks) -> TrainResult:
    """Run the member of a rank above 0; return what rank 0 returns."""
    with ExitStack() as stack:
        try:
            data, manifest = stack.enter_context(open_prepared(prepared))
            config = resolve(config, manifest.splits["train"].rows, len(manifest.labels), ranks.place)
        except DkanError as error:
            ranks.give_up(error)
            raise
        return TrainResult(**follow(ranks, data, manifest, config))


def log_plan(config: TrainConfig, *, rate_is_default: bool) -> None:
    """Log what a resolved config comes to, and whether the limit of the learning rate was reached.

    Args:
        config: Resolved settings.
        rate_is_default: Whether the learning rate was chosen by rule.
    """
    logger.info("strategy %s: %s", config.strategy, describe_strategy(config))
    logger.info(
        "training: device %s, workers %d, rows a step %d, learning rate %.2g, epochs %d",
        config.device,
        config.workers,
        config.batch_size,
        config.learning_rate,
        config.epochs,
    )
    assert config.batch_size is not None
    by_rule = scaled_learning_rate(config.batch_size, config.lr_scaling)
    if rate_is_default and by_rule > MAX_RATE:
        logger.info(
            "learning rate capped: %s scaling to batches of %d rows would give %.2g; the limit is %.2g, and "
            "--learning-rate sets another",
            config.lr_scaling,
            config.batch_size,
            by_rule,
            MAX_RATE,
        )


@contextmanager
def _run_folder(run: str | Path) -> Iterator[Path]:
    """Yield the local folder of a run; that of a remote one is uploaded at the end, also when the run fails."""
    if not is_remote(run):
        try:
            yield local_path(run)
        except OSError as error:
            raise output_error(run, error) from error
        return
    with tempfile.TemporaryDirectory(prefix="dkan-") as folder:
        try:
            yield Path(folder)
        except BaseException:
            # What failed is the news; that its logs cannot be uploaded either is not.
            with suppress(OutputError):
                replace_remote(Path(folder), str(run), WRITTEN)
            raise
        replace_remote(Path(folder), str(run), WRITTEN)


def _make_ready(folder: Path, checkpoint: Checkpoint | None) -> None:
    """Make the folders of a run, without what an earlier one has left; one that goes on keeps its logs."""
    gone = (METRICS,) if checkpoint is not None else tuple(reversed(WRITTEN))
    for name in gone:
        remove(folder / name)
    for name in WRITTEN:
        for entry in leftovers(name):
            remove(folder / entry)
    (folder / LOGS).mkdir(parents=True, exist_ok=True)
    if checkpoint is not None and checkpoint.model:
        write_model_files(folder / MODEL_FOLDER, checkpoint.model)


def _training_facts(config: TrainConfig, outcome: Outcome) -> dict[str, Any]:
    last, ledger = outcome.history[-1], outcome.ledger
    return {
        "strategy": config.strategy,
        "mode": config.mode,
        "device": config.device,
        "workers": config.workers,
        "members": config.members,
        "hidden": list(config.hidden or ()),
        "batch_size": config.batch_size,
        "learning_rate": config.learning_rate,
        "epochs": config.epochs,
        "epochs_done": last["epoch"],
        "steps": last["step"],
        "seconds": last["seconds"],
        "seed": config.seed,
        "ended": ENDINGS[ledger.ended],
        "ledger": {name: getattr(ledger, name) for name in LEDGER_FACTS},
        "replaced": outcome.replaced,
    }
