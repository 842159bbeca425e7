"""Decimals are the numbers that they stand for, whatever their digits and wherever they are read."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import PrepareConfig, prepare
from dkan_core.config.prepare import SPLITS
from dkan_core.data.decimals import to_float64
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.hashing import content_keys
from dkan_core.data.source.reading import open_file, read_batches
from tests.data.tables import row_numbers

CENTS = np.random.default_rng(0).integers(-(10**4), 10**4, 3000)
PLAIN = [float(Decimal(int(cents)).scaleb(-2)) for cents in CENTS]
TYPES = [pa.decimal128(10, 2), pa.decimal128(38, 18), pa.decimal256(50, 3), pa.decimal128(38, 30)]


def prices(kind: pa.DataType) -> pa.Array:
    return pa.array([Decimal(int(cents)).scaleb(-2) for cents in CENTS], kind)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_decimal_is_the_nearest_float(kind: pa.DataType) -> None:
    column = prices(kind)
    assert to_float64(column).to_pylist() == PLAIN
    assert to_float64(column.slice(7, 100)).to_pylist() == PLAIN[7:107]
    parts = pa.chunked_array([pa.array([None], kind), column, column.slice(0, 0)])
    assert to_float64(parts).to_pylist() == [None, *PLAIN]


@pytest.mark.parametrize("kind", [pa.decimal128(38, 2), pa.decimal128(38, 0), pa.decimal128(20, -3)], ids=str)
def test_a_long_decimal_is_the_nearest_float_too(kind: pa.DataType) -> None:
    values = [Decimal(2**53 + step).scaleb(-kind.scale) for step in range(-4, 5)] + [Decimal(-(10**19)), None]
    expected = [None if value is None else float(value) for value in values]
    assert to_float64(pa.array(values, kind)).to_pylist() == expected


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_rows_of_decimals_are_encoded_as_those_of_floats(kind: pa.DataType) -> None:
    floats, decimals = pa.table({"price": PLAIN}), pa.table({"price": prices(kind)})
    fitted = fit_preprocessor(floats, ["price"], [], "uint8", "rows")
    assert fit_preprocessor(decimals, ["price"], [], "uint8", "rows").to_dict() == fitted.to_dict()
    (known, found) = (fitted.transform(rows, "rows") for rows in (floats, decimals))
    assert all(np.array_equal(known[name], found[name]) for name in known)
    first, second = (content_keys(rows.combine_chunks().to_batches()[0]) for rows in (floats, decimals))
    assert np.array_equal(first, second)


def test_narrow_decimals_keep_all_of_their_digits(tmp_path: Path) -> None:
    account = pa.array([Decimal(10**17 + row // 2).scaleb(-2) for row in range(10)], pa.decimal64(18, 2))
    pq.write_table(pa.table({"account": account}), tmp_path / "rows.parquet")
    (batch,) = read_batches(open_file(str(tmp_path / "rows.parquet")), ["account"])
    assert batch.column(0).to_pylist() == account.to_pylist()


def test_a_group_of_decimals_of_several_files_is_in_one_split(tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=len(CENTS))
    accounts = [Decimal(int(cents) % 300).scaleb(-1) for cents in CENTS]
    for name, kind in {"a": pa.decimal128(10, 1), "b": pa.decimal128(38, 18), "c": pa.float64()}.items():
        account = pa.array([float(each) for each in accounts] if name == "c" else accounts, kind)
        table = pa.table({"x": x, "account": account, "weight": np.arange(len(CENTS), dtype=float), "label": x > 0})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    config = PrepareConfig(label=("label",), group="account", weight="weight")
    prepare([tmp_path / f"{name}.parquet" for name in "abc"], tmp_path / "prepared", config)
    found = [{accounts[row] for row in row_numbers(tmp_path / "prepared", split)} for split in SPLITS]
    assert sum(map(len, found)) == len({*accounts})
