"""Categories and IDs are counted in all rows of train: exactly, and the same however rows are cut into parts."""

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

from dkan_core import FastKANClassifier, PrepareConfig, prepare
from dkan_core.data.encoding import value_counts
from dkan_core.data.encoding.value_counts import ValueCounts
from dkan_core.data.preparation import statistics, task
from dkan_core.integrations.sklearn import rows as sklearn_rows
from tests.data.stages import run
from tests.data.tables import write

VALUES = st.lists(st.sampled_from(["a", "b", "ä" * 40, "", None]))
IDS = st.lists(st.one_of(st.none(), st.lists(st.sampled_from([0, 7, -(2**63), 2**63 - 1, None]))))

CONFIG = PrepareConfig(label=("y",))


def counted(found: dict[str, pa.Table]) -> dict[str, dict[str | int | None, int]]:
    return {name: dict(zip(*table.to_pydict().values(), strict=True)) for name, table in found.items()}


@given(parts=st.lists(st.tuples(VALUES, IDS), max_size=5), least=st.sampled_from([1, 1 << 16]))
def test_parts_add_up_to_what_was_counted_of_all_rows(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[list[str | None], list[list[int | None] | None]]],
    least: int,
) -> None:
    folder = tmp_path_factory.mktemp("counts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(value_counts, "MIN_ADDED", least)
        for number, (cities, tags) in enumerate(parts):
            part = ValueCounts(["city", "absent"], ["tags"])
            part.add(pa.table({"city": pa.array(cities, pa.string())}), "rows")
            part.add(pa.table({"tags": pa.array(tags, pa.list_(pa.int64()))}), "rows")
            part.save(folder / str(number))
        files = [partial(open, folder / str(number), "rb") for number in range(len(parts))]
        total = ValueCounts.from_files(["city", "absent"], ["tags"], files).tables()
    cities_expected = Counter(value for cities, _ in parts for value in cities)
    # An id that a row has twice counts once.
    ids_expected = Counter(each for _, tags in parts for row in tags for each in {*(row or [])} - {None})
    assert counted(total) == {
        "city": {None: 0, **cities_expected},
        "absent": {None: 0},
        "tags": {None: 0, **ids_expected},
    }


@pytest.mark.parametrize("parts", [1, 3, 10])
def test_column_with_too_many_values_is_given_up_whatever_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr(value_counts, "MAX_BYTES", 3 * 100 * (value_counts.VALUE_BYTES + 6))
    many, ids = [f"id {row:03}" for row in range(101)], [[row, 200 + row] for row in range(101)]
    rows = pa.table({"many": many, "few": ["value"] * 101, "ids": ids})
    files = []
    for number in range(parts):
        part = ValueCounts(["many", "few"], ["ids"])
        part.add(rows, "rows", pa.array(np.arange(101) % parts == number))
        part.save(tmp_path / str(number))
        files.append(partial(open, tmp_path / str(number), "rb"))
    total = ValueCounts.from_files(["many", "few"], ["ids"], files).tables()
    assert counted(total) == {"few": {None: 0, "value": 101}}


def long_tailed(rows: int) -> dict[str, Any]:
    """Rows of 200 cities, each in ``rows`` / 200 rows, in groups that follow each other."""
    label = np.random.default_rng(0).integers(0, 2, rows)
    return {"x": np.arange(rows, dtype=float), "city": [f"city {row * 200 // rows}" for row in range(rows)], "y": label}


@pytest.fixture
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (statistics, task, sklearn_rows):
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
@pytest.mark.parametrize("in_parts", [False, True])
def test_ids_that_the_sample_lacks_have_codes(in_parts: bool, tmp_path: Path) -> None:
    rows = np.arange(2_000)
    table = pa.table({"y": rows % 2, "tags": np.stack([rows * 200 // 2_000, 1_000 + rows], axis=1).tolist()})
    source = write(table, tmp_path / "raw")
    prepared = run(source, tmp_path / "out", CONFIG, parts=3) if in_parts else prepare(source, tmp_path / "out", CONFIG)
    [tags] = prepared.preprocessor.sparse
    # The first is in each row of ten, the second in one.
    assert len(tags.ids) == prepared.splits["train"].rows + sum(each < 200 for each in tags.ids) > 1_500
    assert tags.sample_rows == 100 and sum(tags.counts) == 200


@pytest.mark.usefixtures("small_sample")
def test_classifier_counts_categories_beyond_its_sample() -> None:
    columns = long_tailed(2_000)
    table = pa.table({name: columns[name] for name in ("x", "city")})
    classifier = FastKANClassifier()
    preprocessor = sklearn_rows.fit_encoding(
        classifier, sklearn_rows.read_features(classifier, table, fitting=True), None
    )
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
