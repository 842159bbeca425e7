"""SVMlight files as Parquet with a list of ids a row, which ``dkan prepare`` takes as one group of features.

    python examples/svmlight.py train.svm rows.parquet [--nonzero]
    dkan prepare rows.parquet --out prepared --label label

A line is ``LABEL ID:1 ID:1 ...``: labels above 0 count as 1, others as 0. Ids stay as they are in the file. Values
other than 0 and 1 are refused, as an id is there or not; ``--nonzero`` takes each value but 0 for an id that is there.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_svmlight_file

# Of text that is read at once.
BLOCK_BYTES = 64 << 20
# scikit-learn wants to know how many ids there are.
MAX_ID = 2**31 - 2

SCHEMA = pa.schema([("label", pa.int8()), ("ids", pa.list_(pa.int64()))])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="SVMlight file")
    parser.add_argument("out", type=Path, help="Parquet file to write")
    parser.add_argument("--nonzero", action="store_true", help="take each value but 0 for an id that is there")
    options = parser.parse_args()
    convert(options.source, options.out, nonzero=options.nonzero)


def convert(source: Path, out: Path, *, nonzero: bool = False) -> None:
    """Write the rows of an SVMlight file as Parquet, a block of them at a time.

    Args:
        source: The SVMlight file.
        out: The Parquet file.
        nonzero: Whether each value but 0 is an id that is there.

    Raises:
        ValueError: A value is neither 0 nor 1, and ``nonzero`` is not set.
    """
    with pq.ParquetWriter(out, SCHEMA) as writer:
        for rows in read_blocks(source, nonzero=nonzero):
            writer.write_table(rows)


def read_blocks(source: Path, *, nonzero: bool) -> Iterator[pa.Table]:
    """Yield the rows of an SVMlight file, some 64 MB of text at a time."""
    for start in range(0, source.stat().st_size, BLOCK_BYTES):
        # Ids as they are in the file: a block that happens to have no id 0 says nothing of where they begin.
        matrix, label_N = load_svmlight_file(
            str(source), n_features=MAX_ID + 1, zero_based=True, offset=start, length=BLOCK_BYTES
        )
        wrong = matrix.data[(matrix.data != 0) & (matrix.data != 1)]
        if len(wrong) and not nonzero:
            raise ValueError(f"{source}: holds the value {wrong[0]:g}; expected 0 or 1, or set --nonzero")
        matrix.eliminate_zeros()
        offsets, ids = matrix.indptr.astype(np.int32), matrix.indices.astype(np.int64)
        lists = pa.ListArray.from_arrays(offsets, ids)
        yield pa.table([pa.array((label_N > 0).astype(np.int8)), lists], schema=SCHEMA)


if __name__ == "__main__":
    main()
