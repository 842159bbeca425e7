"""Starting from a model where the data have more columns or labels: what is known is kept, the rest is named."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import DataError, PrepareConfig, TrainConfig, prepare, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.probabilities import log_odds
from tests.command import check, dkan

CONFIG = TrainConfig(
    blend=False, epochs=2, device="cpu", workers=1, batch_size=64, learning_rate=0.02, hidden=(8,), members=2
)
STILL = TrainConfig(blend=False, epochs=1, device="cpu", workers=1, batch_size=64, learning_rate=1e-12)
LABELS = ("late", "lost")


def table(rows: int, seed: int) -> pa.Table:
    """Return rows with curved, binary and repeated numbers, categories, a cross that pays, and labels of them."""
    rng = np.random.default_rng(seed)
    columns = {
        "size": rng.normal(size=rows),
        "flag": rng.integers(0, 2, rows).astype(np.float64),
        "count": rng.integers(0, 6, rows).astype(np.float64),
        "site": rng.choice(["north", "south", "west"], rows),
        "kind": rng.choice(["a", "b"], rows),
        "later": rng.normal(size=rows),
        "later_flag": rng.integers(0, 2, rows).astype(np.float64),
        "later_site": rng.choice(["x", "y", "z"], rows),
    }
    cross = (columns["site"] == "north") == (columns["kind"] == "a")
    chance = columns["size"] + 2 * columns["flag"] + 3 * cross + columns["later"] - 3
    labels = {"late": chance > 0, "lost": columns["count"] + columns["size"] > 3, "found": columns["later"] > 0}
    return pa.table({**columns, **{name: value.astype(np.int8) for name, value in labels.items()}})


NEW = ["later", "later_flag", "later_site"]


@pytest.fixture(scope="module")
def wider(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files old.parquet, without the new columns and label, and new.parquet."""
    folder = tmp_path_factory.mktemp("wider")
    pq.write_table(table(700, 0).drop_columns([*NEW, "found"]), folder / "old.parquet")
    pq.write_table(table(700, 1), folder / "new.parquet")
    prepare(folder / "old.parquet", folder / "old", PrepareConfig(label=LABELS))
    return folder


@pytest.mark.parametrize(
    "settings",
    [{"members": 2}, {"model": "fastkan", "members": 1}, {"hidden": (8, 4), "members": 2}],
    ids=["members", "fastkan", "layers"],
)
def test_answers_stay_until_something_is_learned(settings: dict[str, Any], wider: Path, tmp_path: Path) -> None:
    """Columns and a label are added: for the labels that there were, the log-odds are the same to rounding."""
    first = train(wider / "old", tmp_path / "first", replace(CONFIG, **settings))
    extended = PrepareConfig(like=first.model, extend=True, label=("found",))
    prepare(wider / "new.parquet", tmp_path / "data", extended)
    second = train(tmp_path / "data", tmp_path / "second", replace(STILL, init_from=first.model))
    old, new = SavedModel(Path(first.model)), SavedModel(Path(second.model))
    assert new.config.labels == ("late", "lost", "found")
    assert {*new.preprocessor.columns} == {*old.preprocessor.columns, *NEW}
    rows = pq.read_table(wider / "new.parquet")
    outputs = []
    for saved in (old, new):
        saved.module.calibrate()
        outputs.append(log_odds(saved.module, saved.preprocessor.transform(rows, "rows"), torch.device("cpu")).numpy())
    np.testing.assert_allclose(outputs[1][:, :2], outputs[0], atol=2e-5)
    assert np.ptp(outputs[0][:, 0]) > 0.5


def test_new_columns_are_learned_and_a_killed_run_goes_on(wider: Path, tmp_path: Path, caplog: Any) -> None:
    first = train(wider / "old", tmp_path / "first", replace(CONFIG, epochs=6))
    prepare(wider / "new.parquet", tmp_path / "data", PrepareConfig(like=first.model, extend=True))
    same = PrepareConfig(like=first.model, drop=("found",))
    prepare(wider / "new.parquet", tmp_path / "same", same)
    assert read_manifest(tmp_path / "same").preprocessor == SavedModel(Path(first.model)).preprocessor
    start = TrainConfig(
        blend=False, epochs=3, device="cpu", workers=1, batch_size=64, learning_rate=0.02, init_from=first.model
    )
    known = train(tmp_path / "same", tmp_path / "known", start)
    with caplog.at_level(logging.INFO):
        wide = train(tmp_path / "data", tmp_path / "wide", start)
    assert "columns that start from scratch: 'later', 'later_flag', 'found', 'later_site'" in caplog.text
    assert wide.average_precision > known.average_precision + 0.02
    train(tmp_path / "data", tmp_path / "run", replace(start, max_seconds=1e-3))
    resumed = train(tmp_path / "data", tmp_path / "run", replace(start, resume="auto"))
    assert resumed.history[-1]["average_precision"] == wide.history[-1]["average_precision"]


def test_where_nothing_fits_it_says_what_differs(wider: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    first = train(wider / "old", tmp_path / "first", replace(CONFIG, epochs=1))
    pq.write_table(table(1000, 2).drop_columns(["found"]), tmp_path / "rows.parquet")
    options = ["--out", tmp_path / "data", "--label", "late", "--label", "lost"]
    drop = ["--drop", "flag", "--drop", "kind"]
    assert dkan("prepare", tmp_path / "rows.parquet", *options, *drop, monkeypatch=monkeypatch) == 0
    arguments = ["train", tmp_path / "data", "--out", tmp_path / "run", "--init-from", first.model]
    message = (
        r"data: no column is encoded as the model of init_from, .*, knows it \(another encoding of 'size', .*"
        r", without 'flag', 'kind'\); prepare its source with `dkan prepare ... --extend --like"
    )
    capsys.readouterr()
    check(dkan(*arguments, monkeypatch=monkeypatch), capsys.readouterr().err, message)
    kept = ["--init-optimizer", "kept"]
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(like=first.model, extend=True), overwrite=True)
    check(
        dkan(*arguments, *kept, monkeypatch=monkeypatch),
        capsys.readouterr().err,
        "init_optimizer kept: there are columns or labels that the model does not know",
    )
    code = dkan(
        "prepare",
        tmp_path / "rows.parquet",
        "--out",
        tmp_path / "no",
        "--extend",
        "--label",
        "late",
        monkeypatch=monkeypatch,
    )
    check(
        code, capsys.readouterr().err, "extend: there is nothing to extend; name a model or prepared data with --like"
    )
    prepare(wider / "new.parquet", tmp_path / "found", PrepareConfig(label=("found",)))
    tables = TrainConfig(model="additive", epochs=1, device="cpu", workers=1)
    additive = train(wider / "old", tmp_path / "additive", tables)
    with pytest.raises(DataError, match=r"data: has other columns .* is additive, and cannot be extended"):
        train(tmp_path / "data", tmp_path / "run", replace(tables, init_from=additive.model))
    with pytest.raises(DataError, match="has labels found; the model of init_from"):
        train(tmp_path / "found", tmp_path / "run", replace(STILL, init_from=first.model))


def test_parts_and_workers_extend_to_the_same_bytes(wider: Path, tmp_path: Path) -> None:
    config = PrepareConfig(like=str(wider / "old"), extend=True, label=("found",))
    whole = prepare(wider / "new.parquet", tmp_path / "whole", config)
    parts = prepare(wider / "new.parquet", tmp_path / "parts", config, workers=3)
    assert parts.fingerprint == whole.fingerprint
    assert whole.labels == ["late", "lost", "found"] and whole.encoding_from is not None
