"""An inspection names what is suspicious, and nothing else; it says what ``prepare`` then does."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import ConfigError, DataError, Inspection, PrepareConfig, append_rows, inspect_data, prepare
from dkan_core.data.source import blocks, row_groups
from tests.command import dkan
from tests.data.tables import write

ROWS = 2000
CONFIG = PrepareConfig(label=("y",), split="60/20/20")


def make_rows() -> pa.Table:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, ROWS)
    return pa.table(
        {
            "honest": y + rng.normal(size=ROWS),
            "paid_back": np.where(rng.random(ROWS) < 0.002, 1 - y, y) * 7.5 + rng.random(ROWS),
            "outcome": np.where(y == 1, "late", "ok").tolist(),
            "key": np.arange(ROWS) * 3,
            "price": [f"{value:.1f}" for value in rng.normal(50, 5, ROWS)],
            "name": [f"n{n}" for n in range(ROWS)],
            "one": np.ones(ROWS),
            "flag": pa.array(np.ones(ROWS), mask=rng.random(ROWS) < 0.5),
            "finite": np.where(rng.random(ROWS) < 0.5, 1.0, np.inf),
            "zeros": np.where(rng.random(ROWS) < 0.5, -0.0, 0.0).astype(np.float16),
            "none": pa.nulls(ROWS, pa.float64()),
            "gappy": pa.array(rng.integers(0, 3, ROWS), mask=rng.random(ROWS) < 0.25),
            "when": pa.array(rng.integers(0, 10**9, ROWS), pa.timestamp("s")),
            "tags": [["a"]] * ROWS,
            "row": np.arange(ROWS),
            "y": y.astype(np.int8),
        }
    )


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("raw")
    write(make_rows(), folder, files=2)
    return folder


@pytest.fixture(scope="module")
def found(raw: Path) -> Inspection:
    return inspect_data(raw, CONFIG)


def words(found: Inspection) -> dict[str, str]:
    return {column.name: "; ".join(column.suspicions).split(" (")[0] for column in found.suspicious}


def test_only_what_is_suspicious_is_named(found: Inspection) -> None:
    assert words(found) == {
        "paid_back": "leakage: alone it separates the label",
        "outcome": "leakage: alone it separates the label",
        "key": "unique identifier",
        "price": "numbers stored as text",
        "name": "unique identifier",
        "row": "unique identifier",
        "one": "constant",
        "zeros": "constant",
        "none": "no value",
    }
    facts = {column.name: column for column in found.columns}
    assert facts["honest"].roc_auc == pytest.approx(0.76, abs=0.05)
    assert facts["gappy"].missing == pytest.approx(0.25, abs=0.03) and facts["gappy"].distinct == 3


def test_columns_become_what_prepare_makes_of_them(found: Inspection, raw: Path, tmp_path: Path) -> None:
    becomes = {column.name: column.becomes for column in found.columns}
    assert becomes["tags"].startswith("rejected: is list") and becomes["none"].startswith("rejected: holds no value")
    assert becomes["name"].startswith("rejected: looks like an identifier")
    assert becomes["when"] == "numbers: seconds, month, day, weekday, hour" and becomes["y"] == "label"
    drop = tuple(name for name, text in becomes.items() if text.startswith("rejected"))
    made = prepare(raw, tmp_path / "out", PrepareConfig(label=("y",), split="60/20/20", drop=drop))
    assert found.classes == {split: info.classes for split, info in made.splits.items()}
    kept = {name for name, text in becomes.items() if not text.startswith("rejected") and text != "label"}
    assert kept == {*made.preprocessor.columns}
    again = inspect_data(tmp_path / "out")
    assert {"paid_back", "outcome", "one"} <= {*words(again)}
    distinct = {column.name: column.distinct for column in again.columns}
    assert distinct["honest"] is None and distinct["gappy"] == 3 and distinct["outcome"] == 2
    assert again.rows == found.rows and again.classes == found.classes


def test_splits_that_differ_are_named(raw: Path) -> None:
    config = PrepareConfig(label=("y",), split="60/20/20", split_by_time="row")
    assert words(inspect_data(raw, config))["key"] == "unique identifier; valid differs from train"


def test_sample_of_prepared_rows_does_not_make_rare_values_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values with a code, of which the sample of train has one row or none, are no drift of valid."""
    rng = np.random.default_rng(0)
    users = [f"u{number}" for number in rng.integers(0, 3000, 12_000)]
    write(pa.table({"user": users, "y": rng.random(12_000) < 0.3}), tmp_path / "raw")
    prepare(tmp_path / "raw", tmp_path / "prepared", PrepareConfig(label=("y",)))
    monkeypatch.setattr("dkan_core.inspection.rows.SAMPLE_ROWS", 1000)
    (user,) = inspect_data(tmp_path / "prepared").columns
    assert user.suspicions == () and user.psi is not None and user.psi < 0.05


def test_rows_that_were_added_beyond_the_known_range_do_not_differ_between_splits(tmp_path: Path) -> None:
    """Values without a code are named, as no range of numbers is too narrow for the order of values."""
    rng = np.random.default_rng(0)
    for name, shift, cities in (("old", 0, ["Oslo", "Rome"]), ("new", 1000, ["Rome", "Bergen"])):
        columns = {"x": rng.normal(size=3000) + shift, "city": cities * 1500, "y": rng.random(3000) < 0.3}
        write(pa.table(columns), tmp_path / name)
    prepare(tmp_path / "old", tmp_path / "data", PrepareConfig(label=("y",)))
    append_rows(tmp_path / "new", tmp_path / "data")
    x, city = inspect_data(tmp_path / "data").columns
    assert x.suspicions == () and x.psi is not None and x.psi < 0.05
    assert city.suspicions == ("25% of the rows of train hold a value without a code",)


def test_numbers_of_codes_are_estimates_where_a_sample_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    users, steps = (rng.integers(0, high, 8000) for high in (900, 40))
    rows = pa.table({"user": [f"u{user}" for user in users], "steps": steps, "y": rng.random(8000) < 0.3})
    write(rows, tmp_path / "raw")
    prepare(tmp_path / "raw", tmp_path / "prepared", PrepareConfig(label=("y",)))
    monkeypatch.setattr("dkan_core.inspection.rows.SAMPLE_ROWS", 1000)
    raw, prepared = (
        {column.name: column.becomes for column in inspect_data(tmp_path / place, config).columns}
        for place, config in (("raw", PrepareConfig(label=("y",))), ("prepared", None))
    )
    assert raw["user"].startswith("codes of at least ") and "codes of about " in raw["steps"]
    assert "at least" not in prepared["user"] and "codes of 40 frequent values" in prepared["steps"]


def test_sample_holds_rows_that_were_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for name, city, rows in (("old", "Oslo", 3000), ("new", None, 9000)):
        cities = pa.array([city] * rows, pa.string())
        write(pa.table({"x": rng.normal(size=rows), "city": cities, "y": rng.random(rows) < 0.3}), tmp_path / name)
    prepare(tmp_path / "old", tmp_path / "data", PrepareConfig(label=("y",)))
    append_rows(tmp_path / "new", tmp_path / "data")
    monkeypatch.setattr("dkan_core.inspection.rows.SAMPLE_ROWS", 1000)
    missing = {column.name: column.missing for column in inspect_data(tmp_path / "data").columns}
    assert missing == {"x": 0, "city": pytest.approx(0.75, abs=0.01)}


def test_copies_of_rows_of_train_are_named_unless_rows_are_equal_by_chance(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 4)).round(2)
    x[: ROWS // 3] = 0
    balanced = np.concatenate([np.arange(ROWS), rng.integers(ROWS // 2, ROWS, ROWS // 2)])
    few, one, two = (rng.integers(0, most, (ROWS, width)) for most, width in ((12, 3), (ROWS, 1), (ROWS**0.5, 2)))
    shares = []
    cases = {"balanced": x[balanced], "different": x, "few": few, "one": one, "two": two}
    for name, values in cases.items():
        columns = {f"x{n}": column for n, column in enumerate(values.T)}
        write(pa.table({**columns, "y": np.arange(len(values)) % 2}), tmp_path / name)
        found = inspect_data(tmp_path / name, CONFIG)
        assert ("copies of rows of train" in str(found)) == bool(found.copies)
        shares.append(found.copies)
    assert shares == [pytest.approx(0.5, abs=0.1), 0, 0, 0, 0]


def test_large_row_groups_are_read_some_columns_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(make_rows().select(["honest", "paid_back", "flag", "y"]), tmp_path)
    expected = inspect_data(paths, CONFIG)
    widths = list[int]()

    def spy(path: object, run: object, count: int, names: Sequence[str]) -> pa.RecordBatch:
        widths.append(len(names))
        return read_groups(path, run, count, names)

    read_groups: Any = blocks._read_groups
    monkeypatch.setattr(blocks, "_read_groups", spy)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1)
    monkeypatch.setattr(row_groups, "WHOLE_GROUP_BYTES", 1)
    assert inspect_data(paths, CONFIG) == expected
    assert widths == [1, 1, 1, 1]


def test_few_rows_are_no_reason_to_suspect_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {f"x{number}": rng.normal(size=120) for number in range(8)}
    write(pa.table({**columns, "y": rng.random(120) < 0.3}), tmp_path)
    found = inspect_data(tmp_path, PrepareConfig(label=("y",)))
    assert 0 < found.rows["valid"] < 20 and words(found) == {}


def test_command_shows_a_table_a_page_and_json(
    raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: list[Any] = ["inspect", raw, "--html", tmp_path / "page.html", "--json", tmp_path / "facts.json"]
    assert dkan(*arguments, "--label", "y", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "valid: 198 rows; y 103 positive (52.02%)" in shown and "outcome: leakage" in shown
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert {column["name"] for column in facts["columns"]} == {*make_rows().column_names}
    assert "leakage: alone it separates the label" in (tmp_path / "page.html").read_text()
    assert dkan("inspect", raw, monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "leakage" not in shown and "one: constant" in shown


@pytest.mark.parametrize(
    ("positive", "finding"),
    [
        (
            ("due",),
            "one class only in train, valid, test; 'due', in exactly this spelling, counts as 1, other values as 0",
        ),
        (("late",), None),
    ],
)
def test_label_of_one_class_is_named(raw: Path, positive: tuple[str, ...], finding: str | None) -> None:
    config = PrepareConfig(label=("outcome",), positive=positive, drop=("tags",))
    assert words(inspect_data(raw, config)).get("outcome") == finding


def test_values_of_a_label_that_may_be_missing_are_named(tmp_path: Path) -> None:
    outcome = np.where(np.arange(200) % 2, "yes", np.where(np.arange(200) % 10, "no", "N/A"))
    write(pa.table({"x": np.arange(200) / 7, "outcome": outcome}), tmp_path)
    found = inspect_data(tmp_path, PrepareConfig(label=("outcome",), positive=("yes",)))
    assert "'N/A' counts as 0 (20 rows), although it may mean that the label is missing" in str(found)


def test_long_names_leave_the_table_narrow(tmp_path: Path) -> None:
    write(pa.table({"n" * 120: np.ones(200), "x": np.arange(200) % 2 == 0}), tmp_path)
    table, found = str(inspect_data(tmp_path)).rsplit("\n\n", 1)
    assert max(map(len, table.splitlines())) < 140 and "n" * 39 + "…" in table
    assert found == "n" * 120 + ": constant"


def test_each_column_has_one_line_whatever_its_name(tmp_path: Path) -> None:
    names = ["two\nlines", "a\ttab", "\x1b[31mred", "paragraphs\u2029"]
    write(pa.table({**{name: np.ones(200) for name in names}, "y\r": np.arange(200) % 2}), tmp_path)
    facts, table, found = str(inspect_data(tmp_path, PrepareConfig(label=("y\r",)))).split("\n\n")
    head, *lines = table.splitlines()
    shown = [repr(name)[1:-1] for name in [*names, "y\r"]]
    assert [line[: head.index("type")].rstrip() for line in lines] == shown
    assert found.splitlines() == [f"{name}: constant" for name in shown[:-1]]
    assert facts.startswith("train: ") and all(r"; y\r " in line for line in facts.splitlines())


def test_column_that_is_left_out_has_nothing_of_a_feature_called_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hours = rng.integers(0, 24, ROWS)
    rows = {"ns": pa.array(hours * 3_600_000_000_000, pa.timestamp("ns")), "y": hours // 12}
    write(pa.table({**rows, "ns.hour": rng.random(ROWS), "ns.day": [["a"]] * ROWS}), tmp_path)
    found = inspect_data(tmp_path, PrepareConfig(label=("y",), drop=("ns.hour",)))
    facts = {column.name: column for column in found.columns}
    assert facts["ns"].roc_auc == 1 and facts["ns"].psi is not None
    for name, becomes in {"ns.hour": "dropped", "ns.day": "rejected: is list"}.items():
        assert facts[name].becomes.startswith(becomes) and facts[name].roc_auc is facts[name].psi is None


def test_table_of_features_alone_needs_no_label(tmp_path: Path) -> None:
    write(make_rows().select(["honest", "one"]), tmp_path)
    assert words(inspect_data(tmp_path)) == {"one": "constant"}


def test_rows_of_ids_alone_are_counted(tmp_path: Path) -> None:
    y = np.arange(400) % 2
    raw = write(pa.table({"ids": [[n % 7, 9] for n in range(400)], "y": y}), tmp_path / "raw")
    prepare(raw, tmp_path / "out", PrepareConfig(label=("y",)))
    for found in (inspect_data(raw, PrepareConfig(label=("y",))), inspect_data(tmp_path / "out")):
        becomes = {column.name: column.becomes for column in found.columns}
        assert sum(found.rows.values()) == 400 and becomes["ids"] == "IDs, which are not inspected"
        assert sum(counts["y"]["1"] for counts in found.classes.values()) == 200


def test_what_cannot_be_inspected_is_refused(raw: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="label column 'z' does not exist"):
        inspect_data(raw, PrepareConfig(label=("z",)))
    with pytest.raises(ConfigError, match="like: inspection shows what would be fitted"):
        inspect_data(raw, PrepareConfig(like="model"))
    with pytest.raises(DataError, match="label column 'key' must hold 0, 1 or null"):
        inspect_data(raw, PrepareConfig(label=("key",)))
    rows = make_rows().select(["honest", "y"])
    prepare(write(rows, tmp_path / "raw"), tmp_path / "out", PrepareConfig(label=("y",)))
    with pytest.raises(ConfigError, match="is prepared data, which is inspected alone"):
        inspect_data(tmp_path / "out", CONFIG)
