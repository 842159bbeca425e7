"""What pays on unseen rows gets weights of its own; noise does not."""

import numpy as np
import pyarrow as pa
import pytest

from dkan_core.data.encoding.fitting import fit_preprocessor
from dkan_core.data.encoding.preprocessor import Preprocessor
from dkan_core.training.setup.feature_crosses import PLENTIFUL_ROWS, choose_missing, choose_one_hot_groups, halves

ROWS = 20_000
Table = dict[str, np.ndarray]


def columns() -> Table:
    rng = np.random.default_rng(0)
    return {
        "age": rng.integers(18, 80, ROWS).astype(float),
        "month": rng.integers(1, 13, ROWS).astype(float),
        "day": rng.integers(1, 29, ROWS).astype(float),
        "noise": rng.integers(0, 50, ROWS).astype(float),
        "color": rng.choice(["red", "green", "blue"], ROWS),
        "shape": rng.choice(["round", "flat"], ROWS),
    }


def chosen(
    data: Table, log_odds: np.ndarray, labels: int = 1, rows: int = ROWS, group: np.ndarray | None = None
) -> set[str]:
    """Draw labels, encode, and return the chosen groups as "a x b"."""
    rng = np.random.default_rng(1)
    target = (rng.random((ROWS, labels)) < 1 / (1 + np.exp(-log_odds[:, None]))).astype(np.uint8)
    table = pa.table({name: pa.array(values) for name, values in data.items()})
    texts = [name for name, values in data.items() if values.dtype.kind == "U"]
    preprocessor = fit_preprocessor(table, [name for name in data if name not in texts], texts, "uint8", "rows")
    sample = {**preprocessor.transform(table, "rows"), "labels": target}
    if group is not None:
        sample["group"] = group.astype(np.uint8)
    names = [feature.name for feature in preprocessor.coded]
    groups = choose_one_hot_groups(preprocessor, sample, rows)
    return {" x ".join(sorted(names[index] for index in group)) for group in groups}


def test_smooth_effects_need_no_exact_values_and_no_cross() -> None:
    data = columns()
    found = chosen(data, 0.05 * (data["age"] - 50) + 0.2 * data["month"] - 2 + (data["color"] == "red"))
    assert found == {"color", "shape"}


def test_values_that_stand_out_are_found() -> None:
    data = columns()
    assert "age" in chosen(data, -2.0 + 3.0 * np.isin(data["age"], [20, 33, 47, 48, 61]))


def test_a_pair_that_is_more_than_its_sum_is_found() -> None:
    data = columns()
    special = np.random.default_rng(2).normal(size=(13, 29)) * 2
    log_odds = special[data["month"].astype(int), data["day"].astype(int)] - 1
    assert "day x month" in chosen(data, log_odds)
    assert "color x shape" in chosen(data, 2.0 * ((data["color"] == "red") ^ (data["shape"] == "flat")) - 1)


def test_what_holds_within_groups_alone_is_no_cross() -> None:
    data = columns()
    date = data["month"].astype(int) * 29 + data["day"].astype(int)
    of_date = np.random.default_rng(2).normal(size=13 * 29)[date] - 1
    of_pair = 2.0 * ((data["color"] == "red") ^ (data["shape"] == "flat"))
    # The 336 dates in 251 groups: some share a number.
    assert chosen(data, of_date + of_pair) >= {"day x month", "color x shape"}
    found = chosen(data, of_date + of_pair, group=date % 251)
    assert "color x shape" in found and not any("day" in name and "month" in name for name in found)


def test_halves_hold_whole_groups() -> None:
    group = np.array([7, 200, 7, 3, 200, 90], np.uint8)
    assert halves({"group": group, "labels": np.zeros((6, 1))}).tolist() == [1, 1, 1, 0, 1, 0]
    assert halves({"labels": np.zeros((5, 1))}).tolist() == [0, 1, 0, 1, 0]


@pytest.mark.parametrize(("strength", "expected"), [(0.5, {"code", "kind", "code x kind"}), (0.0, {"code", "kind"})])
def test_a_pair_of_many_codes_is_found_where_there_is_one(strength: float, expected: set[str]) -> None:
    """What is noise in the effects of the columns themselves must not be held against their pair."""
    rng = np.random.default_rng(0)
    code, kind = rng.integers(0, 150, ROWS), rng.integers(0, 8, ROWS)
    data = {"code": np.char.add("k", code.astype(str)), "kind": np.char.add("c", kind.astype(str))}
    rng = np.random.default_rng(3)
    of_code, of_pair = rng.normal(size=150)[code], rng.normal(size=(150, 8))[code, kind]
    assert chosen(data, of_code + strength * of_pair - 1) == expected


def test_pure_noise_gains_nothing_with_several_labels_either() -> None:
    assert chosen(columns(), np.full(ROWS, -1.0)) == {"color", "shape"}
    assert chosen(columns(), np.full(ROWS, -1.0), labels=4) == {"color", "shape"}


def test_missing_values_keep_weights_where_exact_values_do_not_pay() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 50, ROWS).astype(float)
    table = pa.table(
        {"gappy": pa.array(np.where(rng.random(ROWS) < 0.2, np.nan, values), from_pandas=True), "full": values}
    )
    preprocessor = fit_preprocessor(table, ["gappy", "full"], [], "uint8", "rows")
    sample = {**preprocessor.transform(table, "rows"), "labels": rng.integers(0, 2, (ROWS, 1)).astype(np.uint8)}
    one_hot_groups = choose_one_hot_groups(preprocessor, sample, ROWS)
    index = [feature.name for feature in preprocessor.coded].index("gappy")
    assert one_hot_groups == () and choose_missing(preprocessor, sample, one_hot_groups) == (index,)
    assert choose_missing(preprocessor, sample, [(index,)]) == ()


def test_codes_with_rows_in_plenty_are_kept_anyhow() -> None:
    assert "month" in chosen(columns(), np.full(ROWS, -1.0), rows=PLENTIFUL_ROWS * 20)


@pytest.mark.parametrize("value", [0, 1, 255])
def test_labels_of_one_class_choose_categories_alone(value: int) -> None:
    preprocessor = Preprocessor(numeric=[], coded=[], numeric_dtype="uint8")
    assert choose_one_hot_groups(preprocessor, {"labels": np.zeros((5, 1), np.uint8)}, 5) == ()
    table = pa.table({"color": ["a", "b"] * 50})
    preprocessor = fit_preprocessor(table, [], ["color"], "uint8", "rows")
    sample = {**preprocessor.transform(table, "rows"), "labels": np.full((100, 1), value, np.uint8)}
    assert choose_one_hot_groups(preprocessor, sample, 100) == ((0,),)
