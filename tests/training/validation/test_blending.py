"""Networks are blended with an additive model; one scores alone if it is right, or the terms have gone wrong."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import PrepareConfig, TrainConfig, evaluate, prepare, train
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import open_split
from dkan_core.errors import DataError
from dkan_core.evaluation.metrics import macro_average_precision
from dkan_core.model.additive_terms import AdditiveTerms
from dkan_core.model.architecture import ModelConfig
from dkan_core.model.blended import BlendedFastKAN
from dkan_core.model.saved_model import SavedModel
from dkan_core.scoring.prepared import ScoredSplit, score_split
from dkan_core.training.additive_fit.fitted_tables import fitted_terms
from dkan_core.training.roles.in_process import train_single
from dkan_core.training.setup import additive_fit_limits
from dkan_core.training.setup.defaults import resolve_for
from dkan_core.training.validation import blending
from tests.additive_data import prepare_rows

QUICK = TrainConfig(device="cpu", workers=1, epochs=1, hidden=(4,), members=2, batch_size=128)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_rows(tmp_path_factory.mktemp("blending"))


@pytest.fixture(scope="module")
def blended(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(train(data, tmp_path_factory.mktemp("blended") / "run", QUICK).model)


def read_blend(model: Path) -> BlendedFastKAN:
    module = SavedModel(model).module
    assert isinstance(module, BlendedFastKAN)
    return module


def average_precision(data: Path, model: torch.nn.Module, split: str) -> float:
    with open_split(data, read_manifest(data), split) as reader:
        scored = score_split(model, reader, torch.device("cpu"))  # type: ignore[arg-type]
    return macro_average_precision(scored.labels_NL, scored.log_odds_NL, scored.weight_N)


def test_blend_is_better_than_its_network_on_unseen_rows_too(data: Path, blended: Path) -> None:
    module = read_blend(blended)
    for split in ("valid", "test"):
        gain = average_precision(data, module, split) - average_precision(data, module.network_alone(), split)
        assert gain > 0.05, "one epoch of four units knows little of these rows"


def test_metrics_and_thresholds_are_those_of_the_blend(data: Path, blended: Path, tmp_path: Path) -> None:
    saved = SavedModel(blended)
    found = evaluate(blended, data, tmp_path / "report", split="valid", explain=False)
    assert saved.metrics["average_precision"] == pytest.approx(found.metrics["average_precision"], abs=1e-9)
    history = [json.loads(line) for line in (blended.parent / "history.jsonl").read_text().splitlines()]
    assert saved.metrics["average_precision"] > max(entry["average_precision"] for entry in history) + 0.05


def test_same_seed_gives_the_same_bytes(data: Path, blended: Path, tmp_path: Path) -> None:
    again = Path(train(data, tmp_path / "run", QUICK).model)
    for name in ("model.safetensors", "config.json"):
        assert (again / name).read_bytes() == (blended / name).read_bytes()


def test_columns_keep_terms_and_pairs_that_say_nothing_are_left_out(blended: Path) -> None:
    saved = SavedModel(blended)
    assert saved.config.blended is not None
    names = [feature.name for feature in (*saved.preprocessor.numeric, *saved.preprocessor.coded)]
    pairs = {frozenset(names[feature] for feature in pair) for pair in saved.config.blended.additive.pairs}
    assert frozenset({"x", "z"}) in pairs and len(pairs) < 8
    assert saved.config.blended.weight in blending.WEIGHTS


@pytest.mark.parametrize("change", [{"blend": False}, {"model": "fastkan", "members": None}], ids=str)
def test_other_models_score_alone(change: dict[str, object], data: Path, tmp_path: Path) -> None:
    saved = SavedModel(Path(train(data, tmp_path / "run", replace(QUICK, **change)).model))  # type: ignore[arg-type]
    assert saved.config.blended is None and "blended" not in (saved.folder / "config.json").read_text()


def test_of_models_that_rank_every_row_correctly_the_one_with_the_lowest_loss_is_the_best(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    pq.write_table(pa.table({"x": x, "label": (x > 0).astype(int)}), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",)))
    result = train(tmp_path / "data", tmp_path / "run", replace(QUICK, epochs=6, hidden=(16,)))
    losses = [entry["validation_loss"] for entry in result.history if entry["average_precision"] == 1.0]
    best = [entry["validation_loss"] for entry in result.history if entry["best"]]
    assert len(losses) > 1 and best[-1] == min(losses) < losses[0]
    saved = SavedModel(Path(result.model))
    assert saved.metrics["average_precision"] == 1.0 and saved.config.blended is not None


@pytest.fixture
def wrong_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """An additive model that ranks the rows in the opposite order."""

    def wrong(*arguments: Any) -> AdditiveTerms:
        terms = fitted_terms(*arguments)
        return replace(terms, table_VML=-100 * terms.table_VML)

    monkeypatch.setattr(blending, "fitted_terms", wrong)


@pytest.mark.parametrize("other_rule", ["ALONE_MARGIN", "ALONE_PARTS"])
@pytest.mark.usefixtures("wrong_terms")
def test_network_scores_alone_where_the_terms_have_gone_wrong(
    other_rule: str, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As many parts as rows leave each without both classes, on which nothing is better.
    monkeypatch.setattr(blending, other_rule, 1000)
    assert architecture(data).blended is None


@pytest.mark.usefixtures("wrong_terms")
def test_too_few_positives_do_not_show_that_the_terms_have_gone_wrong(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blending, "ALONE_PARTS", 1000)
    monkeypatch.setattr(blending, "rarer_rows", lambda _: 1)
    assert architecture(data).blended is not None


def test_better_on_each_part_is_more_than_better_on_all_rows() -> None:
    rng = np.random.default_rng(0)
    labels_NL = rng.integers(2, size=(2000, 1)).astype(np.uint8)
    good, bad = (
        ScoredSplit(labels_NL, (scale * labels_NL + rng.normal(size=labels_NL.shape)).astype(np.float32), None)
        for scale in (3, 1)
    )
    assert blending.is_better_on_each_part(good, bad) and not blending.is_better_on_each_part(bad, good)
    assert not blending.is_better_on_each_part(good, good)
    last = np.arange(2000)[:, None] % blending.ALONE_PARTS == blending.ALONE_PARTS - 1
    mixed = replace(good, log_odds_NL=np.where(last, bad.log_odds_NL, good.log_odds_NL))
    assert not blending.is_better_on_each_part(mixed, bad)


def test_few_positives_have_to_show_more_for_an_unusual_weight() -> None:
    values = {0.2: 0.91, 0.4: 0.895, 0.6: 0.9, 0.8: 0.85}
    assert blending.chosen_weight(values, rows=25) == blending.USUAL_WEIGHT
    assert blending.chosen_weight(values, rows=250) == 0.2


def architecture(data: Path) -> ModelConfig:
    """Return that of a model that is trained in this process."""
    manifest = read_manifest(data)
    with open_split(data, manifest, "train") as rows, open_split(data, manifest, "valid") as valid:
        return train_single(rows, valid, manifest, resolve_for(QUICK, manifest)).model.config


def test_of_many_rows_the_first_ones_are_taken(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    encoding = read_manifest(data).preprocessor
    terms = len(encoding.numeric) + len(encoding.coded) + additive_fit_limits.MAX_FITTED_PAIRS
    monkeypatch.setattr(additive_fit_limits, "MIN_SAMPLED_ROWS", 500)
    monkeypatch.setattr(additive_fit_limits, "MAX_BLEND_CELLS", 600 * 2 * terms)
    with caplog.at_level(logging.INFO):
        found = architecture(data)
    assert found.blended is not None and "fitted to 600 rows" in caplog.text


def test_table_with_more_columns_than_its_rows_can_tell_apart_is_the_network_s_alone(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(additive_fit_limits, "MAX_BLEND_CELLS", 1_000)
    assert architecture(data).blended is None


def test_training_goes_on_from_the_network_of_a_blend(data: Path, blended: Path, tmp_path: Path) -> None:
    network = read_blend(blended).network_alone()
    config = replace(QUICK, init_from=str(blended), learning_rate=1e-9, warmup_fraction=0.0, ema_decay=0.0)
    run = tmp_path / "run"
    saved = SavedModel(Path(train(data, run, config).model))
    assert isinstance(saved.module, BlendedFastKAN)
    for name, tensor in saved.module.network_alone().state_dict().items():
        torch.testing.assert_close(tensor, network.state_dict()[name], atol=1e-5, rtol=1e-4)


# The label depends on the sum of many ids: far more than four hidden units learn in an epoch.
IDS, WIDE = 300, TrainConfig(device="cpu", workers=1, epochs=1, hidden=(4,), members=1, batch_size=256)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return prepared rows whose only column holds ids, and others beside them that have a number, too."""
    root = tmp_path_factory.mktemp("listed")
    rng = np.random.default_rng(0)
    ones_NV = rng.random((6_000, IDS)) < 0.05
    x_N, odds_N = rng.normal(size=len(ones_NV)), ones_NV @ rng.normal(size=IDS)
    ids = pa.array([np.flatnonzero(ones_V).tolist() for ones_V in ones_NV])
    for name, columns, added_N in (("alone", {}, 0), ("mixed", {"x": x_N}, 2 * np.sin(2 * x_N))):
        label_N = (odds_N + added_N + rng.logistic(size=len(x_N)) > 0).astype(int)
        pq.write_table(pa.table({"ids": ids, **columns, "label": label_N}), root / f"{name}.parquet")
        prepare(root / f"{name}.parquet", root / name, PrepareConfig(label=("label",)))
    return root


@pytest.mark.parametrize("name", ["alone", "mixed"])
def test_ids_have_a_term(name: str, listed: Path, tmp_path: Path) -> None:
    data = listed / name
    saved = SavedModel(Path(train(data, tmp_path / "run", WIDE).model))
    module = saved.module
    assert isinstance(module, BlendedFastKAN) and module.encoder.sparse is not None
    assert saved.config.blended is not None and saved.config.blended.ids
    weights_VL = module.additive.ids.weight  # type: ignore[union-attr]
    assert weights_VL.shape == (1 + IDS, 1) and weights_VL.std() > 0.5 and not weights_VL[0].any()
    gain = average_precision(data, module, "test") - average_precision(data, module.network_alone(), "test")
    assert gain > 0.03
    with open_split(data, read_manifest(data), "test") as reader:
        scored = score_split(module, reader, torch.device("cpu"))
        additive = score_split(module.additive, reader, torch.device("cpu"))
        network = score_split(module.network_alone(), reader, torch.device("cpu"))
    weight = saved.config.blended.weight
    both_NL = (1 - weight) * network.log_odds_NL + weight * additive.log_odds_NL
    scale, shift = module.calibration_scale.item(), module.calibration_shift.item()
    np.testing.assert_allclose(scored.log_odds_NL, scale * both_NL + shift, atol=1e-4)


def test_same_seed_gives_the_same_bytes_with_ids(listed: Path, tmp_path: Path) -> None:
    first, second = (Path(train(listed / "mixed", tmp_path / run, WIDE).model) for run in ("first", "second"))
    for name in ("model.safetensors", "config.json", "metrics.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_refit_keeps_the_penalty_of_ids(listed: Path, tmp_path: Path) -> None:
    first = train(listed / "mixed", tmp_path / "first", WIDE)
    both = train(listed / "mixed", tmp_path / "both", replace(WIDE, refit=True))
    penalty = first.metrics["labels"]["label"]["id_penalty"]
    assert both.metrics["labels"]["label"]["id_penalty"] == penalty > 0
    earlier, later = (read_blend(Path(each.model)).additive.ids for each in (first, both))
    assert earlier is not None and later is not None
    assert 0 < (earlier.weight - later.weight).abs().mean() < 0.3, "of a few more rows"


def test_training_goes_on_from_a_blend_with_ids(listed: Path, tmp_path: Path) -> None:
    first = Path(train(listed / "alone", tmp_path / "first", WIDE).model)
    second = Path(train(listed / "alone", tmp_path / "second", replace(WIDE, init_from=str(first))).model)
    assert read_blend(second).additive.ids is not None


def test_more_ids_than_can_be_fitted_are_the_network_s_alone(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive_fit_limits, "MAX_BLEND_CELLS", 6_000 * (1 + additive_fit_limits.MAX_FITTED_PAIRS))
    assert architecture(listed / "alone").blended is None
    mixed = architecture(listed / "mixed")
    assert mixed.blended is not None and not mixed.blended.ids
    assert "ids" not in mixed.to_dict()["blended"] and ModelConfig.from_dict(mixed.to_dict()) == mixed


def test_ids_without_a_column_are_refused(data: Path, blended: Path) -> None:
    plain = SavedModel(blended).config.to_dict()
    assert "ids" not in plain["blended"]
    with pytest.raises(DataError, match=r"blended\.ids: there must be a sparse column"):
        ModelConfig.from_dict({**plain, "blended": {**plain["blended"], "ids": True}})
