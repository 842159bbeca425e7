"""The data for the runs: prepared folders as they are, Parquet prepared first, or else the flights of the demo."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from dkan_core import DataError, PrepareConfig, prepare
from dkan_core.data.format.manifest import read_manifest

ROOT = Path(__file__).parents[2]
GROUP, SPLIT = "date", "split"


@dataclass(frozen=True)
class DataSet:
    """Prepared data with a name."""

    name: str
    folder: Path

    @property
    def train_rows(self) -> int:
        """Rows of the train split."""
        return int(read_manifest(self.folder).splits["train"].rows)


def stage(sources: list[Path], scratch: Path, *, label: str, rows: int) -> list[DataSet]:
    """Return the data sets of these sources, of each Parquet source the first ``rows`` rows; 0 for all.

    Raises:
        UserError: A source is no data; the message says why.
    """
    found = []
    for number, source in enumerate(sources or [_flights(scratch)]):
        folder = source
        if not (source / "manifest.json").exists():
            folder = scratch / f"prepared-{number}"
            _prepare(source, folder, label, rows)
        found.append(DataSet(source.stem, folder.absolute()))
    return found


def _prepare(source: Path, folder: Path, label: str, rows: int) -> None:
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    data = ds.dataset(source, format="parquet")
    names = data.schema.names
    limited: str | Path = source
    if rows:
        limited = folder.with_suffix(".parquet")
        pq.write_table(pa.table(data.head(rows)), limited)
    split = SPLIT if SPLIT in names else None
    group = GROUP if GROUP in names else None
    prepare(str(limited), folder, PrepareConfig(label=tuple(label.split(",")), split_column=split, group=group))


def _flights(scratch: Path) -> Path:
    command = [sys.executable, str(ROOT / "examples/flights.py"), str(scratch / "flights")]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise DataError(f"the demo's flights: {made.stderr.strip()}; or name Parquet files")
    return scratch / "flights"
