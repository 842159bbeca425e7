"""The output file of ``predict``, Parquet or CSV: its writer, and which files it may replace."""

import csv
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from dkan_core.data.source.column_types import is_uuid
from dkan_core.data.source.files import MAGIC, SUFFIXES
from dkan_core.data.source.parquet_files import open_parquet
from dkan_core.errors import OutputError
from dkan_core.scoring.output_columns import probability_column
from dkan_core.utils.storage.outputs import HEAD_BYTES, check_file_free, check_file_is_ours, check_suffix
from dkan_core.utils.storage.paths import filesystem

CSV = ".csv"
# Bytes are refused even where they hold text, as that is known only after reading them.
NOT_IN_CSV = {
    pa.types.is_nested: "nested values",
    pa.types.is_duration: "durations",
    pa.types.is_binary: "bytes",
    pa.types.is_large_binary: "bytes",
    pa.types.is_fixed_size_binary: "bytes",
    pa.types.is_binary_view: "bytes",
    is_uuid: "UUIDs",
}


def check_scores_file(out: str | Path, labels: tuple[str, ...], *, overwrite: bool) -> None:
    """Raise OutputError unless scores may be written to a file.

    Args:
        out: Path or fsspec URI; its suffix says which format is meant.
        labels: Labels of the model; a file without a column of their probabilities is not replaced.
        overwrite: Whether earlier scores may be replaced.
    """
    if str(out) == "-":
        raise OutputError("-: scores are not written to standard output; name a file")
    is_csv = check_suffix(out, (*SUFFIXES, CSV), "predictions are written as Parquet or CSV") == CSV
    beginning = b"" if is_csv else MAGIC
    check_file_is_ours(str(out), beginning=beginning)
    fs, path = filesystem(str(out))
    if not fs.exists(path) or not fs.size(path):
        return
    wanted = {probability_column(label) for label in labels}
    if is_csv:
        head = fs.cat_file(path, end=HEAD_BYTES).decode(errors="replace")
        found = {*next(csv.reader(io.StringIO(head)), [])}
    else:
        found = {*open_parquet(str(out)).schema_arrow.names}
    if not wanted & found:
        raise OutputError(
            f"{out}: holds other data than predictions of this model, which have a column {min(wanted)}, and would be "
            "replaced; choose another file"
        )
    check_file_free(str(out), overwrite=overwrite, beginning=beginning)


def check_holds_reasons(out: str | Path) -> None:
    """Raise OutputError where the file's format, by its name, has no lists."""
    if Path(str(out)).suffix.lower() == CSV:
        raise OutputError(f"{out}: reasons are lists, which CSV cannot hold; name a .parquet file")


def open_scores_file(out: str | Path, aside: Path, schema: pa.Schema) -> pcsv.CSVWriter | pq.ParquetWriter:
    """Return a writer of scores to ``aside``, of the format that the name of ``out`` asks for.

    Raises:
        OutputError: CSV cannot hold a column.
    """
    if Path(str(out)).suffix.lower() != CSV:
        return pq.ParquetWriter(aside, schema)
    for field in schema:
        found = next((found for fits, found in NOT_IN_CSV.items() if fits(field.type)), None)
        if found:
            raise OutputError(f"{out}: column {field.name!r} holds {found}, which CSV cannot; name a .parquet file")
    return pcsv.CSVWriter(aside, schema)
