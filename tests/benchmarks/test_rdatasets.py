"""Sets of R packages become rows of features, a label and groups."""

import pandas as pd

from benchmarks.rdatasets import Source, labelled

ROWS = pd.DataFrame(
    {
        "rownames": [1, 2, 3, 4],
        "who": ["b", "a", "b", "c"],
        "spent": [0.0, None, 7.0, 9.0],
        "site": [1.0, 2.0, None, 3.0],
        "age": [20, 30, 40, 50],
        "paid": [1, 2, 3, 4],
    }
)


def source(group: str | None) -> Source:
    return Source(
        package="",
        item="",
        asked="spent",
        positive=lambda column: column > 5,
        left_out=("paid",),
        categorical=("site",),
        group=group,
    )


def test_label_takes_its_column_along_and_rows_without_one_are_left_out() -> None:
    rows = labelled(ROWS, source("who"))
    assert [*rows.columns] == ["group_id", "site", "age", "label"]
    assert rows["label"].tolist() == [0, 1, 1] and rows["group_id"].tolist() == [0, 0, 1]
    assert rows["site"].tolist() == ["1", None, "3"], "numbers that are names"


def test_rows_without_groups_are_shuffled_the_same_way_each_time() -> None:
    rows = labelled(ROWS, source(None))
    assert sorted(rows["age"]) == [20, 40, 50] and "who" in rows
    pd.testing.assert_frame_equal(rows, labelled(ROWS, source(None)))
