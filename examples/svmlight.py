"""Convert SVMlight files to Parquet with a list of ids per row, which ``dkan prepare`` reads as one group of features.

    python examples/svmlight.py train.svm rows.parquet [--nonzero]
    dkan prepare rows.parquet --out prepared --label label

A line is ``LABEL ID:1 ID:1 ...``: labels above 0 count as 1, others as 0. Ids are kept as they are in the file. An id
is either present or absent, so values other than 0 and 1 are an error; with ``--nonzero``, any value except 0 means
present.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_svmlight_file

# Text to read at once.
BLOCK_BYTES = 64 << 20
# scikit-learn requires the number of ids.
MAX_ID = 2**31 - 2

SCHEMA = pa.schema([("label", pa.int8()), ("ids", pa.list_(pa.int64()))])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="SVMlight file")
    parser.add_argument("out", type=Path, help="Parquet file to write")
    parser.add_argument("--nonzero", action="store_true", help="treat any value except 0 as present")
    options = parser.parse_args()
    convert(options.source, options.out, nonzero=options.nonzero)


def convert(source: Path, out: Path, *, nonzero: bool = False) -> None:
    """Write the rows of an SVMlight file as Parquet, block by block.

    Args:
        source: The SVMlight file.
        out: The Parquet file.
        nonzero: Whether any value except 0 means that the id is present.

    Raises:
        ValueError: A value is neither 0 nor 1, and ``nonzero`` is not set.
    """
    with pq.ParquetWriter(out, SCHEMA) as writer:
        for rows in read_blocks(source, nonzero=nonzero):
            writer.write_table(rows)


def read_blocks(source: Path, *, nonzero: bool) -> Iterator[pa.Table]:
    """Yield the rows of an SVMlight file, about 64 MB of text at a time."""
    for start in range(0, source.stat().st_size, BLOCK_BYTES):
        # Keep the ids of the file: whether they start at 0 or 1 cannot be told from a block without id 0.
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
