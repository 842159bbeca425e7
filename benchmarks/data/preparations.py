"""A preparation that measures itself in its own process: ``python -m benchmarks.data.preparations NAME SRC OUT``.

By dkan, and the same written in Polars and in DuckDB: split by a hash of the row number, the encoding from a sample of
the train split, every feature as uint8, the rows of each split in the order of another hash.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import NormalDist
from typing import Any

from benchmarks.timing import cpu_seconds
from dkan_core.cli.startup import import_pyarrow_without_pandas

LEVELS = [NormalDist().cdf(-3 + 6 * level / 254) for level in range(255)]
SPLITS = {"train": (0, 7), "valid": (7, 8), "test": (8, 10)}


def by_dkan(source: Path, out: Path) -> None:
    """Prepare with default settings, in a process that has imported what the command imports."""
    from dkan_core import PrepareConfig, prepare

    prepare(source, out, PrepareConfig(label=("label",)))


def by_polars(source: Path, out: Path) -> None:
    """Search each value's position among the train split's quantiles."""
    from dkan_core.data.preparation.statistics import sample_rows

    polars: Any = importlib.import_module("polars")
    rows = polars.scan_parquet(source).with_row_index("row")
    split = polars.col("row").hash(0) % 10
    frame = rows.with_columns(split=split, key=polars.col("row").hash(1)).collect()
    features = [name for name in frame.columns if name.startswith("f")]
    train = frame.filter(polars.col("split") < 7)
    sample = train.bottom_k(min(sample_rows(len(features)), len(train)), by="key")
    indices = (len(sample) * polars.Series(LEVELS)).cast(polars.UInt32).clip(0, len(sample) - 1)
    for name in features:
        knots = sample[name].sort()[indices]
        frame = frame.with_columns(knots.search_sorted(frame[name]).cast(polars.UInt8).alias(name))
    out.mkdir()
    for name, (first, last) in SPLITS.items():
        part = frame.filter(polars.col("split").is_between(first, last - 1)).sort("key")
        part.drop("row", "split", "key").write_parquet(out / f"{name}.parquet")


def by_duckdb(source: Path, out: Path) -> None:
    """Standardise each value: less than the others do, as SQL has no search in a sorted list."""
    duckdb: Any = importlib.import_module("duckdb")
    out.mkdir()
    with duckdb.connect(config={"temp_directory": str(out)}) as connection:
        connection.execute(
            "CREATE VIEW rows AS SELECT *, hash(file_row_number) % 10 AS split, hash(file_row_number + 1) AS key "
            f"FROM read_parquet('{source}', file_row_number = true)"
        )
        names = [row[0] for row in connection.execute("DESCRIBE rows").fetchall() if row[0].startswith("f0")]
        wanted = ", ".join(f"avg({name}), stddev({name})" for name in names)
        found = connection.execute(f"SELECT {wanted} FROM rows WHERE split < 7").fetchone()
        scores = ", ".join(
            f"CAST(round(greatest(-3, least(3, ({name} - {mean}) / {scale})) * {127 / 3}) + 128 AS UTINYINT) AS {name}"
            for name, mean, scale in zip(names, found[::2], found[1::2], strict=True)
        )
        for name, (first, last) in SPLITS.items():
            connection.execute(
                f"COPY (SELECT {scores}, label FROM rows WHERE split >= {first} AND split < {last} ORDER BY key) "
                f"TO '{out / name}.parquet' (FORMAT parquet)"
            )


PREPARATIONS: dict[str, Callable[[Path, Path], None]] = {"dkan": by_dkan, "polars": by_polars, "duckdb": by_duckdb}


def installed() -> list[str]:
    """Return the names of the preparations whose library there is."""
    return [name for name in PREPARATIONS if name == "dkan" or find_spec(name) is not None]


def peak_memory() -> int:
    """Return the most bytes of memory held since this program began: rusage counts those of its parent before, too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main(name: str, source: str, out: str) -> None:
    """Prepare once, and print CPU seconds, seconds and peak resident memory as JSON."""
    import_pyarrow_without_pandas()
    importlib.import_module("dkan_core.data.preparation.prepare" if name == "dkan" else name)
    before, started = cpu_seconds(), time.perf_counter()
    PREPARATIONS[name](Path(source), Path(out))
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - before
    measured = {"cpu_seconds": cpu, "seconds": seconds, "peak_bytes": peak_memory()}
    sys.stdout.write(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
