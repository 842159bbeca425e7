"""The folds of a data set leave its test rows out, and test on rows that differ."""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks import splits
from benchmarks.splits import MAX_FOLDS, at_random, without_test

SHARES = {"train": 0.7, "valid": 0.1, "test": 0.2}


def test_parts_of_a_fold_are_disjoint_and_without_the_test_rows() -> None:
    rows = pa.table({"number": range(5_000)})
    folds = [without_test(rows, fold) for fold in range(MAX_FOLDS)]
    held_out = [{*table.filter(pc.field("split") != "train")["number"].to_pylist()} for table in folds]
    kept = {*folds[0]["number"].to_pylist()}
    assert all({*table["number"].to_pylist()} == kept for table in folds)
    assert set.union(*held_out) == kept and sum(map(len, held_out)) == len(kept)
    assert 0.78 < len(kept) / len(rows) < 0.82


def test_random_splits_use_all_rows_keep_groups_together_and_differ() -> None:
    rows = pa.table({"group_id": [number // 3 for number in range(15_000)]})
    first, second = (at_random(rows, seed) for seed in (1, 2))
    assert len(first) == len(rows) and first["split"] != second["split"]
    by_split = {name: {*first.filter(pc.field("split") == name)["group_id"].to_pylist()} for name in SHARES}
    assert sum(map(len, by_split.values())) == 5_000
    assert all(abs(len(by_split[name]) / 5_000 - share) < 0.02 for name, share in SHARES.items())


def test_every_fold_of_a_file_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"number": range(900), "label": [0, 1] * 450}), tmp_path / "rows.parquet")
    command = ["splits", str(tmp_path / "rows.parquet"), "--folds", "2", "--out", str(tmp_path / "folds")]
    monkeypatch.setattr(sys, "argv", command)
    splits.main()
    written = sorted((tmp_path / "folds").iterdir())
    assert [path.name for path in written] == ["rows-0.parquet", "rows-1.parquet"]
    assert {*pq.read_table(written[1])["split"].to_pylist()} == {*SHARES}
    monkeypatch.setattr(sys, "argv", [*command[:2], "--random", "1", "--out", str(tmp_path / "random")])
    splits.main()
    assert [path.name for path in (tmp_path / "random").iterdir()] == ["rows-random-1.parquet"]
