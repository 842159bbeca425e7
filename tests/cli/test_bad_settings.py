"""Bad roles of columns and bad settings through ``dkan prepare``: exit code 2, the wrong thing named, nothing left."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.refusals import (
    LABEL,
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

CONFIG = ["--config", "{raw}/../settings.toml"]


def config_file(content: str) -> Change:
    return lambda raw: (raw.parent / "settings.toml").write_text(content)


CASES: dict[str, Case] = {
    "no label": (nothing, [], None, r"label: name at least one"),
    "label missing": (
        nothing,
        ["--label", "lable"],
        None,
        r"label column 'lable' does not exist; did you mean 'label'",
    ),
    "label with 2": (
        with_column("label", [0, 1, 1, 2] * 100),
        LABEL,
        None,
        r"'label' .*0, 1 or null; .*2 \(200 rows",
    ),
    "label of text": (
        with_column("label", ["yes", "no"] * 200),
        LABEL,
        None,
        r"'label' .*0, 1 or null; .*'yes' \(400 rows\)",
    ),
    "label with infinity": (
        with_column("label", [0.0, 1.0, float("inf"), 1.0] * 100),
        LABEL,
        None,
        r"'label'.*inf \(200 rows\)",
    ),
    "label of lists": (
        with_column("label", LISTS),
        LABEL,
        None,
        r"label column 'label' is list.*expected 0, 1 or null",
    ),
    "label of nulls": (
        with_column("label", pa.nulls(ROWS)),
        LABEL,
        None,
        r"'label' has one class only in train: no measured",
    ),
    "one class": (
        with_column("label", [1] * ROWS),
        LABEL,
        None,
        r"'label' has one class only: 1 in every row with a value",
    ),
    "fewer positives than splits": (
        with_column("label", [1] + [0] * (ROWS - 1)),
        LABEL,
        None,
        r"one class only in .*; rows with 1 in all: 2; each of the 3 splits needs one",
    ),
    "one class in test": (
        both(
            lambda t: put(
                put(t, "label", [0, 1, 0, 1, 1] * 80), "part", ["train", "train", "valid", "valid", "test"] * 80
            )
        ),
        [*LABEL, "--split-column", "part"],
        None,
        r"'label' has one class only in test: 1 in 160 rows; let column 'part' hold 'test' in rows of both",
    ),
    "group of other encoding": (
        not_utf8("g"),
        [*LABEL, "--group", "g"],
        None,
        r"column 'g' holds text that is not UTF-8",
    ),
    "split of other encoding": (not_utf8("s"), [*LABEL, "--split-column", "s"], None, r"column 's' holds text that is"),
    "label of other encoding": (not_utf8("label"), LABEL, None, r"column 'label' holds text that is not UTF-8"),
    "one label for two roles": (nothing, [*LABEL, "--drop", "label"], None, r"'label' has two roles"),
    "no feature": (
        nothing,
        [*LABEL, "--drop", "x", "--drop", "city", "--drop", "x"],
        None,
        r"no feature column is left",
    ),
    "drop missing": (
        nothing,
        [*LABEL, "--drop", "cty"],
        None,
        r"drop column 'cty' does not exist; did you mean 'city'",
    ),
    "group missing": (
        nothing,
        [*LABEL, "--group", "patient"],
        None,
        r"group column 'patient' does not exist; expected one of 'x",
    ),
    "group null": (
        with_column("g", SOME_NULL),
        [*LABEL, "--group", "g"],
        None,
        r"a\.parquet: group column 'g' is missing in 1 row; expected a group in each$",
    ),
    "group of lists": (
        with_column("g", LISTS),
        [*LABEL, "--group", "g"],
        None,
        r"group column 'g' is list.*; expected a number, .* or UUID",
    ),
    "time and split column": (
        nothing,
        [*LABEL, "--split-by-time", "x", "--split-column", "city"],
        None,
        r"'city' already determines",
    ),
    "split value": (
        nothing,
        [*LABEL, "--split-column", "city"],
        None,
        r"a\.parquet: split column 'city' must hold .*Oslo",
    ),
    "split type": (nothing, [*LABEL, "--split-column", "x"], None, r"split column 'x' is double; expected a string"),
    "split null": (
        with_column("part", pa.array([None, *["train"] * (ROWS - 1)])),
        [*LABEL, "--split-column", "part"],
        None,
        r"split column 'part' must hold .*None \(1 row\)",
    ),
    "no valid rows": (
        with_column("part", ["train"] * ROWS),
        [*LABEL, "--split-column", "part"],
        None,
        r"no rows in the valid split, of 800 in all; let column 'part' hold 'valid' in some rows, or",
    ),
    "split of two": (nothing, [*LABEL, "--split", "80/20"], None, r"split must be three integer percentages .*'80/20'"),
    "weight negative": (
        with_column("w", [-1.0, *[1.0] * 399]),
        [*LABEL, "--weight", "w"],
        None,
        r"a\.parquet: weight column 'w' must be from 0 to 1e\+30; it holds -1$",
    ),
    "weight null": (
        with_column("w", SOME_NULL),
        [*LABEL, "--weight", "w"],
        None,
        r"a\.parquet: weight column 'w' is missing in 1 row; expected a number in each: 0 leaves a row out$",
    ),
    "weight NaN": (
        with_column("w", [float("nan"), *[1.0] * 399]),
        [*LABEL, "--weight", "w"],
        None,
        r"a\.parquet: weight column 'w' is missing in 1 row; expected a number in each: 0 leaves a row out$",
    ),
    "weight too large": (
        with_column("w", [1e30, 1.001e30, *[1.0] * 398]),
        [*LABEL, "--weight", "w"],
        None,
        r"a\.parquet: weight column 'w' must be from 0 to 1e\+30; it holds 1\.001e\+30$",
    ),
    "weight too small": (
        with_column("w", [0.0, 1e-46, *[1.0] * 398]),
        [*LABEL, "--weight", "w"],
        None,
        r"a\.parquet: weight column 'w' is too small for a 32-bit float in 1 row; multiply all weights",
    ),
    "weight 0 in all rows of a split": (
        both(lambda t: put(put(t, "w", [1, 1, 0, 0] * 100), "part", ["train", "train", "valid", "valid"] * 100)),
        [*LABEL, "--weight", "w", "--split-column", "part"],
        None,
        r"weight column 'w' is 0 in every row of valid",
    ),
    "weight 0 in all positive rows of a split": (
        both(
            lambda t: put(
                put(t, "w", [0 if one and row % 4 > 1 else 2 for row, one in enumerate(t["label"].to_pylist())]),
                "part",
                ["train", "train", "valid", "valid"] * 100,
            )
        ),
        [*LABEL, "--weight", "w", "--split-column", "part"],
        None,
        r"label column 'label' has one class only in valid among rows whose 'w' is above 0: 0 in \d+ rows; let column",
    ),
    "weight 0 in all positive rows": (
        both(lambda t: put(t, "w", [1 - one for one in t["label"].to_pylist()])),
        [*LABEL, "--weight", "w"],
        None,
        r"one class only in train among rows whose 'w' is above 0: 0 in \d+ rows; 'w' is 0 in every row that holds 1",
    ),
    "weight of text": (
        nothing,
        [*LABEL, "--weight", "city"],
        None,
        r"weight column 'city' is string; expected a number",
    ),
    "numeric dtype": (nothing, [*LABEL, "--numeric-dtype", "int8"], None, r"int8"),
    "unknown option": (nothing, [*LABEL, "--lable", "x"], None, r"--lable"),
    "unknown setting": (
        config_file("labels = ['label']"),
        [*LABEL, *CONFIG],
        None,
        r"settings\.toml: unknown setting 'labels' \(did you mean 'label'\?\)",
    ),
    "setting of another type": (
        config_file("seed = 'one'"),
        [*LABEL, *CONFIG],
        None,
        r"seed must be a whole number \(int\), got",
    ),
    "config not TOML": (config_file("seed ="), [*LABEL, *CONFIG], None, r"config file .*settings\.toml: "),
    "config with a table": (
        config_file("[prepare]\nseed = 1"),
        [*LABEL, *CONFIG],
        None,
        r"settings\.toml: 'prepare' is a table; write settings outside of any table",
    ),
    "config of JSON": (nothing, [*LABEL, "--config", "{seed: 1}"], None, "settings in JSON: cannot be read as JSON"),
    "unknown setting in JSON": (
        nothing,
        [*LABEL, "--config", '{"sead": 1}'],
        None,
        r"--config: unknown setting 'sead' \(did you mean 'seed'\?\)",
    ),
    "config missing": (nothing, [*LABEL, *CONFIG], None, r"config file .*settings\.toml: no such file"),
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Two sound files of two features and a label."""
    return write_files(tmp_path / "raw")


@pytest.mark.parametrize("case", CASES)
def test_bad_setting_is_refused_by_name(case: str, raw: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    check_refused(CASES[case], raw, monkeypatch, capsys)
