"""Additive models fitted again: the same each time, better than a short training, without pairs that are noise."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import PrepareConfig, TrainConfig, prepare
from dkan_core.config import ResolvedTrainConfig
from dkan_core.data.format.manifest import PreparedData, read_manifest
from dkan_core.data.loading.loader import RowReader, open_split
from dkan_core.evaluation.metrics import mean_log_loss
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_terms import AdditiveTerms
from dkan_core.model.architecture import additive_shape
from dkan_core.scoring.prepared import score_split
from dkan_core.training.additive_fit import fitted_tables
from dkan_core.training.additive_fit.additive_tables import TableMaker, with_smooth_pairs
from dkan_core.training.additive_fit.fitted_tables import (
    FINE_BINS,
    MIN_PAIR_EFFECT,
    _Rows,
    fitted_terms,
    without_idle_pairs,
)
from dkan_core.training.setup.additive_fit_limits import MAX_FITTED_CELLS
from dkan_core.training.setup.architecture import choose_architecture
from dkan_core.training.setup.defaults import resolve_for
from tests.additive_data import QUICK, ROWS, make_rows, prepare_rows


@dataclass(frozen=True, kw_only=True)
class Setting:
    prepared: PreparedData
    train: RowReader
    valid: RowReader

    def config(self, **settings: object) -> ResolvedTrainConfig:
        return resolve_for(TrainConfig(**{**vars(QUICK), "workers": 1, **settings}), self.prepared)

    def untrained(self, config: ResolvedTrainConfig) -> AdditiveFastKAN:
        return AdditiveFastKAN(choose_architecture(self.train, self.prepared, config))

    def fitted_terms(self, config: ResolvedTrainConfig) -> AdditiveTerms:
        model = self.untrained(config)
        return fitted_terms(model, self.train, config)

    def loss(self, terms: AdditiveTerms) -> float:
        scored = score_split(terms.to_model(), self.valid, torch.device("cpu"))
        return mean_log_loss(scored.labels_NL, scored.log_odds_NL.astype(np.float64), scored.weight_N)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with opened(prepare_rows(tmp_path_factory.mktemp("fitted_tables"))) as found:
        yield found


@contextmanager
def opened(folder: Path) -> Iterator[Setting]:
    prepared = read_manifest(folder)
    with ExitStack() as stack:
        train, valid = (stack.enter_context(open_split(folder, prepared, split)) for split in ("train", "valid"))
        yield Setting(prepared=prepared, train=train, valid=valid)


def test_the_pair_that_is_there_is_kept_and_most_others_are_left_out(setting: Setting) -> None:
    config = setting.config()
    tried, terms = setting.untrained(config).layout.pairs, setting.fitted_terms(config)
    encoding = setting.prepared.preprocessor
    names = [feature.name for feature in (*encoding.numeric, *encoding.coded)]
    kept = [{names[feature] for feature in pair} for pair in additive_shape(terms.config).pairs]
    assert {"x", "z"} in kept and len(kept) < len(tried) / 2
    spread = [np.sqrt(np.mean(terms.mean_VL[pair.rows, 0] ** 2)) for pair in terms.layout.pairs]
    assert max(spread) == spread[kept.index({"x", "z"})]


def test_pairs_have_fine_bins_of_continuous_numbers_only(setting: Setting) -> None:
    config = setting.config(pairs="10")
    tried, terms = additive_shape(setting.untrained(config).config), setting.fitted_terms(config)
    encoding = setting.prepared.preprocessor
    names = [feature.name for feature in (*encoding.numeric, *encoding.coded)]
    fine = {names[each.feature] for each in additive_shape(terms.config).binned if len(each.cuts) == FINE_BINS}
    assert fine == {"x", "z", "noise"}
    others = [each for each in additive_shape(terms.config).binned if names[each.feature] not in fine]
    assert others and all(each.cuts == tried.cuts_of(each.feature) for each in others)


def test_it_is_the_same_each_time_and_members_differ_around_it(setting: Setting) -> None:
    config = setting.config(pairs="3")
    first, second = setting.fitted_terms(config), setting.fitted_terms(config)
    np.testing.assert_array_equal(first.table_VML, second.table_VML)
    np.testing.assert_array_equal(first.intercept_L, second.intercept_L)
    assert len(first.layout.pairs) == 3, "as many as were asked for"
    assert first.table_VML.std(axis=1).max() > 0.01
    everywhere = setting.fitted_terms(replace(config, dropout=0.0))
    np.testing.assert_allclose(first.mean_VL, everywhere.mean_VL, rtol=0, atol=1e-9)


def test_a_monotone_curve_is_monotone_for_every_member(setting: Setting) -> None:
    terms = setting.fitted_terms(setting.config(monotone=("noise:+",)))
    names = [feature.name for feature in setting.prepared.preprocessor.numeric]
    (curve,) = [term for term in terms.layout.curved if term.features == (names.index("noise"),)]
    assert np.diff(terms.table_VML[curve.rows][1:], axis=0).min() >= -1e-12


def test_the_weight_of_positives_raises_the_odds_and_changes_no_term(setting: Setting) -> None:
    config = setting.config(pairs="1", pos_weight=4.0)
    heavy, plain = setting.fitted_terms(config), setting.fitted_terms(replace(config, pos_weight=1.0))
    np.testing.assert_allclose(heavy.intercept_L, plain.intercept_L + np.log(4))
    np.testing.assert_array_equal(heavy.table_VML, plain.table_VML)


def test_tables_are_compared_without_what_the_weight_of_positives_adds(setting: Setting) -> None:
    config = setting.config(pairs="1", pos_weight=20.0)
    maker = TableMaker(setting.train, setting.valid, config)
    model, fitted = setting.untrained(config), setting.fitted_terms(config)
    # Worse, unless the odds of all rows were too high by a factor of 20.
    flat = replace(fitted, table_VML=0.5 * fitted.table_VML, intercept_L=fitted.intercept_L - np.log(20))
    assert maker._best([flat, fitted]) == 1
    assert maker.tables(model)[1] == {"tables": "fitted"}


def test_unequal_weights_count_as_fewer_rows() -> None:
    labels_NL = np.array([[1], [0], [1], [255]], np.uint8)
    for weights, counted in (
        ([3.0, 3.0, 3.0, 9.0], 3.0),
        ([1.0, 1.0, 8.0, 1.0], 100 / 66),
        ([0.0, 5.0, 5.0, 1.0], 2.0),
    ):
        rows = _Rows(codes_TN=[], labels_NL=labels_NL, weight_N=np.array(weights), kept_MN=np.ones((1, 4), bool))
        positive_N, weight_N = rows.target(0)
        assert positive_N.tolist() == [True, False, True, False]
        assert weight_N.sum() == pytest.approx(counted) and weight_N[3] == 0


def test_the_better_one_on_validation_counts(setting: Setting) -> None:
    config = setting.config()
    model, terms = setting.untrained(config), setting.fitted_terms(config)
    fresh, choice = TableMaker(setting.train, setting.valid, config).tables(model)
    assert choice == {"tables": "fitted"}
    np.testing.assert_array_equal(fresh.table_VML, terms.table_VML)
    # What has been learned before is not to be forgotten.
    maker = TableMaker(setting.train, setting.valid, replace(config, init_from="model"))
    continued, choice = maker.tables(model)
    assert choice["tables"] == "smoothed"
    np.testing.assert_array_equal(maker.tables_by(model, choice).table_VML, continued.table_VML)
    assert np.abs(continued.table_VML).max() == 0
    assert setting.loss(fresh) < setting.loss(continued) - 0.05


@pytest.mark.parametrize("scale", [1e-5, 1e4])
def test_the_scale_of_weights_does_not_matter(tmp_path: Path, scale: float) -> None:
    found = []
    for factor in (1.0, scale):
        folder = tmp_path / str(factor)
        weight = np.random.default_rng(0).uniform(0.5, 2.0, ROWS) * factor
        weight[::7] = 0.0
        folder.mkdir()
        pq.write_table(make_rows().append_column("weight", pa.array(weight)), folder / "rows.parquet")
        prepare(
            folder / "rows.parquet", folder / "data", PrepareConfig(label=("label",), drop=("other",), weight="weight")
        )
        with opened(folder / "data") as setting:
            config = setting.config()
            model = setting.untrained(config)
            torch.manual_seed(0)
            torch.nn.init.normal_(model.table)
            terms, choice = TableMaker(setting.train, setting.valid, replace(config, init_from="model")).tables(model)
        assert choice["curve_penalty"] > 0 and choice["pair_penalty"] > 0
        found.append((terms, choice))
    (terms, choice), (scaled_terms, scaled_choice) = found
    assert scaled_choice == choice
    np.testing.assert_allclose(scaled_terms.table_VML, terms.table_VML, rtol=0, atol=1e-4)
    np.testing.assert_allclose(scaled_terms.weight_V, terms.weight_V * scale, rtol=1e-4)


def test_gradients_take_one_epoch_where_what_they_learn_is_forgotten(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, prepared = TrainConfig(model="additive", device="cpu", pairs="2"), setting.prepared
    assert resolve_for(asked, prepared).epochs == 1
    assert resolve_for(replace(asked, epochs=3), prepared).epochs == 3
    usual = resolve_for(replace(asked, init_from="model"), prepared).epochs
    assert usual > 1
    assert resolve_for(replace(asked, pairs="48"), prepared).epochs == usual, "few rows a term"
    monkeypatch.setattr("dkan_core.training.setup.additive_fit_limits.MAX_FITTED_CELLS", setting.train.rows)
    assert resolve_for(asked, prepared).epochs == usual


def test_more_cells_than_are_fitted_anew_are_left_as_trained(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setting.train.rows < MAX_FITTED_CELLS
    monkeypatch.setattr("dkan_core.training.setup.additive_fit_limits.MAX_FITTED_CELLS", setting.train.rows)
    config = setting.config()
    model = setting.untrained(config)
    assert len(model.layout.pairs) < 5, "only those that pay on unseen rows"
    terms, _ = TableMaker(setting.train, setting.valid, config).tables(model)
    assert np.abs(terms.table_VML).max() == 0


def test_leaving_out_idle_pairs_changes_nothing_else(setting: Setting) -> None:
    terms = setting.fitted_terms(setting.config(pairs="4"))
    idle, *others = terms.layout.pairs
    table_VML = terms.table_VML.copy()
    table_VML[idle.rows] = 0.5 * MIN_PAIR_EFFECT
    for pair in others:
        table_VML[pair.rows] = 1.0
    left = without_idle_pairs(replace(terms, table_VML=table_VML))
    assert additive_shape(left.config).pairs == tuple(pair.features for pair in others)
    kept_V = np.ones(len(table_VML), bool)
    kept_V[idle.rows] = False
    np.testing.assert_array_equal(left.table_VML, table_VML[kept_V])
    np.testing.assert_array_equal(left.weight_V, terms.weight_V[kept_V])
    assert without_idle_pairs(left) is left


@pytest.fixture(scope="module")
def fields(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """Yield places on a map, where one label is that of fields, and one has nothing to do with places."""
    folder, rng = tmp_path_factory.mktemp("fields"), np.random.default_rng(0)
    north, east, other = rng.uniform(size=(3, 12_000))
    even = (np.floor(8 * north) + np.floor(8 * east)) % 2 == 1
    table = {"north": north, "east": east, "other": other, "apart": rng.random(12_000) < other, "even": even}
    pq.write_table(pa.table(table), folder / "fields.parquet")
    prepare(folder / "fields.parquet", folder / "data", PrepareConfig(label=("apart", "even")))
    with opened(folder / "data") as found:
        yield found


@pytest.fixture(scope="module")
def sharp(fields: Setting) -> AdditiveTerms:
    return fields.fitted_terms(fields.config(pairs="2", members=2))


def test_a_sharp_pair_gets_finer_bins_and_predicts_unseen_rows_better(
    fields: Setting, sharp: AdditiveTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, terms = fields.config(pairs="2", members=2), sharp
    bins = {each.feature: len(each.cuts) for each in additive_shape(terms.config).binned}
    assert min(bins[0], bins[1]) > FINE_BINS and bins[2] == FINE_BINS
    assert np.ptp(terms.table_VML, axis=1).any(axis=0).all(), "members of each label differ"
    for too_few in (0, 1):
        monkeypatch.setattr(fitted_tables, "MAX_SHARPEST", too_few)
        coarse = fields.fitted_terms(config)
        assert {len(each.cuts) for each in additive_shape(coarse.config).binned} == {FINE_BINS}
        assert np.ptp(coarse.table_VML, axis=1).any(axis=0).all()
    assert fields.loss(terms) < 0.9 * fields.loss(coarse)


def test_pairs_with_the_finest_bins_are_smoothed_as_others_are(sharp: AdditiveTerms) -> None:
    (pair,) = (each for each in sharp.layout.pairs if each.features == (0, 1))
    assert min(pair.shape) > FINE_BINS
    smooth = with_smooth_pairs(sharp, 100.0)
    steps, before = (
        np.abs(np.diff(each.mean_VL[pair.rows, 1].reshape(pair.shape)[1:, 1:])) for each in (smooth, sharp)
    )
    assert steps.mean() < 0.5 * before.mean()
