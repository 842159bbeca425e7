"""Rows that belong together have the same number in the shards, however they were split and prepared."""

import itertools
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dkan_core import DataError, PrepareConfig, TrainConfig, append_rows, prepare, train
from dkan_core.config import ResolvedStrategy
from dkan_core.config.prepare import SPLITS
from dkan_core.config.strategies import MODEL_PARALLEL
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.preparation import task
from dkan_core.data.source.time_split import STRETCHES
from tests.data.stages import run
from tests.data.tables import ROWS, contents, make_rows, read, write

SITE = np.random.default_rng(3).permutation(np.arange(ROWS) % 90)
DAY = np.arange(ROWS) // 10
RULES = {
    "group": {"group": "site"},
    "column and group": {"group": "site", "split_column": "part"},
    "time": {"split_by_time": "day"},
    "time and group": {"group": "site", "split_by_time": "day"},
}


def with_groups() -> pa.Table:
    part = np.array(SPLITS)[np.searchsorted([60, 75], SITE, side="right")].tolist()
    return (
        make_rows()
        .append_column("site", pa.array(SITE))
        .append_column("day", pa.array(DAY))
        .append_column("part", pa.array(part))
    )


def settings(rule: str, **others: Any) -> PrepareConfig:
    named = RULES[rule]
    drop = {"site", "day", "part"} - {*named.values()}
    return PrepareConfig(label=("y",), drop=tuple(sorted(drop)), **named, **others)  # type: ignore[arg-type]


def numbers(folder: Path, split: str) -> tuple[list[int], list[int]]:
    """Return row numbers, kept as weights, and group numbers of a split."""
    arrays = read(folder, split)
    return arrays["weight"].astype(int).tolist(), arrays["group"].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_a_group_have_one_number(tmp_path: Path, rule: str) -> None:
    made = prepare(write(with_groups(), tmp_path / "raw", files=3), tmp_path / "out", settings(rule, weight="row"))
    assert made.grouped and read_manifest(tmp_path / "out") == made
    of_group = DAY if rule == "time" else SITE
    found: dict[int, set[int]] = {}
    for split in SPLITS:
        for row, number in zip(*numbers(tmp_path / "out", split), strict=True):
            found.setdefault(int(of_group[row]), set()).add(number)
    assert len(found) == len(set(of_group.tolist())) and all(len(each) == 1 for each in found.values())
    different = {number for each in found.values() for number in each}
    assert len(different) == STRETCHES if rule == "time" else 60 < len(different) <= 90


def test_stretches_of_time_are_of_about_equal_rows(tmp_path: Path) -> None:
    prepare(write(with_groups(), tmp_path / "raw"), tmp_path / "out", settings("time", weight="row"))
    rows, stretches = map(np.array, numbers(tmp_path / "out", "train"))
    assert (np.diff(stretches[np.argsort(rows)]) >= 0).all()
    assert np.ptp(np.bincount(stretches, minlength=STRETCHES)) <= 10
    assert set(numbers(tmp_path / "out", "test")[1]) == {STRETCHES - 1}


@pytest.mark.parametrize("rule", RULES)
def test_bytes_are_the_same_by_workers_and_by_pods(tmp_path: Path, rule: str) -> None:
    paths = write(with_groups(), tmp_path / "raw", files=3, row_group_size=400)
    prepare(paths, tmp_path / "out", settings(rule))
    prepare(paths, tmp_path / "workers", settings(rule), workers=2)
    run(paths, tmp_path / "pods", settings(rule), 3)
    assert contents(tmp_path / "out") == contents(tmp_path / "workers") == contents(tmp_path / "pods")


def test_group_beside_a_column_of_splits_may_not_be_missing(tmp_path: Path) -> None:
    table = with_groups()
    site = pc.if_else(pc.equal(table["site"], 5), None, table["site"])
    paths = write(table.set_column(table.column_names.index("site"), "site", site), tmp_path / "raw")
    with pytest.raises(DataError, match=r"part-000\.parquet: group column 'site' is missing in 3\d rows"):
        prepare(paths, tmp_path / "out", settings("column and group"))
    assert not (tmp_path / "out").exists()


def test_groups_may_be_bytes_of_any_length(tmp_path: Path) -> None:
    site = pa.array([b"s" * (number + 1) for number in SITE.tolist()], pa.binary())
    rows = make_rows().select(["row", "y"]).append_column("site", site)
    made = prepare(write(rows, tmp_path / "raw"), tmp_path / "out", PrepareConfig(label=("y",), group="site"))
    rule = {"by": "group", "column": "site", "percent": "70/10/20", "keys": "texts"}
    assert made.grouped and made.split_rule == rule


def test_group_that_is_not_a_number_is_missing(tmp_path: Path) -> None:
    table = with_groups()
    site = table["site"].to_numpy().astype(float)
    site[:7] = np.nan
    paths = write(table.set_column(table.column_names.index("site"), "site", pa.array(site)), tmp_path / "raw")
    with pytest.raises(DataError, match="group column 'site' is missing in 7 rows"):
        prepare(paths, tmp_path / "out", settings("group"))


def test_groups_of_another_type_join_those_of_equal_value_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_groups()
    index, site = table.column_names.index("site"), table["site"]

    def rows(kind: pa.DataType, name: str, part: slice) -> list[Path]:
        changed = table.set_column(index, "site", site.cast(kind))
        return write(changed.slice(part.start, part.stop - part.start), tmp_path / name)

    kinds = {"float": pa.float64(), "int": pa.int16(), "decimal": pa.decimal128(30, 3)}
    new = {name: rows(kind, f"new-{name}", slice(2000, len(table))) for name, kind in kinds.items()}
    for name, kind in kinds.items():
        for other in kinds:
            out = tmp_path / f"{name}-{other}"
            prepare(rows(kind, f"old-{name}-{other}", slice(0, 2000)), out, settings("group", weight="row"))
            append_rows(new[other], out)
            found = [{*SITE[read(out, split)["weight"].astype(int)].tolist()} for split in SPLITS]
            assert not any(first & second for first, second in itertools.combinations(found, 2))
    with pytest.raises(DataError, match="group column 'site' holds texts; that of the rows there holds numbers"):
        append_rows(rows(pa.string(), "texts", slice(2000, len(table))), out)
    # As version 0.2 wrote it.
    with monkeypatch.context() as patch:
        patch.setattr(task, "split_keys", lambda *_: {})
        prepare(tmp_path / "old-float-int", tmp_path / "before", settings("group", weight="row"))
    with pytest.raises(DataError, match=r"version 0\.2 prepared the rows there and splits group column 'site'"):
        append_rows(new["float"], tmp_path / "before")
    append_rows(new["int"], tmp_path / "before")


@pytest.mark.parametrize("rule", ["group", "column and group"])
@pytest.mark.parametrize("grouped", [True, False], ids=["with numbers", "of an earlier version"])
def test_new_rows_have_what_the_old_ones_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: str, grouped: bool
) -> None:
    table = with_groups()
    old = write(table.slice(0, 2000), tmp_path / "old")
    with monkeypatch.context() as patch:
        patch.setattr(PrepareConfig, "has_groups", property(lambda _: grouped))
        prepare(old, tmp_path / "out", settings(rule, weight="row"))
    append_rows(write(table.slice(2000), tmp_path / "new"), tmp_path / "out")
    arrays = read(tmp_path / "out", "train")
    assert ("group" in arrays) == grouped == read_manifest(tmp_path / "out").grouped
    if grouped:
        number = dict(zip(SITE[arrays["weight"].astype(int)].tolist(), arrays["group"].tolist(), strict=True))
        assert [number[SITE[int(row)]] for row in arrays["weight"]] == arrays["group"].tolist()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grouped")
    prepare(write(with_groups(), folder / "raw"), folder / "data", settings("column and group"))
    return folder / "data"


@pytest.mark.slow
@pytest.mark.parametrize("model", ["auto", "additive"])
@pytest.mark.parametrize("strategy", sorted({*get_args(ResolvedStrategy)} - {*MODEL_PARALLEL}))
def test_every_strategy_of_whole_models_trains_on_grouped_rows(
    prepared: Path, tmp_path: Path, strategy: ResolvedStrategy, model: str
) -> None:
    config = TrainConfig(
        model=model,  # type: ignore[arg-type]
        strategy=strategy,
        workers=1 if strategy == "single" else 2,
        device="cpu",
        epochs=1,
        batch_size=500,
    )
    result = train(prepared, tmp_path / "run", config)
    rows = read_manifest(prepared).splits["train"].rows
    assert result.metrics["training"]["ledger"]["rows"] == rows
