"""Rows that are encoded in bulk: the bytes of ``Preprocessor.transform``, by every variant of the native extension."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkan_core.data.encoding import bulk
from dkan_core.data.encoding.bulk import BulkEncoder
from dkan_core.data.encoding.edges import code_edges
from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.preprocessor import NumericFeature, Preprocessor, normal_scores, quantize
from dkan_core.native.library import native_library, require_library, variant_names
from tests.native import needs_native

VARIANTS = range(len(variant_names(require_library())) if native_library() else 0)

RANDOM = np.random.default_rng(0)
COLUMNS = {
    "normal": RANDOM.normal(size=3000),
    "heavy tails": np.tan(RANDOM.uniform(-1.57, 1.57, 3000)) ** 5,
    "far from 0": 1e6 + RANDOM.normal(size=3000),
    "integers": RANDOM.integers(-3, 40, 3000).astype(float),
    "two values": RANDOM.integers(0, 2, 3000).astype(float),
    "one value": np.ones(3000),
    "another value": np.full(3000, -2.5),
    "mostly 0": np.where(RANDOM.random(3000) < 0.9, 0, RANDOM.normal(size=3000)),
    "tiny": 1e-40 * RANDOM.normal(size=3000),
    "both zeros": np.where(RANDOM.random(3000) < 0.5, -0.0, RANDOM.integers(0, 3, 3000)),
    "huge": np.r_[-3e38, 3e38, RANDOM.normal(size=2998)],
}


@pytest.fixture(params=VARIANTS, ids=lambda index: variant_names(require_library())[index])
def variant(request: pytest.FixtureRequest) -> Iterator[None]:
    require_library().dkan_use_variant(request.param)
    yield
    require_library().dkan_use_variant(0)


def make_table(rows: int = 3000, *, seed: int = 0) -> pa.Table:
    """Return columns of every kind, some with missing values, more than a native task takes."""
    random = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {}
    for number, (name, values) in enumerate(COLUMNS.items()):
        values = random.permutation(values)[:rows]
        mask = random.random(len(values)) < (0, 0.2)[number % 2]
        columns[name] = pa.array(values.astype(np.float32), mask=mask)
        columns[f"{name} in float64"] = pa.array(values, mask=~mask & (random.random(len(values)) < 0.1))
    columns["bytes"] = pa.array(random.integers(-100, 100, rows).astype(np.int8))
    columns["city"] = pa.array(random.choice(np.array(["Oslo", "Rome", "Bern"]), rows).tolist())
    columns |= {f"x{index}": pa.array(random.normal(size=rows).astype(np.float32)) for index in range(60)}
    return pa.table(columns)


def encoded(preprocessor: Preprocessor, rows: pa.RecordBatch, indices: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    record = np.dtype(
        [("key", "<u8"), ("numeric", "u1", len(preprocessor.numeric)), ("categorical", "<i4", len(preprocessor.coded))]
    )
    records = np.zeros(len(indices), record)
    BulkEncoder(preprocessor).encode([rows], "rows", indices, records)
    return records


@needs_native
@pytest.mark.usefixtures("variant")
def test_native_codes_are_those_of_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table()
    numeric = [name for name in table.column_names if name != "city"]
    preprocessor = fit_preprocessor(table.slice(0, 2000), numeric, ["city"], "uint8", "rows")
    # A slice, so that neither values nor bitmaps begin at their buffers' first byte; with what is no number.
    unlike = pa.array([np.nan, np.inf, -np.inf, -0.0, 3e38, -3e38, 1e-45, None], pa.float32())
    changed = table.set_column(0, "normal", pa.concat_arrays([unlike, table["normal"].combine_chunks()[8:]]))
    rows = changed.slice(3).combine_chunks().to_batches()[0]
    indices = np.random.default_rng(1).permutation(len(rows))
    found = encoded(preprocessor, rows, indices)
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "native_library", lambda: None)
        expected = encoded(preprocessor, rows, indices)
    assert len(preprocessor.numeric) % 8 and len(preprocessor.numeric) > 64
    assert found.tobytes() == expected.tobytes()
    assert len(np.unique(found["numeric"])) == 256
    monkeypatch.setattr(bulk, "MIN_ROWS", len(rows))
    halves = pa.Table.from_batches([rows.slice(0, 1000), rows.slice(1000)])
    for part in (rows, halves, rows.slice(1)):  # natively twice, and too few for that
        arrays, wanted = BulkEncoder(preprocessor).transform(part, "rows"), preprocessor.transform(part, "rows")
        assert {name: (each.dtype, each.tobytes()) for name, each in arrays.items()} == {
            name: (each.dtype, each.tobytes()) for name, each in wanted.items()
        }


@needs_native
def test_encoding_whose_slopes_overflow_falls_back() -> None:
    feature = NumericFeature(name="x", knots=[-1.7e308, 1.7e308], scores=[-1.0, 1.0])
    assert code_edges(feature, np.dtype(np.float64)) is None
    preprocessor = Preprocessor(numeric=[feature], coded=[], numeric_dtype="uint8")
    rows = pa.record_batch({"x": [-1e308, 0.0, 5.0, None]})
    found = encoded(preprocessor, rows, np.arange(4))["numeric"]
    np.testing.assert_array_equal(found, preprocessor.transform(rows, "rows")["numeric"])


@settings(max_examples=40)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=60),
    probes=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20),
    kind=st.sampled_from(["f4", "f8"]),
)
def test_edges_decide_every_code(values: list[float], probes: list[float], kind: str) -> None:
    table = pa.table({"x": pa.array(values, pa.float64())})
    feature = fit_preprocessor(table, ["x"], [], "uint8", "rows").numeric[0]
    found = code_edges(feature, np.dtype(kind))
    if found is None:
        return
    limits = np.finfo(kind).min, np.finfo(kind).max
    near = np.r_[
        found.edges,
        np.nextafter(found.edges, limits[0]),
        np.nextafter(found.edges, limits[1]),
        values,
        probes,
        limits,
        0,
        -0.0,
    ]
    near = near.astype(kind)
    expected = quantize(normal_scores(near.astype(np.float64), feature), "uint8")
    np.testing.assert_array_equal(found.codes[np.searchsorted(found.edges, near, side="right")], expected)


class Forgetful(dict[Any, Any]):
    """Keeps nothing, as where another thread puts its own in the place of each entry."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


@needs_native
def test_edges_outlive_their_place_in_what_threads_share() -> None:
    table = make_table()
    numeric = [name for name in table.column_names if name != "city"]
    preprocessor = fit_preprocessor(table, numeric, ["city"], "uint8", "rows")
    rows, indices = table.to_batches()[0], np.arange(len(table))
    expected = encoded(preprocessor, rows, indices)
    preprocessor.__dict__["kept"] = Forgetful()
    assert np.array_equal(encoded(preprocessor, rows, indices), expected)
