"""A model on disk: a folder that is replaced as a whole, and read back without pickle and without trust."""

import ctypes
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import ConfigDict, Field, NonNegativeInt, model_validator
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.format.origin import Origin
from dkan_core.errors import DataError
from dkan_core.model.architecture import ModelConfig, additive_layout, ignored_names
from dkan_core.model.base import TabularModel
from dkan_core.model.build import build_model
from dkan_core.model.calibration import MAX_SCALE, MIN_SCALE
from dkan_core.model.model_folder import CARD, SCORES, WEIGHTS, ModelFolder, with_hashes
from dkan_core.model.parameter_count import count_parameters, product_bytes
from dkan_core.model.random_state import random_state
from dkan_core.model.sketch import sketched_layers
from dkan_core.report.templating import render_markdown
from dkan_core.utils.file_names import CONFIG, METRICS, PREPROCESSOR
from dkan_core.utils.resources import available_memory
from dkan_core.utils.schemas import Schema
from dkan_core.utils.storage.failures import output_error
from dkan_core.utils.storage.files import json_text, remove, sync_folder, write_atomic
from dkan_core.utils.storage.paths import is_remote, local_path
from dkan_core.utils.storage.remote import exchange_remote, local_copy
from dkan_core.utils.storage.scratch import scratch_folder


def save_model(
    folder: str | Path,
    model: TabularModel,
    preprocessor: Preprocessor,
    metrics: dict[str, Any],
    *,
    also: Mapping[str, Any] | None = None,
) -> None:
    """Write a model, as ``write_model_files`` does.

    Args:
        folder: Path or fsspec URI, in the place of an earlier one.
        model: The model.
        preprocessor: Its encoding of raw rows.
        metrics: What is known of its quality.
        also: Further JSON files, by name.

    Raises:
        OutputError: ``folder`` is full or not writable; an earlier model stays.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    plain = {CONFIG: model.config.to_dict(), PREPROCESSOR: preprocessor.to_dict(), METRICS: metrics, **(also or {})}
    files = {name: json_text(content).encode() for name, content in plain.items()}
    # Safetensors holds numbers alone: reading it runs no code, as unpickling would.
    files |= {WEIGHTS: save(state), CARD: model_card(model.config, preprocessor, metrics).encode()}
    write_model_files(folder, with_hashes(files))


def write_model_files(folder: str | Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a model, by name, so that ``folder`` always holds a whole one.

    Locally the old folder and the new one change hands in one step. A bucket knows no such step: there the new files
    lie aside, whole, before they are copied over the old ones, one by one.

    Args:
        folder: Path or fsspec URI of a folder.
        files: Content by name.

    Raises:
        DataError: A name is not that of a file in the folder itself.
        OutputError: ``folder`` is full or not writable; an earlier model stays.
    """
    # Names may come from an untrusted folder: none may lead out of the model's own.
    for name in files:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise DataError(f"{folder}: {name!r} is not the name of a file in a model's folder")
    if is_remote(folder):
        with scratch_folder() as scratch:
            for name, content in files.items():
                (scratch / name).write_bytes(content)
            exchange_remote(scratch, str(folder), last=CONFIG)
        return
    # A whole folder at once: new weights beside an old encoding would score nonsense.
    with _replaced(local_path(folder)) as aside:
        for name, content in files.items():
            write_atomic(aside / name, content)


def are_current(metrics: Mapping[str, Any]) -> bool:
    """Return whether validation metrics describe the current model: edits that were not measured remove the scores."""
    return not metrics.get("edits") or all(SCORES in facts for facts in metrics.get("labels", {}).values())


def model_card(config: ModelConfig, preprocessor: Preprocessor, metrics: dict[str, Any]) -> str:
    """Return what a person should know of a model, as Markdown."""
    return render_markdown(
        "model_card",
        config=config,
        layers=config.widths,
        terms=additive_layout(config) if config.additive is not None else None,
        metrics=metrics,
        is_current=are_current(metrics),
        ignored=ignored_names(config, preprocessor),
        numeric=[feature.name for feature in preprocessor.numeric],
        categories=preprocessor.categories,
    )


def asides(folder: Path) -> tuple[Path, Path]:
    """Return where a model is made and where an earlier one waits to be removed: a killed command may leave both."""
    return folder.with_name(f".{folder.name}.partial"), folder.with_name(f".{folder.name}.old")


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of ``folder`` when the block ends well."""
    aside, old = asides(folder)
    try:
        remove(aside)
        aside.mkdir(parents=True)
        yield aside
        _swap(aside, folder, old)
    except OSError as error:
        raise output_error(folder, error) from error
    finally:
        remove(aside)


def _swap(aside: Path, folder: Path, old: Path) -> None:
    """Put ``aside`` in the place of ``folder``; on Linux both names change hands in one step, elsewhere by ``old``."""
    if not folder.exists():
        aside.rename(folder)
    elif not _exchange(aside, folder):
        # For file systems that cannot exchange, such as NFS: for a moment there is no model, and a kill in it leaves
        # both.
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


Share = Annotated[float, Field(ge=0, le=1)]


class _Metrics(Schema):
    """Base of the metrics of a model or a label; further keys hold numbers and texts."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int | float | str | None] = Field(init=False)


class ScoreCounts(Schema):
    """The distribution of a label's scores on validation, as ``data.encoding.histograms.count_up_to`` counts."""

    knots: list[Share]
    rows: list[NonNegativeInt]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.rows) != len(self.knots) + 2:
            raise ValueError(f"rows: must hold {len(self.knots) + 2} counts, got {len(self.rows)}")
        return self


class LabelMetrics(_Metrics):
    """Metrics of a label in ``metrics.json``."""

    threshold: Share
    """Operating threshold: the one with the best F1 on validation."""

    calibration_scale: float | None = None
    """Factor of the log-odds by calibration; None where an earlier dkan wrote this."""

    calibration_shift: float | None = None
    """What calibration adds to the log-odds."""

    scores: ScoreCounts | None = None
    """None where an earlier dkan wrote this."""


class ModelMetrics(_Metrics):
    """Contents of ``metrics.json``: the metrics on validation."""

    average_precision: Share
    epoch: Annotated[float, Field(ge=0)]
    labels: dict[str, LabelMetrics]
    refit_rows: Annotated[int, Field(ge=2)] | None = None
    """Rows of train and valid together, on which a second training took place (``TrainConfig.refit``); the metrics are
    those of the first, on the valid split, which it had not seen."""

    software: str | None = None
    """Versions of dkan, torch, numpy and Python in training; None where an earlier dkan wrote this."""

    origin: Origin | None = None
    """Origin of the data that it was trained on; None if an earlier dkan wrote this, or the rows came from no files."""

    earlier_origins: list[Origin] | None = None
    """Origins of the data of the earlier trainings that it continues, the last one first; None: it continues none."""

    edits: list[dict[str, str | float | list[str]]] | None = None
    """What was changed by hand in an additive model, in this order; None where nothing was."""

    edits_split: str | None = None
    """Where the quality before and after the last edits was measured."""

    edits_before: dict[str, float | None] | None = None
    """Quality before the last edits; None where it was not measured."""

    edits_after: dict[str, float | None] | None = None


class SavedModel:
    """A model read from its folder, ready to score.

    Args:
        folder: Folder of a model, or of a run.

    Raises:
        DataError: The folder is no model; or a file of it is missing or damaged, or does not fit the others.
    """

    def __init__(self, folder: Path) -> None:
        self.files = ModelFolder(folder)
        self.folder = self.files.folder
        self.config = self.files.read_json(ModelConfig, CONFIG)
        self.preprocessor = self.files.read_json(Preprocessor, PREPROCESSOR)
        self.config.check_encoding(self.preprocessor, str(self.folder / CONFIG))
        self.metrics = self._read_metrics()
        self.module = self._read_module()

    def _read_metrics(self) -> dict[str, Any]:
        metrics = self.files.read_json(ModelMetrics, METRICS)
        if {*metrics.labels} != {*self.config.labels}:
            raise DataError(
                f"{self.folder / METRICS}: labels: must be those of {CONFIG}, {list(self.config.labels)}, "
                f"got {list(metrics.labels)}"
            )
        return metrics.model_dump(exclude_unset=True)

    def _read_module(self) -> TabularModel:
        where, content = self.folder / WEIGHTS, self.files.read(WEIGHTS)
        try:
            state = load(content)
        except (SafetensorError, ValueError, KeyError, OverflowError, RuntimeError) as error:
            raise DataError(f"{where}: is not a complete safetensors file ({error})") from error
        check_count(self.config, state, where)
        # The factors of a sketch may be small where their product is not.
        if product_bytes(self.config) > available_memory():
            raise DataError(f"{where}: the first layer's weights need {product_bytes(self.config):,} bytes of memory")
        # Its initial weights are random, and at once replaced; the caller's random state stays as it is.
        with random_state():
            module = build_model(self.config)
        check_weights(module.state_dict(), state, where)
        module.load_state_dict(state)
        for layer in sketched_layers(module):
            layer.keep_weight()
        return module.eval()

    @property
    def thresholds(self) -> dict[str, float]:
        """Operating threshold of each label: the one with the best F1 on validation."""
        return {label: self.metrics["labels"][label]["threshold"] for label in self.config.labels}

    def parameters(self) -> int:
        """Return the number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.module.parameters() if parameter.requires_grad)


def load_model(uri: str | Path) -> SavedModel:
    """Return the model at a path or fsspec URI: its folder, or that of the run that it lies in.

    Raises:
        DataError: There is none; or a file of it is missing or damaged, or does not fit the others.
    """
    with local_copy(uri) as folder:
        return SavedModel(folder)


def check_count(config: ModelConfig, state: Mapping[str, Tensor], where: Path) -> None:
    """Check how many weights were read, before memory is taken for a model of that architecture.

    Raises:
        DataError: There are more or fewer than the architecture has.
    """
    expected, found = count_parameters(config), sum(tensor.numel() for tensor in state.values())
    if found != expected:
        raise DataError(f"{where}: does not fit {CONFIG}, which asks for {expected:,} numbers; it holds {found:,}")


def check_weights(expected: Mapping[str, Tensor], state: Mapping[str, Tensor], where: Path) -> None:
    """Check weights that were read before they are used.

    Args:
        expected: Weights of a new model of the same architecture.
        state: What was read.
        where: The file, for messages.

    Raises:
        DataError: A weight is missing or unknown, or has another shape or type, or is not finite.
    """
    odd = sorted({*expected} ^ {*state})
    if odd:
        what = "missing" if odd[0] in expected else "unknown"
        raise DataError(f"{where}: does not fit {CONFIG}: {odd[0]!r} is {what}")
    for name, tensor in state.items():
        wanted = expected[name]
        if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
            raise DataError(
                f"{where}: does not fit {CONFIG}: {name} must be {wanted.dtype} {list(wanted.shape)}, "
                f"got {tensor.dtype} {list(tensor.shape)}"
            )
        if not tensor.isfinite().all():
            raise DataError(f"{where}: {name} holds a number that is not finite")
        # A percent more on both sides: the bounds are float64, the tensor is float32.
        if name == "calibration_scale" and not ((tensor > 0.99 * MIN_SCALE) & (tensor < 1.01 * MAX_SCALE)).all():
            raise DataError(f"{where}: {name} must be from {MIN_SCALE} to {MAX_SCALE}, got {tensor.tolist()}")
        if name.endswith("rbf.grid") and not torch.allclose(tensor, wanted):
            raise DataError(f"{where}: {name} is not the grid of {CONFIG}")
