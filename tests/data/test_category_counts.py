"""Values of categories are counted in all rows of train: exactly, and the same however rows are cut into parts."""

from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dkan_core import PrepareConfig, prepare
from dkan_core.data.encoding import category_counts
from dkan_core.data.encoding.category_counts import CategoryCounts
from dkan_core.data.preparation import statistics, steps
from dkan_core.integrations.sklearn import rows as sklearn_rows
from tests.data.tables import write

VALUES = st.lists(st.sampled_from(["a", "b", "ä" * 40, "", None]))

CONFIG = PrepareConfig(label=("y",))


def counted(found: dict[str, pa.Table]) -> dict[str, dict[str | None, int]]:
    return {name: dict(zip(*table.to_pydict().values(), strict=True)) for name, table in found.items()}


@given(parts=st.lists(VALUES, max_size=5), least=st.sampled_from([1, 1 << 16]))
def test_parts_add_up_to_what_was_counted_of_all_rows(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[str | None]], least: int
) -> None:
    folder = tmp_path_factory.mktemp("counts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(category_counts, "MIN_ADDED", least)
        for number, values in enumerate(parts):
            part = CategoryCounts(["city", "absent"])
            part.add(pa.table({"city": pa.array(values, pa.string())}), "rows")
            part.save(folder / str(number))
        files = [partial(open, folder / str(number), "rb") for number in range(len(parts))]
        total = CategoryCounts.from_files(["city", "absent"], files).tables()
    expected = Counter(value for values in parts for value in values)
    assert counted(total) == {"city": {None: 0, **expected}, "absent": {None: 0}}


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_column_with_too_many_values_is_given_up_whatever_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(category_counts, "MAX_BYTES", 2 * 100 * (category_counts.VALUE_BYTES + 6))
    rows = pa.table({"many": [f"id {row:03}" for row in range(101)], "few": ["value"] * 101})
    files = []
    for number in range(parts):
        part = CategoryCounts(["many", "few"])
        part.add(rows, "rows", pa.array(np.arange(101) % parts == number))
        part.save(tmp_path / str(number))
        files.append(partial(open, tmp_path / str(number), "rb"))
    assert counted(CategoryCounts.from_files(["many", "few"], files).tables()) == {"few": {None: 0, "value": 101}}


def long_tailed(rows: int) -> dict[str, Any]:
    """Rows of 200 cities, each in ``rows`` / 200 rows, in groups that follow each other."""
    label = np.random.default_rng(0).integers(0, 2, rows)
    return {"x": np.arange(rows, dtype=float), "city": [f"city {row * 200 // rows}" for row in range(rows)], "y": label}


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (statistics, steps, sklearn_rows):
        monkeypatch.setattr(module, "sample_rows", lambda columns: 100)


@pytest.mark.usefixtures("small_sample")
def test_values_that_the_sample_lacks_have_codes_and_exact_counts(tmp_path: Path) -> None:
    columns = long_tailed(2_000)
    source = write(pa.table(columns), tmp_path / "raw")
    prepared = prepare(source, tmp_path / "out", CONFIG)
    [city] = (feature for feature in prepared.preprocessor.coded if feature.name == "city")
    assert len(city.vocabulary) > 190
    assert prepared.preprocessor.counts is not None
    rows = prepared.preprocessor.counts["city"]
    assert sum(rows) == prepared.splits["train"].rows > 1_000
    assert rows[2:] == sorted(rows[2:], reverse=True)


@pytest.mark.usefixtures("small_sample")
def test_classifier_counts_categories_beyond_its_sample() -> None:
    columns = long_tailed(2_000)
    table = pa.table({name: columns[name] for name in ("x", "city")})
    preprocessor = sklearn_rows.fit_encoding(table, None)
    [city] = (feature for feature in preprocessor.coded if feature.name == "city")
    assert {*city.vocabulary} == {*columns["city"]}
    assert preprocessor.counts is not None and preprocessor.counts["city"] == [0, 0, *[10] * 200]


@pytest.mark.usefixtures("small_sample")
def test_columns_that_extend_an_encoding_keep_their_exact_counts(tmp_path: Path) -> None:
    columns = long_tailed(2_000)
    prepare(write(pa.table({"x": columns["x"], "y": columns["y"]}), tmp_path / "few"), tmp_path / "old", CONFIG)
    more = write(pa.table(columns), tmp_path / "more")
    extended = prepare(more, tmp_path / "new", replace(CONFIG, like=str(tmp_path / "old"), extend=True))
    assert extended.preprocessor.counts is not None
    assert sum(extended.preprocessor.counts["city"]) == extended.splits["train"].rows
    assert sum(extended.preprocessor.counts["x"]) == 100
