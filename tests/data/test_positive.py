"""Labels of other values than 0 and 1: ``positive`` names what counts as 1; data and model keep it."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import (
    ConfigError,
    DataError,
    PrepareConfig,
    TrainConfig,
    append_rows,
    evaluate,
    plan_scoring,
    prepare,
    score_part,
    summarize_scoring,
    train,
)
from dkan_core.data.format.manifest import PreparedData, read_manifest
from dkan_core.data.preparation import statistics
from dkan_core.evaluation.comparison import compare
from dkan_core.evaluation.labelled_rows import PreparedRows
from dkan_core.explanation.comparison import check_earlier
from dkan_core.model.saved_model import load_model

ROWS = 600
IS_LATE = np.random.default_rng(0).random(ROWS) < 0.3
NULL = np.arange(ROWS) % 50 == 7
X = np.random.default_rng(1).normal(size=ROWS) + 2 * IS_LATE

# The same labels, as data hold them.
KINDS: dict[str, tuple[Any, str | None]] = {
    "0 and 1": (pa.array(IS_LATE.astype(np.int8), mask=NULL), None),
    "text": (pa.array(np.where(IS_LATE, "late", "on time"), mask=NULL), "late"),
    "text of three values": (
        pa.array(np.where(IS_LATE, "late", np.where(X > 0, "on time", "early")), mask=NULL),
        "outcome=late",
    ),
    "codes": (pa.array(np.where(IS_LATE, 2, 1), mask=NULL), "2"),
    "codes, written as floats are": (pa.array(np.where(IS_LATE, 2, 1), mask=NULL), "2.0"),
    "0, 1 and NaN": (pa.array(np.where(NULL, np.nan, IS_LATE)), None),
    "numbers with NaN": (pa.array(np.where(NULL, np.nan, np.where(IS_LATE, 2.0, 1.0))), "2"),
    "categories": (pa.array(np.where(IS_LATE, "late", "on time"), mask=NULL).dictionary_encode(), "late"),
}


def write(folder: Path, outcome: Any, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"x": X, "outcome": outcome, **more}), folder / "rows.parquet", row_group_size=150)
    return folder / "rows.parquet"


def shards(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_shards_are_those_of_labels_of_0_and_1(kind: str, workers: int, tmp_path: Path) -> None:
    prepare(write(tmp_path / "plain", KINDS["0 and 1"][0]), tmp_path / "wanted", PrepareConfig(label=("outcome",)))
    column, positive = KINDS[kind]
    settings = PrepareConfig(label=("outcome",), positive=(positive,) if positive else ())
    made = prepare(write(tmp_path / "raw", column), tmp_path / "out", settings, workers=workers)
    assert shards(tmp_path / "out") == shards(tmp_path / "wanted")
    assert made.positive == ({"outcome": positive.removeprefix("outcome=")} if positive else {})
    assert ('"positive"' in (tmp_path / "out/manifest.json").read_text()) == bool(positive)


def classes(manifest: PreparedData) -> Counter[str]:
    """Return how often each value of the label occurs in all splits."""
    return sum((Counter(split.classes["outcome"]) for split in manifest.splits.values()), Counter[str]())


def test_model_keeps_what_counts_as_1(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", KINDS["text"][0])
    settings = PrepareConfig(label=("outcome",), positive=("late",))
    prepare(raw, tmp_path / "data", settings)
    config = TrainConfig(epochs=1, hidden=(4,), device="cpu", strategy="single")
    model = train(tmp_path / "data", tmp_path / "run", config).model
    found = evaluate(model, raw, tmp_path / "eval", explain=False)
    assert np.array_equal(found.labels[:, 0], np.where(NULL, 255, IS_LATE))
    plan_scoring(model, raw, tmp_path / "scores", labels=("outcome",))
    score_part(tmp_path / "scores", 0)
    scored = summarize_scoring(tmp_path / "scores").metrics
    assert scored is not None and scored["average_precision"] == found.metrics["average_precision"]
    # New rows encoded as the model's, and added to what there is, with its labels.
    again = prepare(raw, tmp_path / "new", PrepareConfig(like=model))
    assert again.positive == {"outcome": "late"} and shards(tmp_path / "new") == shards(tmp_path / "data")
    # The same rows with the meaning reversed.
    with pytest.raises(ConfigError, match=r"positive outcome=on time: .* counts 'late' as 1; leave out --positive"):
        prepare(raw, tmp_path / "reversed", PrepareConfig(like=model, positive=("on time",)))
    prepare(raw, tmp_path / "reversed", replace(settings, positive=("on time",)))
    with pytest.raises(DataError, match="counts 'on time' of label outcome as 1, and the model counts 'late'"):
        evaluate(model, tmp_path / "reversed", tmp_path / "no")
    reversed_rows = PreparedRows(tmp_path / "reversed", read_manifest(tmp_path / "reversed"), "test")
    why_not = compare(model, reversed_rows).why_not
    assert "counts 'late' of label outcome as 1, and the model counts 'on time'" in why_not
    saved, other_way = load_model(model), load_model(model)
    other_way.config = saved.config.model_copy(update={"positive": {"outcome": "on time"}})
    with pytest.raises(DataError, match="run: counts 'on time' of label outcome as 1, and the model counts 'late'"):
        check_earlier(saved, other_way, ["outcome"], "run")
    with pytest.raises(DataError, match=r"as 1, and the model of init_from, .*, counts 'late'"):
        train(tmp_path / "reversed", tmp_path / "again", replace(config, init_from=model))
    more = write(tmp_path / "more", pa.array(np.where(IS_LATE, "late", "on time")))
    assert append_rows(more, tmp_path / "data").positive == {"outcome": "late"}
    assert read_manifest(tmp_path / "data").splits["train"].classes["outcome"]["1"] > 1.9 * IS_LATE.sum() * 0.6
    # A column without any value has no type.
    pq.write_table(
        pq.read_table(raw).drop_columns("outcome").append_column("outcome", pa.nulls(ROWS)), tmp_path / "none.parquet"
    )
    unmeasured = evaluate(model, tmp_path / "none.parquet", tmp_path / "none", explain=False)
    assert (unmeasured.labels == 255).all()
    before = read_manifest(tmp_path / "data").splits["train"].rows
    assert append_rows(tmp_path / "none.parquet", tmp_path / "data").splits["train"].rows > before
    # Numbers cannot hold the text that counts as 1: they are 0 and 1, as `evaluate` reads them.
    numbers = write(tmp_path / "numbers", pa.array(np.where(IS_LATE, 1, 0)))
    prepare(numbers, tmp_path / "of-numbers", PrepareConfig(like=model))
    in_text = prepare(
        write(tmp_path / "text", pa.array(np.where(IS_LATE, "late", "on time"))),
        tmp_path / "of-text",
        PrepareConfig(like=model),
    )
    assert shards(tmp_path / "of-numbers") == shards(tmp_path / "of-text")
    known = classes(read_manifest(tmp_path / "data"))
    added = append_rows(numbers, tmp_path / "data")
    assert classes(added) == known + classes(in_text)
    assert added.positive == {"outcome": "late"}
    # Under another name the column stands for the same label.
    renamed = pq.read_table(raw).rename_columns(["x", "result"])
    pq.write_table(renamed, tmp_path / "renamed.parquet")
    other = evaluate(model, tmp_path / "renamed.parquet", tmp_path / "other", label="result", explain=False)
    assert np.array_equal(other.labels, found.labels)


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return rows whose label is text, and a model that counts one of its values as 1."""
    folder = tmp_path_factory.mktemp("late")
    raw = write(folder / "raw", KINDS["text"][0])
    prepare(raw, folder / "data", PrepareConfig(label=("outcome",), positive=("late",)))
    config = TrainConfig(epochs=1, hidden=(4,), device="cpu", strategy="single")
    return raw, train(folder / "data", folder / "run", config).model


def test_new_rows_may_have_the_label_as_numbers_or_booleans(tmp_path: Path, late: tuple[Path, str]) -> None:
    raw, model = late
    expected = evaluate(model, raw, tmp_path / "eval", explain=False)
    for kind in (pa.int64(), pa.bool_(), pa.float32()):
        column = pa.array(IS_LATE.astype(bool), mask=NULL).cast(pa.int8()).cast(kind)
        found = evaluate(model, write(tmp_path / str(kind), column), tmp_path / f"eval-{kind}", explain=False)
        assert np.array_equal(found.labels, expected.labels)


def test_new_rows_with_other_values_are_named(tmp_path: Path, late: tuple[Path, str]) -> None:
    _, model = late
    mixed = write(tmp_path / "mixed", pa.array(np.where(IS_LATE, np.where(X > 0, "late", "LATE "), "on time")))
    message = r"mixed/rows\.parquet: label column 'outcome' holds 'LATE ', and 'late' is the value that counts as 1"
    with pytest.raises(DataError, match=message):
        evaluate(model, mixed, tmp_path / "eval", explain=False)
    plan_scoring(model, mixed, tmp_path / "scores", labels=("outcome",))
    with pytest.raises(DataError, match=message):
        score_part(tmp_path / "scores", 0)
    other = write(tmp_path / "other", pa.array(np.where(IS_LATE, "L", "O")))
    (warning,) = (
        text
        for text in evaluate(model, other, tmp_path / "eval", explain=False).metrics["warnings"]
        if "every measured row" in text
    )
    assert warning.startswith(
        "label 'outcome' is 0 in every measured row, so it has no average precision or ROC AUC: 'late' counts as 1, "
    )
    assert "'L'" in warning and "'O'" in warning


def test_numbers_that_are_not_measured_are_no_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raw = write(tmp_path / "raw", KINDS["numbers with NaN"][0])
    prepare(raw, tmp_path / "data", PrepareConfig(label=("outcome",), positive=("2",)))
    config = TrainConfig(epochs=1, hidden=(4,), device="cpu", strategy="single")
    model = train(tmp_path / "data", tmp_path / "run", config).model
    caplog.set_level("INFO", "dkan_core")
    narrow = write(tmp_path / "narrow", pa.array(np.where(NULL, np.nan, np.where(IS_LATE, 2, 1)).astype(np.float16)))
    found = evaluate(model, narrow, tmp_path / "eval", explain=False)
    assert np.array_equal(found.labels[:, 0], np.where(NULL, 255, IS_LATE))
    assert "label 'outcome': '2' counts as 1, '1' as 0" in caplog.text


def test_new_rows_may_have_whole_numbers_where_there_were_floats(tmp_path: Path) -> None:
    settings = PrepareConfig(label=("outcome",), positive=("2.0",))
    prepare(write(tmp_path / "floats", KINDS["numbers with NaN"][0]), tmp_path / "data", settings)
    integers = write(tmp_path / "integers", KINDS["codes"][0])
    again = prepare(integers, tmp_path / "new", PrepareConfig(like=str(tmp_path / "data")))
    assert again.positive == {"outcome": "2.0"} and shards(tmp_path / "new") == shards(tmp_path / "data")


@pytest.mark.parametrize("workers", [0, 2])
def test_values_that_count_as_0_are_listed_and_near_ones_warned_of(
    workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = np.where(X > 0, "no", np.where(X > -1, "N", "Y"))
    raw = write(tmp_path / "raw", pa.array(np.where(IS_LATE, "yes", other)))
    caplog.set_level("INFO", "dkan_core")
    settings = PrepareConfig(label=("outcome",), positive=("yes",))
    prepare(raw, tmp_path / "out", settings, workers=workers)
    rows = {value: int(((other == value) & ~IS_LATE).sum()) for value in ("no", "N", "Y")}
    listed = ", ".join(f"'{value}' ({rows[value]} rows)" for value in sorted(rows, key=lambda each: -rows[each]))
    assert f"label 'outcome': 'yes' ({IS_LATE.sum()} rows) counts as 1, {listed} as 0" in caplog.text
    (warning,) = (each for each in caplog.records if "may mean" in each.message)
    assert warning.levelname == "WARNING" and warning.message == (
        f"label 'outcome': 'Y' counts as 0 ({rows['Y']} rows), although it may mean 'yes'; if it does, write both alike"
    )
    caplog.clear()
    append_rows(write(tmp_path / "more", pa.array(["yes", "f"] * (ROWS // 2))), tmp_path / "out")
    assert "'yes' (300 rows) counts as 1, 'f' (300 rows) as 0" in caplog.text and "may mean" not in caplog.text


def test_of_very_many_values_that_count_as_0_some_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(statistics, "VALUES_REMEMBERED", 20)
    raw = write(tmp_path / "raw", pa.array(np.where(IS_LATE, "yes", np.arange(ROWS).astype(str))))
    caplog.set_level("INFO", "dkan_core")
    prepare(raw, tmp_path / "out", PrepareConfig(label=("outcome",), positive=("yes",)))
    assert f"(1 row) and 12 more, and others in {(~IS_LATE).sum() - 20} rows as 0" in caplog.text


def test_values_beyond_those_remembered_are_in_the_count_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "VALUES_REMEMBERED", 20)
    raw = write(tmp_path / "raw", pa.array([f"v{number}" for number in range(ROWS)]))
    with pytest.raises(DataError, match=rf"\(1 row\) and 12 more, and others in {ROWS - 20} rows$"):
        prepare(raw, tmp_path / "out", PrepareConfig(label=("outcome",), positive=("late",)))


def test_spellings_of_a_label_that_differ_in_case_are_named(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", pa.array(np.where(IS_LATE, np.where(X > 0, "late", "Late "), "on time")))
    with pytest.raises(DataError, match=r"found 'on time' \(\d+ rows\), .*; '\w+ ?' and '\w+ ?' differ only"):
        prepare(raw, tmp_path / "out", PrepareConfig(label=("outcome",)))


def test_each_of_several_labels_has_a_value_of_its_own(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", KINDS["text"][0], paid=pa.array(["yes", "no"] * (ROWS // 2)), fine=[0, 1] * 300)
    settings = PrepareConfig(label=("outcome", "paid", "fine"), positive=("paid=yes", "outcome=late"))
    made = prepare(raw, tmp_path / "out", settings)
    assert made.positive == {"paid": "yes", "outcome": "late"}
    counts = {name: sum(split.classes[name]["1"] for split in made.splits.values()) for name in made.labels}
    assert counts == {"outcome": int((IS_LATE & ~NULL).sum()), "paid": ROWS // 2, "fine": ROWS // 2}


@pytest.mark.parametrize(
    ("label", "positive", "message"),
    [
        ("text", (), r"must hold 0, 1 or null; found .*say which value counts as 1: --positive .*'on time'"),
        (
            "text",
            ("Late",),
            r"label column 'outcome' holds 'late', and 'Late' is the value that counts as 1; spell both",
        ),
        (
            "text",
            ("delayed",),
            r"one class only in train: 0 in \d+ rows; no row holds 'delayed': the column holds 'on time' \(\d",
        ),
        ("codes", ("late",), r"label column 'outcome' is int64, which cannot hold the positive value 'late'"),
        ("codes", ("True",), r"'True'; where a file holds numbers, True is 1: write 1 instead"),
        ("text of three values", (), r"a label column of 0 and 1, or name it with --positive"),
    ],
)
def test_mistake_in_a_value_is_named(label: str, positive: tuple[str, ...], message: str, tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", KINDS[label][0])
    with pytest.raises(DataError, match=message):
        prepare(raw, tmp_path / "out", PrepareConfig(label=("outcome",), positive=positive))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("positive", "message"),
    [
        (("late",), r"positive 'late': with several labels write LABEL=VALUE, such as 'outcome=late'"),
        (("outcom=late",), "positive 'outcom=late': 'outcom' is not a label; did you mean 'outcome'?"),
        (("paid=yes", "paid=no"), "positive: label 'paid' has two values, 'yes' and 'no'; name one"),
    ],
)
def test_mistake_in_the_setting_is_named(positive: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrepareConfig(label=("outcome", "paid"), positive=positive)


def test_advice_for_a_value_that_looks_like_another_labels_can_be_followed(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", pa.array(np.where(IS_LATE, "outcome=1", "outcome=0")))
    with pytest.raises(DataError, match=r"say which value counts as 1: .*--positive outcome=outcome=1"):
        prepare(raw, tmp_path / "out", PrepareConfig(label=("outcome",)))
    prepare(raw, tmp_path / "out", PrepareConfig(label=("outcome",), positive=("outcome=outcome=1",)))


@pytest.mark.parametrize("kinds", [("bool", "int8"), ("int64", "bool"), ("bool", "double"), ("bool", "null", "uint8")])
def test_label_may_be_a_boolean_in_some_files_and_a_number_in_others(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({"x": rng.random(600), "y": pa.array(rng.integers(0, 2, 600), pa.int8())})
    (tmp_path / "mixed").mkdir()
    paths, expected = [], []
    for number, kind in enumerate(kinds):
        rows = table.slice(200 * number, 200)
        labels = pa.nulls(200) if kind == "null" else rows["y"].cast(pa.type_for_alias(kind))
        paths.append(tmp_path / f"mixed/{number}.parquet")
        pq.write_table(rows.set_column(1, "y", labels), paths[-1])
        expected.append(rows.set_column(1, "y", labels.cast(pa.int8())))
    pq.write_table(pa.concat_tables(expected), tmp_path / "alike.parquet")
    mixed = prepare(paths, tmp_path / "out", PrepareConfig(label=("y",)))
    alike = prepare(tmp_path / "alike.parquet", tmp_path / "alone", PrepareConfig(label=("y",)))
    assert mixed.splits == alike.splits and mixed.preprocessor == alike.preprocessor
    with pytest.raises(DataError, match=r"\d\.parquet: column 'y' is .*; write it in all files as a number, or"):
        prepare(paths, tmp_path / "as-feature", PrepareConfig(label=("x",)))


def test_rows_without_a_label_are_counted_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        prepare(write(tmp_path / "raw", KINDS["0, 1 and NaN"][0]), tmp_path / "out", PrepareConfig(label=("outcome",)))
    assert "not measured in 1 label: 'outcome' (12 rows)" in caplog.text
