"""A model folder as an MLflow model: loaded without pickle, it scores frames as ``dkan predict`` scores Parquet.

MLflow is told the name of this module, and calls ``_load_pyfunc`` with the path of the folder.
"""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

import dkan_core
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.data.source.column_types import is_text
from dkan_core.data.source.frames import to_table, without_empty_types
from dkan_core.data.source.times import parsed_times
from dkan_core.errors import DataError
from dkan_core.evaluation.drift.unseen import UnseenWatch
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.output_columns import probability_column
from dkan_core.scoring.probabilities import check_probabilities, score
from dkan_core.utils.torch_resources import best_device

# The name of the rows in messages, as in MLflow.
WHERE = "model_input"


class MlflowScorer:
    """Scores frames."""

    def __init__(self, folder: Path) -> None:
        self._saved = SavedModel(folder)
        self._device = best_device()
        self._saved.module.to(self._device)
        # Warns for the rows of several calls together: a server calls ``predict`` for each request.
        self._watch = UnseenWatch(self._saved.preprocessor, WHERE, always_pause=False)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:  # noqa: ARG002 - MLflow's
        """Return a frame with a probability per label and row, with the index of the input.

        Args:
            model_input: A pandas frame with the columns of training; others are not looked at.
            params: None are known.

        Raises:
            DataError: A column is missing or of another kind than in training.
        """
        import pandas as pd

        names = [name for name in self._saved.preprocessor.columns if name in model_input.columns]
        read = without_empty_types(to_table(model_input[names], names, WHERE))
        table = _parsed(read, self._saved.preprocessor, WHERE)
        arrays = self._saved.preprocessor.transform(table, WHERE)
        found_NL = score(self._saved.module, arrays, self._device)
        labels = self._saved.config.labels
        check_probabilities(found_NL, labels, WHERE)
        self._watch.count(arrays)
        return pd.DataFrame(found_NL, columns=[probability_column(label) for label in labels], index=model_input.index)


def _parsed(table: pa.Table, preprocessor: Preprocessor, where: str) -> pa.Table:
    """Return rows with times and bytes parsed from text, which MLflow's servers and examples have, as they use JSON."""
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name, zone in preprocessor.times.items():
        if name in columns:
            columns[name] = parsed_times(columns[name].combine_chunks(), pa.timestamp("us", zone), name, where)
    for feature in preprocessor.sparse:
        if feature.vector_bytes and feature.name in columns:
            columns[feature.name] = _parsed_bytes(columns[feature.name], feature.name, where)
    return pa.table(columns)


def _parsed_bytes(column: pa.ChunkedArray, name: str, where: str) -> pa.ChunkedArray | pa.Array:
    if not is_text(column.type):
        return column
    try:
        found = [None if text is None else base64.b64decode(text) for text in column.to_pylist()]
    except ValueError as error:
        raise DataError(f"{where}: column {name!r}: expected vectors of bits in base64 ({error})") from None
    return pa.array(found, pa.binary())


def _load_pyfunc(path: str) -> MlflowScorer:
    return MlflowScorer(Path(path))


def log_model(folder: Path, step: int) -> None:
    """Log a model folder to MLflow's active run, with its signature and an example of its input."""
    import mlflow

    saved = SavedModel(folder)
    mlflow.pyfunc.log_model(
        name="model",
        loader_module=__name__,
        data_path=str(folder),
        step=step,
        signature=signature_of(saved),
        input_example=example_of(saved.preprocessor),
        # Given, because MLflow would otherwise load the model in another process to find them.
        pip_requirements=[f"dkan=={dkan_core.__version__}", "pandas"],
    )


def signature_of(saved: SavedModel) -> Any:
    """Return MLflow's ``ModelSignature`` of a model: the columns that it reads and writes.

    Every column is of the type "any". MLflow would refuse whole numbers where it is told "double", and pandas
    categories where it is told "string", which the encoding takes; ``predict`` checks columns as ``dkan predict`` does.
    """
    from mlflow.models import ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, Schema

    anything: Any = AnyType
    inputs = Schema([ColSpec(anything(), name) for name in example_of(saved.preprocessor).columns])
    outputs = Schema([ColSpec("float", probability_column(label)) for label in saved.config.labels])
    return ModelSignature(inputs=inputs, outputs=outputs)


def example_of(preprocessor: Preprocessor) -> Any:
    """Return a row as a frame: the median of each numeric column, and the most frequent value of each other one."""
    import pandas as pd

    row: dict[str, Any] = {}
    for numeric in preprocessor.numeric:
        median, time = numeric.knots[len(numeric.knots) // 2], numeric.time
        if time is None:
            row[numeric.name] = median
        elif time.part == "seconds":
            instant = pd.Timestamp(median, unit="s")
            row[time.column] = instant if time.zone is None else instant.tz_localize("UTC").tz_convert(time.zone)
    for feature in preprocessor.category_features:
        value = next(iter(feature.vocabulary), "")
        row[feature.name] = value == "true" if feature.holds_booleans else value
    for sparse in preprocessor.sparse:
        row[sparse.name] = bytes(sparse.vector_bytes) if sparse.vector_bytes else sparse.ids[:1]
    return pd.DataFrame([row])
