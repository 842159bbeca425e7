"""Quantities and dates that are stored as text, and integers that number rows, are named before a model is trained."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, FastKANClassifier, PrepareConfig, prepare
from dkan_core.data.encoding.column_hints import is_identifier, stored_as_text

ROWS = 1000
RNG = np.random.default_rng(0)
CENTS = RNG.integers(100, 9_999_999, ROWS)
TIMES = pd.Timestamp("2024-02-28") + pd.to_timedelta(RNG.integers(0, 10**8, ROWS), unit="s")

TEXTS: dict[str, tuple[str, Any]] = {
    "decimals": ("numbers", [f"{value / 100:.2f}" for value in CENTS]),
    "decimal commas": ("numbers", [f"{value / 100:.2f}".replace(".", ",") for value in CENTS]),
    "with gaps": ("numbers", ["n/a" if value % 7 == 0 else f"{value / 100:.2f}" for value in CENTS]),
    "dollars": ("amounts", [f"${value / 100:,.2f}" for value in CENTS]),
    "euros": ("amounts", [f"{value / 100:,.2f} €".translate(str.maketrans(",.", ".,")) for value in CENTS]),
    "currency codes": ("amounts", [f"USD {value / 100:.2f}" for value in CENTS]),
    "thousands": ("amounts", [f"{value:,}" for value in CENTS + 1000]),
    "losses": ("amounts", [f"(${value})" if value % 2 else f"-${value}" for value in CENTS]),
    "percent": ("amounts", [f"{value / 1e5:.1f}%" for value in CENTS]),
    "ISO dates": ("dates", [f"{time:%Y-%m-%d}" for time in TIMES]),
    "ISO times": ("dates", [time.isoformat() for time in TIMES]),
    "UTC": ("dates", [f"{time:%Y-%m-%dT%H:%M:%S.%fZ}" for time in TIMES]),
    "American": ("dates", [f"{time:%m/%d/%Y %I:%M %p}" for time in TIMES]),
    "German": ("dates", [f"{time:%d.%m.%y}" for time in TIMES]),
    "spelled out": ("dates", [f"{time:%d %b %Y}" if time.day % 2 else f"{time:%B %d, %Y}" for time in TIMES]),
    "millions": ("amounts", [f"1 {value:,}".replace(",", " ") for value in CENTS % 900_000 + 100_000]),
    "without a comma": ("dates", [f"{time:%b %d %Y}" for time in TIMES]),
    "articles": ("", [f"SKU{value:05}" for value in CENTS]),
    "units": ("", [f"{value} KWH" for value in CENTS]),
    "releases": ("", [f"1.{value % 40}.{value % 97}" for value in CENTS]),
    "sort codes": ("", [f"{value % 100:02}-{value % 97:02}-{value % 89:02}" for value in CENTS]),
    "names": ("", [f"name {value}" for value in CENTS]),
    "hex": ("", [f"{value:06x}" for value in CENTS]),
    "postal codes": ("", [f"{value % 99_999:05}" for value in CENTS]),
    "phones": ("", [f"{value % 999:03}-555-{value % 9999:04}" for value in CENTS]),
    "addresses": ("", [f"10.{value % 256}.{value % 255}.{value % 254}" for value in CENTS]),
    "versions": ("", [f"{value % 9}.{value % 8}.{value % 97}" for value in CENTS]),
    "grades": ("", [f"{value % 6}" for value in CENTS]),
    "stores": ("", [f"{value % 300}" for value in CENTS]),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_text_holds(name: str) -> None:
    kind, texts = TEXTS[name]
    assert stored_as_text(pa.array(texts)) == kind
    assert stored_as_text(pa.array(texts, pa.large_string())) == kind
    assert stored_as_text(pa.array([*texts, None])) == kind


@pytest.mark.parametrize(
    ("values", "numbers_rows"),
    [
        (np.arange(ROWS), True),
        (RNG.permutation(np.arange(5, 5 + 10 * ROWS, 10)), True),
        (pa.array([*range(ROWS), None, None]), True),
        (np.append(np.arange(ROWS), 3), False),
        (RNG.choice(10**9, ROWS, replace=False), False),
        (np.arange(50), False),
        (np.arange(ROWS) / 2, False),
    ],
    ids=["numbers", "steps of ten", "nulls", "one repeats", "far apart", "few", "floats"],
)
def test_integers_that_number_rows(values: Any, numbers_rows: bool) -> None:
    assert is_identifier(pa.array(values)) is numbers_rows


@pytest.mark.parametrize(
    ("name", "is_named_so"),
    [("id", True), ("order_id", True), ("orderId", True), ("Order ID", True), ("ROWKEY", False), ("paid", False)],
)
def test_integers_far_apart_are_identifiers_where_the_name_says_so(name: str, is_named_so: bool) -> None:
    far_apart = RNG.choice(10**9, ROWS, replace=False)
    assert is_identifier(pa.array(far_apart), name) is is_named_so
    assert not is_identifier(pa.array(np.append(far_apart, far_apart[0])), name)


def frame() -> tuple[pd.DataFrame, np.ndarray]:
    x = RNG.normal(size=ROWS)
    days = [f"{time:%d/%m/%Y}" for time in TIMES[:300]]
    X = pd.DataFrame(
        {
            "x": x,
            "charge": [f"${value / 1000:.0f}" for value in CENTS % 50_000],
            "signup": RNG.choice(days, ROWS),
            "row": np.arange(ROWS),
            "part": RNG.choice(["train", "validation", "test"], ROWS),
        }
    )
    return X, (x > 0).astype(int)


HINTS = [
    "amounts stored as text become categories, which have no order: 'charge'; convert them to numbers, without signs",
    "dates stored as text become categories, which have no order: 'signup'; convert them to dates or timestamps",
    "integers of which none repeats look like identifiers, which say nothing about new rows: 'row'",
    "names of splits become a feature: 'part'; set the split column to use them, or leave it out",
]


def test_prepare_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    X, y = frame()
    X.assign(label=y).to_parquet(tmp_path / "raw.parquet")
    prepare(tmp_path / "raw.parquet", tmp_path / "out", PrepareConfig(label=("label",)))
    assert all(hint in caplog.text for hint in HINTS)


def test_classifier_warns() -> None:
    X, y = frame()
    with pytest.warns(UserWarning, match="^X: ") as found:
        FastKANClassifier(hidden=(4,), epochs=1, device="cpu").fit(X, y)
    texts = "\n".join(str(each.message) for each in found)
    assert all(f"X: {hint}" in texts for hint in HINTS)


def test_times_as_text_that_all_differ_are_no_identifier(tmp_path: Path) -> None:
    rows = pa.table({"x": RNG.normal(size=ROWS), "seen": TEXTS["ISO times"][1], "label": np.arange(ROWS) % 2})
    pq.write_table(rows, tmp_path / "raw.parquet")
    message = (
        r"column 'seen' holds dates as text \(\d+ values, none repeats\); convert them to dates or timestamps, or "
    )
    with pytest.raises(DataError, match=message + "leave it out with --drop seen"):
        prepare(tmp_path / "raw.parquet", tmp_path / "out", PrepareConfig(label=("label",)))
    with pytest.raises(DataError, match="is string; expected a date, timestamp or number; convert text to timestamps"):
        prepare(tmp_path / "raw.parquet", tmp_path / "out", PrepareConfig(label=("label",), split_by_time="seen"))
