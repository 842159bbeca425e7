"""A model on disk: a folder that is replaced as a whole, and read back without pickle."""

import ctypes
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from dkan_core.data.encoding import Preprocessor
from dkan_core.errors import DataError
from dkan_core.model.tabular import ModelConfig, TabularFastKAN
from dkan_core.storage import output_error, remove, sync_folder, write_atomic, write_json

WEIGHTS, CONFIG, PREPROCESSOR, METRICS, CARD = (
    "model.safetensors",
    "config.json",
    "preprocessor.json",
    "metrics.json",
    "README.md",
)
MODEL_FILES = (WEIGHTS, CONFIG, PREPROCESSOR, METRICS, CARD)


def save_model(
    folder: Path,
    model: TabularFastKAN,
    config: ModelConfig,
    preprocessor: Preprocessor,
    metrics: dict[str, Any],
    *,
    also: Mapping[str, Any] | None = None,
) -> None:
    """Write a model so that ``folder`` always holds a whole one: aside first, then swapped in.

    Args:
        folder: Where it goes, in the place of an earlier one.
        model: Its parameters.
        config: Its architecture.
        preprocessor: Its encoding of raw rows.
        metrics: What is known of its quality.
        also: Further JSON files, by name.

    Raises:
        OutputError: The disk is full or not writable; an earlier model stays.
    """
    with _replaced(folder) as aside:
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_atomic(aside / WEIGHTS, save(state))
        write_json(aside / CONFIG, config.to_dict())
        write_json(aside / PREPROCESSOR, preprocessor.to_dict())
        write_json(aside / METRICS, metrics)
        for name, content in (also or {}).items():
            write_json(aside / name, content)
        write_atomic(aside / CARD, _card(config, preprocessor, metrics))


def write_model_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a model, by name, so that ``folder`` always holds a whole one.

    Raises:
        DataError: A name is none of a file in the folder itself.
        OutputError: The disk is full or not writable; an earlier model stays.
    """
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise DataError(f"{folder}: {name!r} is no name of a file in a model's folder")
    with _replaced(folder) as aside:
        for name, content in files.items():
            write_atomic(aside / name, content)


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``folder`` when the block ends well."""
    aside = folder.with_name(f".{folder.name}.partial")
    try:
        remove(aside)
        aside.mkdir(parents=True)
        yield aside
        _swap(aside, folder)
    except OSError as error:
        raise output_error(folder, error) from error
    finally:
        remove(aside)


def _swap(aside: Path, folder: Path) -> None:
    """Put ``aside`` in the place of ``folder``; on Linux both names change hands in one step."""
    if not folder.exists():
        aside.rename(folder)
    elif not _exchange(aside, folder):
        old = folder.with_name(f".{folder.name}.old")
        remove(old)
        folder.rename(old)
        aside.rename(folder)
        remove(old)
    sync_folder(folder.parent)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two folders atomically (renameat2 with RENAME_EXCHANGE); False where the system cannot."""
    at_cwd, exchange = -100, 2
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    return renameat2 is not None and renameat2(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange) == 0


def _card(config: ModelConfig, preprocessor: Preprocessor, metrics: dict[str, Any]) -> str:
    numeric = ", ".join(feature.name for feature in preprocessor.numeric) or "none"
    categories = ", ".join(feature.name for feature in preprocessor.coded if feature.kind == "category") or "none"
    lines = [
        f"# FastKAN model for {', '.join(config.labels)}",
        "",
        "Trained by dkan. Score new rows with `dkan predict FOLDER SRC... --out FILE`.",
        "",
        "| validation metric | value |",
        "|---|---:|",
        *(f"| {name} | {value} |" for name, value in metrics.items() if isinstance(value, int | float)),
        "",
        f"- Members: {config.members}",
        f"- Layers of each: {[*config.hidden, len(config.labels)]}",
        f"- Centers: {config.num_centers} on [{config.grid_min}, {config.grid_max}]",
        f"- Numeric features: {numeric}",
        f"- Categories: {categories}",
        "",
        "Probabilities are calibrated on the validation split. The model is no better than the data it saw.",
        "",
    ]
    return "\n".join(lines)


class SavedModel:
    """A model read from its folder, ready to score.

    Raises:
        DataError: The folder is no model, or a file of it is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / CONFIG).exists() and (folder / "model" / CONFIG).exists():
            folder = folder / "model"
        self.folder = folder
        try:
            self.config = ModelConfig.from_dict(self.read(CONFIG))
        except TypeError as error:
            raise DataError(f"{folder / CONFIG}: was written by another version of dkan ({error})") from error
        self.preprocessor = Preprocessor.from_dict(self.read(PREPROCESSOR))
        self.metrics = self.read(METRICS)
        self.module = TabularFastKAN(self.config)
        try:
            self.module.load_state_dict(load_file(folder / WEIGHTS))
        except (OSError, RuntimeError, SafetensorError) as error:
            raise DataError(f"{folder / WEIGHTS}: does not fit {CONFIG} ({error})") from error
        self.module.eval()

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the folder."""
        try:
            plain: dict[str, Any] = json.loads((self.folder / name).read_text(encoding="utf-8"))
            return plain
        except FileNotFoundError:
            raise DataError(f"{self.folder}: no {name} there; expected a model that `dkan train` wrote") from None
        except ValueError as error:
            raise DataError(f"{self.folder / name}: is damaged ({error})") from error

    @property
    def thresholds(self) -> dict[str, float]:
        """Operating threshold of each label: the one with the best F1 on validation."""
        return {label: self.metrics["labels"][label]["threshold"] for label in self.config.labels}

    def parameters(self) -> int:
        """Return the number of trained numbers."""
        return sum(parameter.numel() for parameter in self.module.parameters() if parameter.requires_grad)
