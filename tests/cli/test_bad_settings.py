"""Bad roles of columns and bad settings through ``dkan prepare``: exit code 2, the wrong thing named, nothing left."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.refusals import (
    LISTS,
    ROWS,
    SOME_NULL,
    Case,
    Change,
    both,
    check_refused,
    not_utf8,
    nothing,
    put,
    with_column,
    write_files,
)

CONFIG = "--config {raw}/../settings.toml"


def config_file(content: str) -> Change:
    return lambda raw: (raw.parent / "settings.toml").write_text(content)


CASES = {
    "no label": Case(nothing, r"label: name at least one", None),
    "label missing": Case(nothing, r"label column 'lable' does not exist; did you mean 'label'", "--label lable"),
    "label with 2": Case(with_column("label", [0, 1, 1, 2] * 100), r"'label' .*0, 1 or null; .*2 \(200 rows"),
    "label of text": Case(with_column("label", ["yes", "no"] * 200), r"'label' .*0, 1 or null; .*'yes' \(400 rows\)"),
    "label with infinity": Case(
        with_column("label", [0.0, 1.0, float("inf"), 1.0] * 100), r"'label'.*inf \(200 rows\)"
    ),
    "label of lists": Case(with_column("label", LISTS), r"label column 'label' is list.*expected 0, 1 or null"),
    "label of nulls": Case(with_column("label", pa.nulls(ROWS)), r"'label' has one class only in train: no measured"),
    "one class": Case(with_column("label", [1] * ROWS), r"'label' has one class only: 1 in every row with a value"),
    "fewer positives than splits": Case(
        with_column("label", [1] + [0] * (ROWS - 1)),
        r"one class only in .*; rows with 1 in all: 2; each of the 3 splits needs one",
    ),
    "one class in test": Case(
        both(
            lambda t: put(
                put(t, "label", [0, 1, 0, 1, 1] * 80), "part", ["train", "train", "valid", "valid", "test"] * 80
            )
        ),
        r"'label' has one class only in test: 1 in 160 rows; let column 'part' hold 'test' in rows of both",
        "--split-column part",
    ),
    "group of other encoding": Case(not_utf8("g"), r"column 'g' holds text that is not UTF-8", "--group g"),
    "split of other encoding": Case(not_utf8("s"), r"column 's' holds text that is", "--split-column s"),
    "label of other encoding": Case(not_utf8("label"), r"column 'label' holds text that is not UTF-8"),
    "one label for two roles": Case(nothing, r"'label' has two roles", "--drop label"),
    "no feature": Case(nothing, r"no feature column is left", "--drop x --drop city --drop x"),
    "drop missing": Case(nothing, r"drop column 'cty' does not exist; did you mean 'city'", "--drop cty"),
    "group missing": Case(nothing, r"group column 'patient' does not exist; expected one of 'x", "--group patient"),
    "group null": Case(
        with_column("g", SOME_NULL),
        r"a\.parquet: group column 'g' is missing in 1 row; expected a group in each$",
        "--group g",
    ),
    "group of lists": Case(
        with_column("g", LISTS), r"group column 'g' is list.*; expected a number, .* or UUID", "--group g"
    ),
    "time and split column": Case(nothing, r"'city' already determines", "--split-by-time x --split-column city"),
    "split value": Case(nothing, r"a\.parquet: split column 'city' must hold .*Oslo", "--split-column city"),
    "split type": Case(nothing, r"split column 'x' is double; expected a string", "--split-column x"),
    "split null": Case(
        with_column("part", pa.array([None, *["train"] * (ROWS - 1)])),
        r"split column 'part' must hold .*None \(1 row\)",
        "--split-column part",
    ),
    "no valid rows": Case(
        with_column("part", ["train"] * ROWS),
        r"no rows in the valid split, of 800 in all; let column 'part' hold 'valid' in some rows, or",
        "--split-column part",
    ),
    "split of two": Case(nothing, r"split must be three integer percentages .*'80/20'", "--split 80/20"),
    "weight negative": Case(
        with_column("w", [-1.0, *[1.0] * 399]),
        r"a\.parquet: weight column 'w' must be from 0 to 1e\+30; it holds -1$",
        "--weight w",
    ),
    "weight null": Case(
        with_column("w", SOME_NULL),
        r"a\.parquet: weight column 'w' is missing in 1 row; expected a number in each: 0 leaves a row out$",
        "--weight w",
    ),
    "weight NaN": Case(
        with_column("w", [float("nan"), *[1.0] * 399]),
        r"a\.parquet: weight column 'w' is missing in 1 row; expected a number in each: 0 leaves a row out$",
        "--weight w",
    ),
    "weight too large": Case(
        with_column("w", [1e30, 1.001e30, *[1.0] * 398]),
        r"a\.parquet: weight column 'w' must be from 0 to 1e\+30; it holds 1\.001e\+30$",
        "--weight w",
    ),
    "weight too small": Case(
        with_column("w", [0.0, 1e-46, *[1.0] * 398]),
        r"a\.parquet: weight column 'w' is too small for a 32-bit float in 1 row; multiply all weights",
        "--weight w",
    ),
    "weight 0 in all rows of a split": Case(
        both(lambda t: put(put(t, "w", [1, 1, 0, 0] * 100), "part", ["train", "train", "valid", "valid"] * 100)),
        r"weight column 'w' is 0 in every row of valid",
        "--weight w --split-column part",
    ),
    "weight 0 in all positive rows of a split": Case(
        both(
            lambda t: put(
                put(t, "w", [0 if one and row % 4 > 1 else 2 for row, one in enumerate(t["label"].to_pylist())]),
                "part",
                ["train", "train", "valid", "valid"] * 100,
            )
        ),
        r"label column 'label' has one class only in valid among rows whose 'w' is above 0: 0 in \d+ rows; let column",
        "--weight w --split-column part",
    ),
    "weight 0 in all positive rows": Case(
        both(lambda t: put(t, "w", [1 - one for one in t["label"].to_pylist()])),
        r"one class only in train among rows whose 'w' is above 0: 0 in \d+ rows; 'w' is 0 in every row that holds 1",
        "--weight w",
    ),
    "weight of text": Case(nothing, r"weight column 'city' is string; expected a number", "--weight city"),
    "numeric dtype": Case(nothing, r"int8", "--numeric-dtype int8"),
    "unknown option": Case(nothing, r"--lable", "--lable x"),
    "unknown setting": Case(
        config_file("labels = ['label']"),
        r"settings\.toml: unknown setting 'labels' \(did you mean 'label'\?\)",
        CONFIG,
    ),
    "setting of another type": Case(config_file("seed = 'one'"), r"seed must be a whole number \(int\), got", CONFIG),
    "config not TOML": Case(config_file("seed ="), r"config file .*settings\.toml: ", CONFIG),
    "config with a table": Case(
        config_file("[prepare]\nseed = 1"),
        r"settings\.toml: 'prepare' is a table; write settings outside of any table",
        CONFIG,
    ),
    "config of JSON": Case(nothing, "settings in JSON: cannot be read as JSON", "--config '{seed: 1}'"),
    "unknown setting in JSON": Case(
        nothing, r"--config: unknown setting 'sead' \(did you mean 'seed'\?\)", "--config '{\"sead\": 1}'"
    ),
    "config missing": Case(nothing, r"config file .*settings\.toml: no such file", CONFIG),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two sound files of two features and a label."""
    return write_files(tmp_path / "raw")


@pytest.mark.parametrize("case", CASES)
def test_bad_setting_is_refused_by_name(case: str, raw: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    check_refused(CASES[case], raw, monkeypatch, capsys)
