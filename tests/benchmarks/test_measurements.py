"""Files that the sets of measurements are made of are read with the names and missing values that they state."""

from pathlib import Path

import pandas as pd
import pytest

from benchmarks.measurements import keel_rows, labelled

BODY = "1.5, yes ,<null>\n?,no,2\n"


@pytest.mark.parametrize(
    ("head", "names"),
    [
        ("@relation x\n@attribute 'Some age' real [0,1]\n@attribute b{yes,no}\n@data\n", ["Some age", "b", "x2"]),
        ("", ["x0", "x1", "x2"]),
    ],
)
def test_rows_have_the_names_of_their_header(head: str, names: list[str], tmp_path: Path) -> None:
    head = head.replace("@data", "@attribute x2 integer [0,2]\n@data")
    (tmp_path / "x.dat").write_text(head + BODY)
    rows = keel_rows(tmp_path / "x.dat")
    assert list(rows.columns) == names
    assert rows.iloc[:, 0].isna().tolist() == [False, True] and rows.iloc[:, 2].isna().tolist() == [True, False]


def test_labelled_rows_keep_what_is_missing() -> None:
    rows = labelled(pd.DataFrame({"a": [1.0, None], "b": [" yes", None]}), pd.Series([True, False]))
    rows = rows.sort_values("label")
    assert (
        rows["label"].tolist() == [0, 1]
        and rows["b"].tolist() == [None, "yes"]
        and rows["a"].isna().tolist() == [True, False]
    )
