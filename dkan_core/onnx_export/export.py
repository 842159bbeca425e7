"""``export`` writes a saved model as an ONNX file and compares its results with the model's."""

import functools
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import dkan_core
from dkan_core.errors import DataError, OutputError
from dkan_core.model.saved_model import SavedModel, are_current, load_model
from dkan_core.onnx_export.encoding import add_encoding
from dkan_core.onnx_export.graph import PRODUCER, Graph
from dkan_core.onnx_export.network import add_probabilities
from dkan_core.onnx_export.verification import OUTPUT, largest_difference
from dkan_core.utils.extras import require
from dkan_core.utils.storage.outputs import check_file_free, check_suffix
from dkan_core.utils.storage.staging import staged_file

# Protocol buffers hold at most 2 GB; names and nodes of the widest graphs take a few megabytes of that.
MAX_CONSTANT_BYTES = 2**31 - (64 << 20)
# First byte of an ONNX file: number and type of the field ``ir_version``. The producer is the next field.
ONNX_BEGINNING = b"\x08"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """A file that was written, and how well it agrees with the model."""

    path: str
    """Path or URI of the file."""

    size: int
    """Bytes of the file."""

    rows: int
    """Generated rows on which file and model were compared."""

    largest_difference: float
    """Largest difference of a probability, on those rows."""


def export(
    model: str | Path,
    out: str | Path,
    *,
    missing_text: str = "",
    overwrite: bool = False,
) -> ExportResult:
    """Write a model as one file that runs without dkan: raw columns in, probabilities out.

    The file has an input ``(N, 1)`` for each column, float64 for numbers and string for categories, and one output,
    ``probabilities`` ``(N, labels)`` float32. A missing number is NaN. Before the file is
    written, onnxruntime runs it on rows that reach every boundary of the encoding; it must give the model's
    probabilities.

    Args:
        model: Folder that ``train`` wrote, or its ``model`` folder; a path or an fsspec URI.
        out: File to write; a path or an fsspec URI.
        missing_text: What stands for a missing category, as ONNX has no nulls.
        overwrite: Whether an earlier file of dkan may be replaced.

    Returns:
        Where the file is, and how well it agrees with the model.

    Raises:
        ConfigError: The packages for ONNX are not installed.
        DataError: The model is damaged, or one of its columns cannot be expressed in ONNX; the message names it.
        OutputError: The file does not give the model's probabilities, or ``out`` cannot be written; nothing
            half-written is left.
    """
    check_suffix(out, (".onnx",), "models are exported as ONNX")
    check = functools.partial(
        check_file_free, str(out), overwrite=overwrite, beginning=ONNX_BEGINNING, mark=PRODUCER.encode()
    )
    check()
    for package in ("onnx", "onnxruntime"):
        require(package, "onnx")
    saved = load_model(model)
    content = onnx_bytes(saved, missing_text)
    # Compared before the file is begun, so that a refused graph is never written under its name.
    largest, rows = largest_difference(content, saved, missing_text)
    with staged_file(out, check) as aside:
        aside.write_bytes(content)
    logger.info("exported %s to %s: differs by at most %.1e on %d generated rows", model, out, largest, rows)
    return ExportResult(path=str(out), size=len(content), rows=rows, largest_difference=largest)


def onnx_bytes(saved: SavedModel, missing_text: str = "") -> bytes:
    """Return a model as a serialized ONNX graph.

    Raises:
        DataError: A column of the model cannot be expressed.
        OutputError: The model is larger than a file may be.
    """
    from onnx import TensorProto, helper

    for feature in saved.preprocessor.sparse:
        raise DataError(
            f"{saved.folder}: column {feature.name!r} holds IDs, as many as a row has, and an input of the ONNX graph "
            "is one value a row; score with `dkan predict` or `dkan serve`"
        )
    for name in saved.preprocessor.columns:
        if name in saved.preprocessor.times:
            raise DataError(
                f"{saved.folder}: column {name!r} holds dates or times, which an ONNX graph cannot take apart; train "
                "with columns of numbers in its place, or score with `dkan predict`"
            )
        if name in ("", OUTPUT):
            raise DataError(
                f"{saved.folder}: column {name!r}: an input of an ONNX graph cannot have this name; rename it"
            )
    graph = Graph(reserved=[*saved.preprocessor.columns, OUTPUT])
    config = saved.config
    read = {*config.inputs.embedded, *config.missing, *(index for group in config.one_hot_groups for index in group)}
    read |= {*config.blended.coded} if config.blended is not None else set()
    tables = config.additive is not None or config.blended is not None
    columns = add_encoding(graph, saved.preprocessor, read, missing_text, tables=tables)
    add_probabilities(graph, saved.module, columns, OUTPUT)
    if graph.constant_bytes > MAX_CONSTANT_BYTES:
        raise OutputError(
            f"{saved.folder}: the model takes {graph.constant_bytes / 1e9:.1f} GB, and an ONNX file holds 2 GB; "
            "train with lower members or hidden, or score with `dkan predict`"
        )
    output = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["N", len(config.labels)])
    content: bytes = graph.model(output, _metadata(saved, missing_text), dkan_core.__version__).SerializeToString()
    return content


def _metadata(saved: SavedModel, missing_text: str) -> dict[str, str]:
    return {
        "dkan_version": dkan_core.__version__,
        "labels": json.dumps(saved.config.labels, ensure_ascii=False),
        # Empty for an edited model that was not measured since.
        "average_precision": repr(saved.metrics["average_precision"]) if are_current(saved.metrics) else "",
        # Fingerprint of the training data; a model of arrays in a notebook has none.
        "data_fingerprint": str(saved.metrics.get("data", "")),
        "missing_text": missing_text,
    }
