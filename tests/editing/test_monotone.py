"""Edits and monotone curves: those that an edit makes, and those that training was asked for."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dkan_core import edit
from dkan_core.model.saved_model import SavedModel
from tests.additive_data import make_rows
from tests.editing.effects import effects

ROWS = make_rows(2_000, seed=5)
CURVE_EDITS: dict[str, tuple[dict[str, Any], Any]] = {
    "set": (
        {"start": 0.8, "stop": 9.0, "to": -2.0},
        lambda old, new, z: np.ptp(new[z > 1]) + np.ptp((new - old)[z < 0.5]),
    ),
    "scale": ({"factor": -1.0}, lambda old, new, z: np.abs(old + new).max()),
    "falling": ({"direction": "-"}, lambda old, new, z: np.ptp(new)),
    "clip": ({"high": 0.1}, lambda old, new, z: np.ptp(new[old > 0.2])),
}


@pytest.mark.parametrize("name", CURVE_EDITS)
def test_a_curve_that_was_trained_to_be_monotone_becomes_what_is_asked_for(
    name: str, monotone_model: Path, tmp_path: Path
) -> None:
    settings, error = CURVE_EDITS[name]
    action = "monotone" if name == "falling" else name
    edit(monotone_model, [{"term": "z", "action": action, **settings}], tmp_path / "edited")
    before, after = (effects(each, ROWS)[0] for each in (monotone_model, tmp_path / "edited"))
    assert np.ptp(before["z"][:, 0]) > 0.5
    assert error(before["z"][:, 0], after["z"][:, 0], np.array(ROWS["z"])) < 1e-5
    # The other constraint holds where training continues.
    config = SavedModel(tmp_path / "edited").config
    assert config.additive is not None and [sign for _, sign in config.additive.monotone] == [-1]


def test_a_monotone_column_is_so_on_both_sides_of_a_frequent_value(model: Path, tmp_path: Path) -> None:
    edit(model, [{"term": "count", "action": "monotone", "direction": "-"}], tmp_path / "edited")
    grid = np.sort(np.concatenate([np.arange(6) + step for step in (-0.3, -1e-3, 0, 1e-3, 0.3)]))
    rows = pa.table({name: ROWS[name].take([0] * len(grid)) for name in ROWS.column_names})
    rows = rows.set_column(rows.column_names.index("count"), "count", pa.array(grid))
    before, after = (effects(each, rows)[0]["count"] for each in (model, tmp_path / "edited"))
    assert (np.diff(before, axis=0) > 0.1).any() and (np.diff(after, axis=0) <= 1e-6).all()
