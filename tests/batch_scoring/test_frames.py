"""``predict`` of a frame returns a frame: the scores that a file would have, in the frame's order."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dkan_core import ConfigError, DataError, TrainResult, predict


@pytest.fixture(scope="module")
def table(source: Path) -> pa.Table:
    return pq.read_table(source).slice(0, 80)


@pytest.fixture(scope="module")
def scores(trained: TrainResult, table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Scores of the same rows, through files."""
    folder = tmp_path_factory.mktemp("files")
    pq.write_table(table, folder / "rows.parquet")
    predict(trained.model, folder / "rows.parquet", folder / "scores.parquet", columns=["site"], reasons=2)
    return pq.read_table(folder / "scores.parquet")


def test_frame_of_pandas_keeps_its_index_and_what_is_passed_through(
    trained: TrainResult, table: pa.Table, scores: pa.Table
) -> None:
    frame = table.to_pandas()
    # Another order of columns, a further one, and rows as a query leaves them.
    frame = frame[[*reversed(frame.columns)]].assign(note=object()).set_index(np.arange(80) * 7 + 3)
    found = predict(trained.model, frame, columns=["site", "note"], reasons=2)
    assert list(found.columns) == ["site", "note", "label_probability", "label_reasons"]
    assert found.index.equals(frame.index) and found["note"].equals(frame["note"])
    assert np.array_equal(found["label_probability"].to_numpy(), scores["label_probability"].to_numpy())
    assert [list(row) for row in found["label_reasons"]] == scores["label_reasons"].to_pylist()


def test_table_of_arrow_comes_back_as_one(trained: TrainResult, table: pa.Table, scores: pa.Table) -> None:
    found = predict(trained.model, table, columns=["site"], reasons=2)
    assert found.equals(scores.replace_schema_metadata())
    assert predict(trained.model, table.slice(0, 0)).num_rows == 0


def test_column_that_is_missing_throughout_is_scored_as_such(trained: TrainResult, table: pa.Table) -> None:
    frame = table.to_pandas()
    # What pandas makes of a column that a CSV file has no value for.
    empty = predict(trained.model, frame.assign(site=np.nan))
    others = table.drop_columns("site")
    for values in (pa.nulls(80, pa.string()), pa.array([np.nan] * 79 + [None])):
        found = predict(trained.model, others.append_column("site", values))
        assert np.array_equal(empty["label_probability"].to_numpy(), found["label_probability"].to_numpy())


def test_mistakes_name_the_column_or_the_setting(trained: TrainResult, table: pa.Table) -> None:
    frame = table.to_pandas()
    with pytest.raises(DataError, match="the frame: column 'mean_area' is missing; the model was trained with it"):
        predict(trained.model, frame.drop(columns="mean_area"))
    twice = pd.concat([frame[["mean_area"]], frame], axis=1)
    for each in (twice, table.append_column("mean_area", table["mean_area"])):
        with pytest.raises(DataError, match="the frame: column 'mean_area' occurs 2 times; expected each name once"):
            predict(trained.model, each)
    with pytest.raises(DataError, match="the frame: column 'mean_area' is string; the model was trained with numbers"):
        predict(trained.model, frame.assign(mean_area="large"))
    for repeated in (pd.concat([frame, frame[["mean_radius"]]], axis=1), table.append_column("mean_radius", table[0])):
        with pytest.raises(DataError, match="the frame: column 'mean_radius' occurs 2 times; expected each name once"):
            predict(trained.model, repeated)
    with pytest.raises(DataError, match="the frame: column 'key' does not exist, so it cannot be copied to the output"):
        predict(trained.model, frame, columns=["key"])
    with pytest.raises(DataError, match=r"column 'Site' does not exist, .*; did you mean 'site'\?"):
        predict(trained.model, frame, columns=["Site"])
    with pytest.raises(DataError, match="'label_probability' cannot be copied to the output"):
        predict(trained.model, frame.assign(label_probability=1), columns=["label_probability"])
    with pytest.raises(DataError, match="'label_reasons' cannot be copied to the output: the reasons have that name"):
        predict(trained.model, frame.assign(label_reasons=1), columns=["label_reasons"], reasons=1)
    with pytest.raises(ConfigError, match=r"out: s\.parquet: the scores of a frame are returned"):
        predict(trained.model, frame, "s.parquet")
    with pytest.raises(ConfigError, match="out is not given"):
        predict(trained.model, "rows.parquet")  # type: ignore[call-overload]
    assert isinstance(predict(trained.model, frame), pd.DataFrame)


def test_values_that_the_model_does_not_know_are_counted(
    trained: TrainResult, table: pa.Table, caplog: pytest.LogCaptureFixture
) -> None:
    predict(trained.model, table)
    assert not caplog.records
    predict(trained.model, table.to_pandas().assign(site="elsewhere"))
    (text,) = [record.getMessage() for record in caplog.records]
    assert text.startswith(
        "the frame: column 'site': 80 of 80 rows (100.00%) hold a value that the model does not know"
    )
