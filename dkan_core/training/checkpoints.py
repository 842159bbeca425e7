"""Checkpoints: all that a run needs to go on as if it had never stopped, in one file that is whole or not there.

A file holds the state, the snapshots that wait for the evaluator, the best model so far, and as metadata the ledger,
the history, the settings and the fingerprint of the data. What is random in training is a function of seed and step,
so that there is no generator to keep.

Shape suffixes: P trained numbers, K arrays of the state, V parameters in a snapshot, N snapshots.
"""

import hashlib
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load

from dkan_core.config import TrainConfig
from dkan_core.errors import ConfigError, DataError, OutputError
from dkan_core.storage import filesystem, readable, staged_file, writable
from dkan_core.training.centre import checksum
from dkan_core.training.ledger import ENDINGS, Ledger
from dkan_core.training.memory import Snapshot
from dkan_core.training.optimizer import Float32

FORMAT = 2
KEPT_FILES = 2
MODEL_PREFIX = "model/"
RETRY_SECONDS = (0.5, 1.0, 2.0)
FREE_SETTINGS = (
    "device",
    "eval_device",
    "max_seconds",
    "exchange_timeout",
    "tensorboard",
    "checkpoint_steps",
    "checkpoint_uri",
    "resume",
)
"""What may be another in a run that goes on; everything else would change its course."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The state of a run after a step."""

    data: str
    """Fingerprint of the prepared data."""

    architecture: dict[str, Any]
    settings: dict[str, Any]
    """The resolved config."""

    ledger: Ledger
    """Its clock stands still: see ``Ledger.stopped``."""

    state_KP: Float32
    """Parameters, moments, moving average; then the workers' own moments."""

    history: list[dict[str, Any]] = field(default_factory=list)
    pending: list[tuple[Snapshot, Float32]] = field(default_factory=list)
    """Snapshots that were not evaluated, ``(V, P)`` each."""

    model: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the best model's folder."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do: not after time was up or an interrupt, or where a score is missing."""
        ending = ENDINGS[self.ledger.ended]
        return ending == "patience" or (ending == "epochs" and not self.pending)

    def has_no_time_left(self, config: TrainConfig) -> bool:
        """Whether no further step may be taken."""
        return config.max_seconds is not None and self.ledger.used >= config.max_seconds

    def is_out_of_time(self, config: TrainConfig) -> bool:
        """Whether a run with a limit of time has used it up, and a score is not missing."""
        return ENDINGS[self.ledger.ended] == "time" and self.has_no_time_left(config)

    def check_fits(self, data: str, config: TrainConfig, where: str) -> None:
        """Raise ConfigError unless a run of this data with these settings can go on from here.

        Args:
            data: Fingerprint of the prepared data.
            config: Resolved settings.
            where: What messages call the checkpoint.
        """
        if self.data != data:
            raise ConfigError(
                f"{where}: is of other data (fingerprint {self.data[:12]}, here {data[:12]}); "
                "train with that data, or without --resume"
            )
        ours = json.loads(json.dumps(asdict(config)))
        for name, value in self.settings.items():
            if name not in FREE_SETTINGS and ours.get(name) != value:
                raise ConfigError(
                    f"{where}: was trained with {name} {value}, not {ours.get(name)}; "
                    "go on with the same, or train without --resume"
                )


def save_checkpoint(folder: str, checkpoint: Checkpoint) -> str:
    """Write a checkpoint into a folder and remove all but the newest; return its path or URI.

    Raises:
        OutputError: The folder cannot be written, also when tried again; older checkpoints stay.
    """
    parts = _parts(checkpoint)
    uri = f"{folder}/step-{checkpoint.ledger.step:012d}.safetensors"
    for attempt, pause in enumerate((*RETRY_SECONDS, None), start=1):
        try:
            with staged_file(uri) as aside, aside.open("wb") as file:
                file.writelines(parts)
            break
        except OutputError as error:
            if pause is None or "disk is full" in str(error):
                raise
            logger.warning("checkpoint, attempt %d: %s; next in %.1f s", attempt, error, pause)
            time.sleep(pause)
    _prune(folder, uri.rsplit("/", 1)[1])
    return uri


def _prune(folder: str, newest: str) -> None:
    """Remove all but a checkpoint and the ones before it that are kept; what cannot be removed does no harm."""
    try:
        names = _names(folder)
        kept = [name for name in names if name <= newest][-KEPT_FILES:]
        _remove(folder, [name for name in names if name not in kept])
    except (DataError, OutputError) as error:
        logger.warning("older checkpoints stay: %s", error)


def _remove(folder: str, names: Sequence[str]) -> None:
    fs, root = filesystem(folder)
    with writable(folder):
        for name in names:
            fs.rm_file(f"{root}/{name}")


def load_checkpoint(uri: str) -> tuple[str, Checkpoint] | None:
    """Read the newest whole checkpoint of a folder, or one file; return its path or URI as well.

    Returns:
        None where there is none.

    Raises:
        DataError: The folder cannot be reached, or none of its checkpoints is whole.
    """
    if uri.endswith(".safetensors"):
        return uri, _read(uri)
    names = _names(uri)
    for name in reversed(names):
        try:
            return f"{uri}/{name}", _read(f"{uri}/{name}")
        except DataError as error:
            if name == names[0]:
                raise
            logger.warning("%s; the one before is taken", error)
    return None


def checkpoint_folder(config: TrainConfig, data: str) -> str:
    """Return the folder or URI that the settings name for checkpoints, with ``{run}`` filled in; empty for none.

    A run that is started again with the same data and settings finds its own checkpoints there, and no other does.

    Args:
        config: Resolved settings.
        data: Fingerprint of the prepared data.
    """
    fixed = {name: value for name, value in asdict(config).items() if name not in FREE_SETTINGS}
    run = hashlib.sha256(json.dumps([data, fixed]).encode()).hexdigest()[:16]
    return (config.checkpoint_uri or "").replace("{run}", run).rstrip("/")


def find_checkpoint(where: str, config: TrainConfig, data: str) -> Checkpoint | None:
    """Return the checkpoint that a run is to go on from, if it is to and there is one.

    Args:
        where: Folder or URI of the run's own checkpoints.
        config: Resolved settings.
        data: Fingerprint of the prepared data.

    Raises:
        ConfigError: The one that was asked for is not there, or is of other data or settings.
        DataError: It cannot be read.
    """
    if config.resume == "never":
        return None
    source = where if config.resume == "auto" else config.resume
    found = load_checkpoint(source)
    if found is None:
        if config.resume != "auto":
            raise ConfigError(f"resume {source}: there is no checkpoint")
        logger.info("no checkpoint in %s: training from the start", where)
        return None
    uri, checkpoint = found
    checkpoint.check_fits(data, config, uri)
    logger.info("going on from %s", uri)
    return checkpoint


def clear_checkpoints(folder: str, *, allowed: bool) -> None:
    """Remove a folder's checkpoints, so that later ones are not mistaken for those of the run that begins.

    Raises:
        OutputError: There are some, and they may not be removed.
    """
    names = _names(folder)
    if names and not allowed:
        raise OutputError(
            f"{folder}: already holds checkpoints; pass --resume auto to go on from them, or --overwrite to remove them"
        )
    _remove(folder, names)


def _names(folder: str) -> list[str]:
    fs, root = filesystem(folder)
    with readable(folder):
        fs.invalidate_cache()
        found = fs.ls(root, detail=False) if fs.exists(root) else []
    names = (name.rstrip("/").rsplit("/", 1)[-1] for name in found)
    return sorted(name for name in names if re.fullmatch(r"step-\d+\.safetensors", name))


def _parts(checkpoint: Checkpoint) -> list[bytes | memoryview]:
    """Return what a safetensors file of a checkpoint consists of, the state as it lies in memory, not copied."""
    arrays: dict[str, np.ndarray[Any, Any]] = {"state": np.ascontiguousarray(checkpoint.state_KP)}
    for index, (_, values_VP) in enumerate(checkpoint.pending):
        arrays[f"pending.{index}"] = np.ascontiguousarray(values_VP)
    for name, content in checkpoint.model.items():
        arrays[f"{MODEL_PREFIX}{name}"] = np.frombuffer(content, np.uint8)
    ledger = checkpoint.ledger
    facts = {
        "format": FORMAT,
        "data": checkpoint.data,
        "architecture": checkpoint.architecture,
        "settings": checkpoint.settings,
        "ledger": asdict(replace(ledger, checksum=ledger.checksum or checksum(arrays["state"]))),
        "history": checkpoint.history,
        "pending": [asdict(snapshot) for snapshot, _ in checkpoint.pending],
    }
    header: dict[str, Any] = {"__metadata__": {"dkan": json.dumps(facts)}}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        kind = "F32" if array.dtype == np.float32 else "U8"
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [
        len(text).to_bytes(8, "little"),
        text,
        *(array.reshape(-1).view(np.uint8).data for array in arrays.values()),
    ]


def _read(uri: str) -> Checkpoint:
    fs, path = filesystem(uri)
    with readable(uri):
        content = fs.cat_file(path)
    try:
        length = int.from_bytes(content[:8], "little")
        facts = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["dkan"])
        arrays = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"{uri}: is no whole checkpoint of dkan ({error})") from error
    if facts["format"] != FORMAT:
        raise DataError(f"{uri}: has format {facts['format']}; this dkan reads format {FORMAT}")
    checkpoint = Checkpoint(
        data=facts["data"],
        architecture=facts["architecture"],
        settings=facts["settings"],
        ledger=Ledger(**facts["ledger"]),
        state_KP=arrays["state"],
        history=facts["history"],
        pending=[(Snapshot(**plain), arrays[f"pending.{index}"]) for index, plain in enumerate(facts["pending"])],
        model={
            name.removeprefix(MODEL_PREFIX): array.tobytes()
            for name, array in arrays.items()
            if name.startswith(MODEL_PREFIX)
        },
    )
    if checksum(checkpoint.state_KP) != checkpoint.ledger.checksum:
        raise DataError(f"{uri}: is damaged (its checksum does not match)")
    return checkpoint
