"""Integers are taken for codes where single values say what ranges do not; counts, amounts and noise never are."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import PrepareConfig, inspect_data
from tests.data.tables import write

ROWS = 32_000
CONFIG = PrepareConfig(label=("y",), split="60/20/20")


def make_rows(effect: float, seed: int) -> pa.Table:
    """Users who differ by an effect; and numbers of other kinds, all of which say something."""
    rng = np.random.default_rng(seed)
    user, effects = rng.integers(0, 600, ROWS), rng.normal(size=600)
    count, second = rng.poisson(rng.gamma(2, 200, ROWS)), rng.integers(0, 864, ROWS)
    amount = (rng.lognormal(7, 1, ROWS) / 50).astype(int) * 5
    odds = np.log1p(count) - 6 + np.sin(second / 100) + (amount > 100) + effect * effects[user]
    return pa.table(
        {
            "user": pa.array(user, pa.int32(), mask=rng.random(ROWS) < 0.05),
            "count": count,
            "second": second,
            "amount": amount,
            "noise": rng.integers(0, 1500, ROWS),
            "few": rng.integers(0, 200, ROWS),
            "once": rng.permutation(ROWS),
            "y": (rng.random(ROWS) < 1 / (1 + np.exp(-odds))).astype(np.int8),
        }
    )


@pytest.mark.parametrize("seed", range(3))
def test_only_codes_are_named(seed: int, tmp_path: Path) -> None:
    for name, effect, expected in (("codes", 1.0, ["user"]), ("none", 0.0, [])):
        source = write(make_rows(effect, seed), tmp_path / name)
        found = inspect_data(source, CONFIG)
        named = [each.name for each in found.columns if any("--categorical" in text for text in each.suspicions)]
        assert named == expected
        if named:
            assert "user: integers that look like codes: try --categorical user" in str(found)
        chosen = inspect_data(source, PrepareConfig(label=("y",), split="60/20/20", categorical=("user",)))
        assert not any("--categorical" in text for each in chosen.columns for text in each.suspicions)
        assert inspect_data(source).columns[0].suspicions == ()


def test_label_that_train_does_not_measure_says_nothing_of_codes(tmp_path: Path) -> None:
    split = np.resize(["train", "train", "valid", "test"], ROWS)
    table = make_rows(1.0, 0).append_column("split", pa.array(split))
    hidden = pa.array(table["y"].to_numpy(), mask=split == "train")
    source = write(table.set_column(table.column_names.index("y"), "y", hidden), tmp_path)
    found = inspect_data(source, PrepareConfig(label=("y",), split_column="split"))
    assert "y: one class only in train" in str(found) and "codes" not in str(found).rsplit("\n\n", 1)[1]
