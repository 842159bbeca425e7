"""Splits of data sets other than those that defaults were chosen on and results are published for.

    python -m benchmarks.splits FILE.parquet ... [--folds 4] [--random 0] [--out build/splits]

writes ``NAME-FOLD.parquet`` with a column ``split``, which ``benchmarks.quality`` uses. Rows are assigned to ten parts
by the hash of their number (of ``group_id`` if there is one), as in ``dkan prepare``. The last two parts, its test
split, are left out. Of the rest, each fold validates on one part and tests on another.

``--random N`` writes ``NAME-random-SEED.parquet`` for the seeds 1 to N instead: all rows, 70% for training, 10% for
validation and 20% for testing, by the hash of their number (or group) and the seed.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.quality.data import GROUP, SPLIT
from dkan_core.data.hashing import splitmix64, value_keys

PARTS, DEVELOPMENT_PARTS = 10, 8
MAX_FOLDS = DEVELOPMENT_PARTS // 2


def main() -> None:
    """Write the splits of every file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--folds", type=int, default=MAX_FOLDS, choices=range(1, MAX_FOLDS + 1))
    parser.add_argument("--random", type=int, default=0, help="random splits of all rows instead of folds")
    parser.add_argument("--out", type=Path, default=Path("build/splits"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for file in options.files:
        rows = pq.read_table(file)
        for seed in range(1, options.random + 1):
            pq.write_table(at_random(rows, seed), options.out / f"{file.stem}-random-{seed}.parquet")
        for fold in range(0 if options.random else options.folds):
            pq.write_table(without_test(rows, fold), options.out / f"{file.stem}-{fold}.parquet")


def without_test(rows: pa.Table, fold: int) -> pa.Table:
    """Return the rows that are not for testing, with a column that says what each is for; "test" is the unseen part."""
    part = splitmix64(split_keys(rows)) % np.uint64(PARTS)
    valid, unseen = DEVELOPMENT_PARTS - 1 - 2 * fold, DEVELOPMENT_PARTS - 2 - 2 * fold
    split = np.select([part == valid, part == unseen], ["valid", "test"], "train")
    return rows.append_column(SPLIT, pa.array(split)).filter(pa.array(part < DEVELOPMENT_PARTS))


def at_random(rows: pa.Table, seed: int) -> pa.Table:
    """Return all rows with a column that says what each is for: 70% "train", 10% "valid", 20% "test"."""
    part = splitmix64(split_keys(rows) ^ splitmix64(np.array([seed], dtype=np.uint64))) % np.uint64(PARTS)
    split = np.select([part >= DEVELOPMENT_PARTS, part == DEVELOPMENT_PARTS - 1], ["test", "valid"], "train")
    return rows.append_column(SPLIT, pa.array(split))


def split_keys(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """Return what rows are split by: their groups if they have any, their numbers otherwise."""
    if GROUP in rows.column_names:
        return value_keys(rows[GROUP].combine_chunks())
    return np.arange(len(rows), dtype=np.uint64)


if __name__ == "__main__":
    main()
