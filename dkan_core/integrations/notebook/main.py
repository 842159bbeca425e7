"""``main``: train from two loaders that are in memory, as from a notebook."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dkan_core.config import PrepareConfig, TrainConfig, check_config
from dkan_core.data.encoding.fitting import MIN_CATEGORY_ROWS
from dkan_core.data.encoding.raw_columns import numbers
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.data.preparation.prepare import prepare
from dkan_core.data.source.column_types import is_number, is_text
from dkan_core.errors import DataError
from dkan_core.evaluation.metrics import macro_average_precision
from dkan_core.integrations.notebook.predictor import Predictor
from dkan_core.integrations.notebook.rows import LabelledRows, read_labelled_rows
from dkan_core.model.saved_model import load_model
from dkan_core.training.launcher.train import train
from dkan_core.utils.file_names import MODEL_FOLDER
from dkan_core.utils.messages import counted
from dkan_core.utils.storage.paths import is_remote, local_path
from dkan_core.utils.storage.scratch import scratch_folder
from dkan_core.utils.torch_resources import best_device


@dataclass(frozen=True, kw_only=True)
class MainResult:
    """Result of ``main``."""

    validation_average_precision: float
    """Best average precision on the test loader, which also chose the best epoch; the mean over labels."""

    holdout_average_precision: float | None
    """Average precision on the holdout loader, which nothing was chosen by; None without one."""

    model: Predictor
    """The best model: called with raw rows it returns log-odds ``(N, L)``; ``model.network`` takes encoded ones."""

    path: str
    """The model's folder: a path or an fsspec URI."""

    def __repr__(self) -> str:
        held_out = self.holdout_average_precision
        holdout = "" if held_out is None else f", holdout_average_precision={held_out:.4f}"
        precision = f"validation_average_precision={self.validation_average_precision:.4f}"
        return f"MainResult({precision}{holdout}, path={self.path!r})"

    def predict_proba(self, rows: object) -> npt.NDArray[np.float32]:
        """Return the best model's probability that a label is 1, for raw rows in any form that ``main`` takes.

        Shape:
            - Output: ``(N,)`` for one label, ``(N, L)`` for several

        Raises:
            DataError: The features are not those of training: too few, too many, in another order, of another kind.
        """
        return self.model.predict_proba(rows)


def main(
    train_loader: object,
    test_loader: object,
    config: TrainConfig | None = None,
    *,
    holdout_loader: object = None,
    run: str | Path | None = None,
    overwrite: bool = False,
) -> MainResult:
    """Train on one loader and choose the best epoch by average precision on the other.

    ``test_loader`` is a validation set: it chooses the epoch, the calibration and the thresholds, so the average
    precision on it is somewhat better than that on new rows. Give a ``holdout_loader`` for an unbiased one.

    A loader is a torch DataLoader over pairs (features, labels), or such a pair: two arrays, tensors or frames in a
    tuple or a list. A tuple or list of anything else is one of several loaders, whose rows follow each other. NaN in
    features is missing. Features of a frame keep the names of their columns.

    Args:
        train_loader: Rows to train on.
        test_loader: Rows to choose the best epoch by, and to report the average precision of.
        config: Settings.
        holdout_loader: Rows that are scored once, by the best model at the end.
        run: Folder or fsspec URI of the run; by default a new temporary folder, which stays.
        overwrite: Whether an earlier run in ``run`` may be replaced.

    Returns:
        The best model, its folder, and its average precision on ``test_loader``, called that of validation, and on
        ``holdout_loader``.

    Shape:
        - features ``(N, F)``; labels ``(N,)`` or ``(N, L)`` with 0, 1, or NaN for not measured

    Raises:
        ConfigError: A setting is wrong.
        DataError: Shapes do not fit, labels hold anything else, or a feature says nothing.
        OutputError: ``run`` cannot take the result.
    """
    config = config or TrainConfig()
    check_config(TrainConfig, config)
    loaders = {"train_loader": train_loader, "test_loader": test_loader}
    loaders |= {"holdout_loader": holdout_loader} if holdout_loader is not None else {}
    rows = {name: read_labelled_rows(loader, name) for name, loader in loaders.items()}
    # prepare would refuse these rows, too, but its message could not name the loader or the feature's number.
    _check_features(rows["train_loader"])
    for name, others in rows.items():
        _check_alike(rows["train_loader"], others, name)
        _check_classes(others, name)
    splits = {"train": rows["train_loader"], "valid": rows["test_loader"]}
    with _progress_shown(), _run_folder(run) as folder:
        average_precision, path = _train(splits, folder, config, overwrite=overwrite)
    model = _load(path, rows["train_loader"])
    holdout = rows.get("holdout_loader")
    return MainResult(
        validation_average_precision=average_precision,
        holdout_average_precision=None if holdout is None else _average_precision(model, holdout),
        model=model,
        path=path,
    )


@contextmanager
def _run_folder(run: str | Path | None) -> Iterator[str]:
    """Yield the folder of a run; a temporary one without a model in it is removed if the block raises."""
    if run is not None:
        yield str(run) if is_remote(run) else str(local_path(run))
        return
    folder = tempfile.mkdtemp(prefix="dkan-run-")
    try:
        yield folder
    except BaseException:
        if not (Path(folder) / MODEL_FOLDER).exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _progress_shown() -> Iterator[None]:
    """Show a line per epoch if logging is not set up, as in a notebook: training may take an hour."""
    ours = logging.getLogger("dkan_core")
    if ours.hasHandlers():
        yield
        return
    handler, level = logging.StreamHandler(), ours.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(level)


def _check_features(rows: LabelledRows) -> None:
    """Raise DataError where a feature holds no information: it has no value, or is text that never repeats."""
    for index, name in enumerate(rows.features.column_names):
        column = rows.features[name]
        is_category = is_text(column.type) or pa.types.is_boolean(column.type)
        if is_category:
            counts = pc.value_counts(column.drop_null()).field("counts")
            lacking = (pc.max(counts).as_py() or 0) < MIN_CATEGORY_ROWS
        elif is_number(column.type):
            lacking = bool(np.isnan(numbers(rows.features, name, "train_loader")).all())
        else:  # times
            lacking = column.null_count == len(column)
        if lacking:
            what = "text that repeats" if is_category else "value"
            raise DataError(
                f"train_loader: feature {index} ({name!r}) holds no {what} in {len(column):,} rows; leave it out"
            )


def _check_alike(first: LabelledRows, other: LabelledRows, name: str) -> None:
    """Raise DataError unless a loader has the features and labels of train_loader."""
    features = (first.features.num_columns, other.features.num_columns)
    labels = (first.labels_NL.shape[1], other.labels_NL.shape[1])
    if len({*features}) > 1 or len({*labels}) > 1:
        ours = f"{counted(features[0], 'feature')} and {counted(labels[0], 'label')}"
        raise DataError(f"train_loader has {ours}; {name} has {features[1]} and {labels[1]}")
    for index, (wanted, found) in enumerate(zip(first.features.schema, other.features.schema, strict=True)):
        if first.is_named and other.is_named and wanted.name != found.name:
            raise DataError(f"{name}: feature {index} is {found.name!r}; train_loader has {wanted.name!r} there")
        if wanted.type != found.type and not (is_number(wanted.type) and is_number(found.type)):
            raise DataError(
                f"{name}: feature {index} ({wanted.name!r}) is {found.type}; in train_loader it is {wanted.type}"
            )


def _check_classes(rows: LabelledRows, name: str) -> None:
    """Raise DataError unless every label to train on has both classes, and one of those to evaluate."""
    lacking = [index for index, labels_N in enumerate(rows.labels_NL.T) if not {0, 1} <= {*labels_N.tolist()}]
    # Training needs both classes of every label; average precision needs both of one label.
    needed = 1 if name == "train_loader" else rows.labels_NL.shape[1]
    if len(lacking) >= needed:
        labels_N = rows.labels_NL[:, lacking[0]]
        values, counts = np.unique(labels_N[labels_N != NOT_MEASURED], return_counts=True)
        seen = f"{values[0]} in {counted(int(counts[0]), 'row')}" if len(values) else "no measured value"
        raise DataError(f"{name}: label {lacking[0]} has one class only: {seen}")


def _train(splits: dict[str, LabelledRows], run: str, config: TrainConfig, *, overwrite: bool) -> tuple[float, str]:
    """Return the best average precision on the validation rows, and the folder of the best model."""
    features = splits["train"].features.column_names
    count = splits["train"].labels_NL.shape[1]
    labels = _unused_names(features, ["label"] if count == 1 else [f"label_{index}" for index in range(count)])
    (split_column,) = _unused_names([*features, *labels], ["split"])
    with scratch_folder() as scratch, _naming_the_loaders(str(scratch)):
        source, prepared = scratch / "rows.parquet", scratch / "prepared"
        tables = [
            _with_labels(rows, features, labels).append_column(split_column, pa.array([split] * len(rows.labels_NL)))
            for split, rows in splits.items()
        ]
        # Through Parquet and prepare, so that the model is the same as the command's. A column may hold integers in
        # one loader and floats in another.
        pq.write_table(pa.concat_tables(tables, promote_options="permissive"), source)
        # The caller holds the rows as well, and a second copy is not needed while training.
        del tables
        # The weights of an earlier model are valid only with its encoding.
        settings = PrepareConfig(label=tuple(labels), split_column=split_column, like=config.init_from)
        prepare(source, prepared, settings)
        result = train(prepared, run, config, overwrite=overwrite)
    return result.average_precision, result.model


def _unused_names(taken: list[str], names: list[str]) -> list[str]:
    """Return names that none of the features has."""
    while {*taken} & {*names}:
        names = [f"{name}_" for name in names]
    return names


def _with_labels(rows: LabelledRows, features: list[str], labels: list[str]) -> pa.Table:
    table = rows.features.rename_columns(features)
    for name, labels_N in zip(labels, rows.labels_NL.T, strict=True):
        table = table.append_column(name, pa.array(labels_N, mask=labels_N == NOT_MEASURED))
    return table


@contextmanager
def _naming_the_loaders(scratch: str) -> Iterator[None]:
    """Replace the names of temporary files in errors by the caller's arguments."""
    try:
        yield
    except DataError as error:
        if scratch not in str(error):
            raise
        text = str(error)
        for name in ("rows.parquet", "prepared"):
            text = text.replace(f"{scratch}/{name}", "train_loader, test_loader")
        raise DataError(text) from None


def _load(path: str, rows: LabelledRows) -> Predictor:
    saved = load_model(path)
    model = Predictor(saved.module, saved.preprocessor, rows.features.column_names, named=rows.is_named)
    return model.to(best_device())


def _average_precision(model: Predictor, rows: LabelledRows) -> float:
    return macro_average_precision(rows.labels_NL, model(rows.features.rename_columns(model.feature_names)).numpy())
