"""Columns whose type hides what they hold: quantities or dates as text, identifiers as quantities."""

import re
from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dkan_core.data.source.column_types import is_text
from dkan_core.utils.messages import listed_names

NUMBER = r"^\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*$"
FRACTION = r"[.,]\d"
# Codes of a fixed length, such as postal codes.
LEADING_ZERO = r"^\s*0\d"
CURRENCY = r"(?:[$€£¥₹%]|(?:USD|EUR|GBP|JPY|CNY|INR|CHF|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|BRL|MXN|ZAR|SGD|HKD|KRW|TRY)\b)"
# With a currency or percent sign, or with thousands separated.
AMOUNT = rf"^\s*\(?[-+]?\s*{CURRENCY}?\s*[-+]?(\d{{1,3}}([,.' ]\d{{3}})+|\d+)([.,]\d+)?\s*{CURRENCY}?\)?\s*$"
AMOUNT_MARK = rf"{CURRENCY}|\d[,' ]\d{{3}}\b|\d\.\d{{3}}[.,]"
TIME = r"([T ]+\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?\s*([AaPp][Mm])?\s*(Z|UTC|[-+]\d{2}:?\d{2})?)?"
MONTH_OR_DAY = r"(0?[1-9]|[12]\d|3[01])"
YEAR = r"(1[89]|20)\d\d"
DAY = rf"{YEAR}[-/.](0?[1-9]|1[0-2])[-/.]{MONTH_OR_DAY}|{MONTH_OR_DAY}[-/.]{MONTH_OR_DAY}[-/.]({YEAR}|\d\d)"
MONTH = r"(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}"
NAMED_DAY = rf"{MONTH_OR_DAY}[- ]{MONTH}\.?[- ,]+\d{{2,4}}|{MONTH}\.? {MONTH_OR_DAY},? ?\d{{4}}"
DATE = rf"^\s*({DAY}|{NAMED_DAY}){TIME}\s*$"
# With fewer values, the numbers may be grades or versions.
MIN_VALUES = 20
# Share of the values that must match; the rest may be text for missing values, such as "n/a".
MIN_SHARE = 0.95
# N integers drawn at random from N**2 / 20 values all differ by chance in only one of 22,000 samples.
MAX_RANGE_BY_SQUARE = 1 / 20
MIN_ROWS = 100
ID_NAME = re.compile(r"(?i:(.*[\W_])?(id|uuid|key))|.*[a-z](Id|ID|Key)", re.DOTALL)
SPLIT_NAMES = {"train", "training", "valid", "validation", "val", "dev", "test", "holdout"}

REMEDIES = {
    "numbers": "convert them to numbers if they are quantities",
    "amounts": "convert them to numbers, without signs and separators",
    "dates": "convert them to dates or timestamps",
}


def stored_as_text(column: pa.ChunkedArray | pa.Array) -> str:
    """Return what a column of text holds: "numbers", "amounts" or "dates"; empty for other text and other columns.

    Numbers are quantities rather than codes where most of the values differ or have a fraction.

    >>> prices = [f"{value / 4}" for value in range(100)]
    >>> stored_as_text(pa.array(prices)), stored_as_text(pa.array([f"$1,{value}.50" for value in range(100, 200)]))
    ('numbers', 'amounts')
    >>> stored_as_text(pa.array([f"{day:02}/03/2026" for day in range(1, 31)]))
    'dates'
    >>> stored_as_text(pa.array([f"{code:05}" for code in range(500, 20_000, 7)]))
    ''
    """
    if not is_text(column.type):
        return ""
    values = pc.unique(column.drop_null())
    if len(values) < MIN_VALUES:
        return ""
    if _share(values, DATE) >= MIN_SHARE:
        return "dates"
    found = values.filter(pc.match_substring_regex(values, NUMBER))
    if len(found) >= MIN_SHARE * len(values):
        differ = len(values) > (len(column) - column.null_count) / 2 and not _share(found, LEADING_ZERO)
        return "numbers" if differ or _share(found, FRACTION) > 0.5 else ""
    return "amounts" if _share(values, AMOUNT) >= MIN_SHARE and _share(values, AMOUNT_MARK) > 0.5 else ""


def _share(values: pa.Array, pattern: str) -> float:
    return float(pc.mean(pc.match_substring_regex(values, pattern)).as_py() or 0)


def is_identifier(column: pa.ChunkedArray | pa.Array, name: str = "") -> bool:
    """Return whether integers identify rows: all differ, in a range so small that random integers would repeat.

    In a column whose name says that it is an ID, the integers may lie in any range.

    >>> is_identifier(pa.array(range(5_000, 6_000))), is_identifier(pa.array([1, 2, 3] * 100))
    (True, False)
    >>> cubes = pa.array([row**3 for row in range(1_000)])
    >>> is_identifier(cubes, "volume"), is_identifier(cubes, "order_id")
    (False, True)
    """
    rows = len(column) - column.null_count
    if not pa.types.is_integer(column.type) or rows < MIN_ROWS:
        return False
    ends = pc.min_max(column).as_py()
    # A smaller range cannot hold so many different integers.
    span = ends["max"] - ends["min"] + 1
    likely = rows <= span and (span < MAX_RANGE_BY_SQUARE * rows**2 or ID_NAME.fullmatch(name))
    return bool(likely and pc.count_distinct(column, mode="only_valid").as_py() == rows)


def names_splits(column: pa.ChunkedArray | pa.Array) -> bool:
    """Return whether a column of text says which split each row is in.

    >>> names_splits(pa.array(["train", "Test", "train"])), names_splits(pa.array(["test", "drive"]))
    (True, False)
    """
    if not is_text(column.type):
        return False
    values = pc.unique(column.drop_null())
    return 1 < len(values) <= len(SPLIT_NAMES) and {value.casefold() for value in values.to_pylist()} <= SPLIT_NAMES


def column_warnings(rows: pa.RecordBatch | pa.Table, names: Sequence[str], codes: Collection[str]) -> list[str]:
    """Return advice on columns that would probably be encoded as another kind of data than they hold.

    Args:
        rows: A sample.
        names: Columns that are to be features.
        codes: Those whose values, though they are numbers, are known to be categories.
    """
    kinds = {name: "" if name in codes else stored_as_text(rows.column(name)) for name in names}
    found = []
    for kind, remedy in REMEDIES.items():
        if texts := [name for name in names if kinds[name] == kind]:
            shown = listed_names(texts)
            found.append(f"{kind} stored as text become categories, which have no order: {shown}; {remedy}")
    if splits := [name for name in names if names_splits(rows.column(name))]:
        shown = listed_names(splits)
        found.append(f"names of splits become a feature: {shown}; set the split column to use them, or leave it out")
    if numbered := [name for name in names if is_identifier(rows.column(name), name)]:
        shown = listed_names(numbered)
        found.append(f"integers of which none repeats look like identifiers, which say nothing about new rows: {shown}")
    return found
