"""Embeddings that start as factors of what two columns of many codes say together."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import PrepareConfig, TrainConfig, prepare, train
from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData
from dkan_core.data.loading.loader import open_split
from dkan_core.model.base import TabularModel
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.compute.flat_model import flatten
from dkan_core.training.roles.in_process import train_single
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.code_factors import Factorization, Rows, start_at_factors
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.setup.untrained_model import untrained_model

USERS, ITEMS, ROWS = 120, 60, 12_000
FAST = TrainConfig(device="cpu", workers=1, architecture_search=False, blend=False)


def opinions(strength: float, *, seed: int = 0, users: int = USERS, groups: bool = False) -> pa.Table:
    """Return rows whose log-odds are effects of a user and an item, and an inner product of so much strength."""
    random = np.random.default_rng(seed)
    user_N, item_N = random.integers(users, size=ROWS), random.integers(ITEMS, size=ROWS)
    log_odds_N = 0.5 * random.normal(size=users)[user_N] + 0.5 * random.normal(size=ITEMS)[item_N]
    taste_CK, kind_CK = random.normal(size=(users, 2)), random.normal(size=(ITEMS, 2))
    log_odds_N += strength * (taste_CK[user_N] * kind_CK[item_N]).sum(1)
    label_N = (random.random(ROWS) < 1 / (1 + np.exp(-log_odds_N))).astype(np.int8)
    columns = {"user": [f"u{user}" for user in user_N], "item": [f"i{item}" for item in item_N], "label": label_N}
    return pa.table(columns | ({"household": user_N} if groups else {}))


def prepared(table: pa.Table, folder: Path, *, group: str | None = None) -> tuple[PreparedData, ResolvedTrainConfig]:
    pq.write_table(table, folder / "rows.parquet")
    manifest = prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("label",), group=group))
    return manifest, resolve_for(FAST, manifest)


def started(folder: Path, manifest: PreparedData, config: ResolvedTrainConfig) -> tuple[TabularModel, TabularModel]:
    """Return an untrained model, and the same one after the start at factors."""
    with open_split(folder / "data", manifest, "train") as reader:
        architecture = choose_architecture(reader, manifest, config)
        before, after = (untrained_model(architecture, manifest, config) for _ in range(2))
        start_at_factors(after, reader, manifest)
    return before, after


def test_the_factors_are_those_of_the_rows() -> None:
    random = np.random.default_rng(0)
    codes = np.stack([random.integers(USERS, size=40_000), random.integers(ITEMS, size=40_000)])
    taste_CK, kind_CK = random.normal(size=(USERS, 2)), random.normal(size=(ITEMS, 2))
    effect_C = random.normal(size=USERS)
    true_N = 0.3 + effect_C[codes[0]] + (taste_CK[codes[0]] * kind_CK[codes[1]]).sum(1)
    rows = Rows(codes, random.random(40_000) < 1 / (1 + np.exp(-true_N)), np.ones(40_000))
    found = Factorization(rows, (USERS, ITEMS), factors=4, rounds=30)
    assert np.corrcoef(found.log_odds(codes), true_N)[0, 1] > 0.95
    # Two of the four say nothing, and vanish.
    one_CK, other_CK = (each.mean_CK[:, 1:] for each in found.sides)
    size_K = np.sort(one_CK.std(0) * other_CK.std(0))
    assert size_K[1] < 0.2 * size_K[2]


def test_codes_without_rows_have_the_mean_of_all() -> None:
    random = np.random.default_rng(1)
    codes = np.stack([random.integers(1, 5, size=500), random.integers(1, 5, size=500)])
    rows = Rows(codes, random.random(500) < 0.2, np.ones(500))
    found = Factorization(rows, (6, 6), factors=2, rounds=5)
    prior = rows.target_N.mean()
    assert found.log_odds(np.zeros((2, 1), np.int64)) == pytest.approx(np.log(prior / (1 - prior)))


def test_preferences_start_at_factors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest, config = prepared(opinions(1.5), tmp_path)
    with caplog.at_level(logging.INFO):
        before, after = started(tmp_path, manifest, config)
    assert "embeddings of user and item start at factors" in caplog.text
    old, new = before.state_dict(), after.state_dict()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {"encoder.embeddings.0.weight", "encoder.embeddings.1.weight"}
    for name in changed:
        assert torch.equal(old[name][:, 4:], new[name][:, 4:])
        assert 0.1 < new[name][:, :4].square().mean(0).sqrt().max() < 1


def test_they_raise_average_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, config = prepared(opinions(1.5), tmp_path)
    config = replace(config, epochs=config.epochs // 3)
    with (
        open_split(tmp_path / "data", manifest, "train") as rows,
        open_split(tmp_path / "data", manifest, "valid") as v,
    ):
        with_factors = train_single(rows, v, manifest, config)
        monkeypatch.setattr("dkan_core.training.setup.code_factors.MIN_GAIN", np.inf)
        without = train_single(rows, v, manifest, config)
    assert with_factors.metrics["average_precision"] > without.metrics["average_precision"] + 0.01


def test_popularity_alone_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest, config = prepared(opinions(0.0), tmp_path)
    with caplog.at_level(logging.INFO):
        before, after = started(tmp_path, manifest, config)
    assert "no factors that help" in caplog.text
    assert torch.equal(flatten(before), flatten(after))


def test_few_joint_codes_are_left_to_crosses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest, config = prepared(opinions(1.5, users=20), tmp_path)
    with caplog.at_level(logging.INFO):
        before, after = started(tmp_path, manifest, config)
    assert "factors" not in caplog.text
    assert torch.equal(flatten(before), flatten(after))


def test_codes_of_many_rows_learn_by_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, config = prepared(opinions(1.5), tmp_path)
    monkeypatch.setattr("dkan_core.training.setup.code_factors.MAX_CODE_ROWS", 60)
    with caplog.at_level(logging.INFO):
        before, after = started(tmp_path, manifest, config)
    assert "factors" not in caplog.text
    assert torch.equal(flatten(before), flatten(after))


def test_rows_of_new_users_do_not_count_as_gain(tmp_path: Path) -> None:
    """The split is by user: none of what is known about one helps with another."""
    manifest, config = prepared(opinions(1.5, groups=True), tmp_path, group="household")
    before, after = started(tmp_path, manifest, config)
    assert torch.equal(flatten(before), flatten(after))


def test_weights_and_missing_labels_count() -> None:
    """Rows without weight may hold anything."""
    random = np.random.default_rng(2)
    codes = np.stack([random.integers(9, size=900), random.integers(9, size=900)])
    target_N, weight_N = random.random(900) < 0.4, (random.random(900) < 0.7).astype(np.float64)
    other_N = np.where(weight_N > 0, target_N, ~target_N)
    fits = [Factorization(Rows(codes, each_N, weight_N), (9, 9), factors=2, rounds=4) for each_N in (target_N, other_N)]
    np.testing.assert_array_equal(fits[0].log_odds(codes), fits[1].log_odds(codes))


def test_processes_start_where_one_process_does(tmp_path: Path) -> None:
    manifest, _ = prepared(opinions(1.5), tmp_path)
    still = replace(FAST, epochs=1, learning_rate=1e-12, ema_decay=0.0)
    result = train(tmp_path / "data", tmp_path / "run", still)
    _, after = started(tmp_path, manifest, resolve_for(still, manifest))
    saved = SavedModel(Path(result.model)).module.state_dict()
    name = "encoder.embeddings.0.weight"
    np.testing.assert_allclose(saved[name].numpy(), after.state_dict()[name].numpy(), atol=1e-6)
