"""Additive models: the terms are the model, to the last digit of float64."""

import html
import json
import math
import re
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import FastKANClassifier, TrainConfig, evaluate, explain, predict, train
from dkan_core.data.encoding.preprocessor import NumericFeature
from dkan_core.data.format.manifest import read_manifest
from dkan_core.data.loading.loader import all_batches, open_split
from dkan_core.explanation.additive import AdditiveCurves, AdditiveExplainer
from dkan_core.explanation.term_cells import codes_of_values
from dkan_core.explanation.term_tables import first_values
from dkan_core.model.additive import AdditiveFastKAN
from dkan_core.model.additive_shape import AdditiveShape, FeatureCuts
from dkan_core.model.additive_terms import AdditiveTerms, purified, terms_of
from dkan_core.model.architecture import ModelConfig, additive_layout
from dkan_core.model.envelope import envelope, sum_in_order
from dkan_core.model.parameter_count import count_parameters, count_trained
from dkan_core.model.saved_model import SavedModel
from dkan_core.training.additive_fit.additive_tables import with_smooth_pairs
from dkan_core.training.compute.flat_model import parameter_count
from dkan_core.utils.arrays import Arrays
from tests.additive_data import QUICK, make_rows, prepare_rows
from tests.model.architectures import CONFIG

CUTS: dict[int, tuple[int, ...]] = {0: (1, 90), 1: (1, 2), 2: (7,), 4: (2,)}
SHAPE = AdditiveShape(
    form="curves",
    upper=(100,),
    pairs=((0, 1), (2, 4)),
    binned=tuple(FeatureCuts(feature=feature, cuts=cuts) for feature, cuts in CUTS.items()),
)
ADDITIVE = CONFIG.model_copy(
    update={
        "model": "additive",
        "embedded": (),
        "hidden": (),
        "one_hot_groups": ((1,),),
        "missing": (),
        "additive": SHAPE,
    }
)
TABLES = ADDITIVE.model_copy(update={"additive": SHAPE.model_copy(update={"form": "tables"})})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_rows(tmp_path_factory.mktemp("additive"))


@pytest.fixture(scope="module")
def model(prepared: Path) -> Path:
    config = TrainConfig(**{**vars(QUICK), "monotone": ("noise:+",), "pairs": "2", "workers": 2})
    return Path(train(prepared, prepared.parent / "run", config).model)


@pytest.fixture(scope="module")
def saved(model: Path) -> SavedModel:
    return SavedModel(model)


def rows_of(prepared: Path, split: str) -> Arrays:
    with open_split(prepared, read_manifest(prepared), split) as reader:
        return next(all_batches(reader, reader.rows))


def module_of(saved: SavedModel) -> AdditiveFastKAN:
    assert isinstance(saved.module, AdditiveFastKAN)
    return saved.module


@pytest.mark.parametrize("config", [ADDITIVE, TABLES], ids=["curves", "tables"])
def test_an_architecture_counts_its_numbers_and_survives_json(config: ModelConfig) -> None:
    model = AdditiveFastKAN(config)
    assert count_parameters(config) == sum(tensor.numel() for tensor in model.state_dict().values())
    assert count_trained(config) == parameter_count(model)
    assert ModelConfig.from_dict(config.to_dict()) == config


def test_a_row_takes_one_entry_of_each_term() -> None:
    model = AdditiveFastKAN(ADDITIVE)
    layout = additive_layout(ADDITIVE)
    numeric = torch.tensor([[0, 99, 255], [200, 100, 6]], dtype=torch.uint8)
    codes = torch.tensor([[4, 3], [0, 1]], dtype=torch.int32)
    starts = {term.features: term.first for term in layout.terms}
    terms = [(0,), (1,), (2,), (4,), (0, 1), (2, 4)]
    within = [[0, 1, 255, 3, 0 * 3 + 1, 1 * 2 + 1], [200, 2, 6, 1, 2 * 3 + 2, 0 * 2 + 0]]
    expected = [[starts[term] + index for term, index in zip(terms, row, strict=True)] for row in within]
    assert model.indices(numeric, codes).tolist() == expected
    assert layout.size == 2 * 256 + 3 + 4 + 3 * 3 + 2 * 2


@pytest.mark.parametrize("config", [ADDITIVE, TABLES], ids=["curves", "tables"])
@pytest.mark.parametrize("monotone", [(), ((2, -1),)], ids=["free", "monotone"])
def test_a_model_for_scoring_has_the_same_answers_to_the_bit(
    config: ModelConfig, monotone: tuple[tuple[int, Literal[-1, 1]], ...]
) -> None:
    assert config.additive is not None
    shape = config.additive.model_copy(update={"monotone": monotone, "pairs": ((0, 1),)})
    model = AdditiveFastKAN(config.model_copy(update={"additive": shape})).eval()
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    model.calibrate(0.5, 0.25)
    numeric = torch.from_numpy(rng.integers(0, 256, (500, 3)).astype(np.uint8))
    codes = torch.from_numpy(rng.integers(0, 4, (500, 2)).astype(np.int32))
    scoring = model.for_scoring()
    assert torch.equal(scoring(numeric, codes), model(numeric, codes))
    assert scoring.mean_table().data_ptr() == scoring.table.data_ptr(), "nothing is left to compute"
    assert scoring.for_scoring() is scoring


def test_purifying_changes_no_answer_and_leaves_no_mean() -> None:
    rng = np.random.default_rng(0)
    layout = additive_layout(TABLES)
    table_VML = rng.normal(size=(layout.size, 3, 2))
    weight_V = rng.integers(0, 5, layout.size).astype(float)
    terms = AdditiveTerms(config=TABLES, intercept_L=np.array([0.5, -1.0]), table_VML=table_VML, weight_V=weight_V)
    pure = purified(terms)
    numeric = torch.from_numpy(rng.integers(0, 256, (500, 3)).astype(np.uint8))
    codes = torch.from_numpy(rng.integers(0, 4, (500, 2)).astype(np.int32))
    before, after = (each.to_model().double()(numeric, codes) for each in (terms, pure))
    torch.testing.assert_close(before, after, rtol=0, atol=2e-6)
    for term in layout.terms:
        weight, values = weight_V[term.rows], pure.mean_VL[term.rows]
        assert abs(weight @ values).max() < 1e-9 * weight.sum()
        if len(term.features) == 2:
            weight, values = weight.reshape(*term.shape, 1), values.reshape(*term.shape, 2)
            for axis in (0, 1):
                assert abs((weight * values).sum(axis=axis)).max() < 1e-9 * weight.sum()


def test_pairs_are_smoothed_where_there_are_few_rows_and_kept_where_there_are_many() -> None:
    rng = np.random.default_rng(0)
    layout = additive_layout(TABLES)
    table_VML = rng.normal(size=(layout.size, 3, 2))
    numbers, mixed = layout.pairs
    weight_V = np.full(layout.size, 1e9)
    weight_V[mixed.rows] = 1.0
    terms = AdditiveTerms(config=TABLES, intercept_L=np.zeros(2), table_VML=table_VML, weight_V=weight_V)
    assert with_smooth_pairs(terms, 0.0) is terms
    smooth = with_smooth_pairs(terms, 10.0).table_VML
    np.testing.assert_allclose(smooth[numbers.rows], table_VML[numbers.rows], rtol=0, atol=1e-5)
    assert np.abs(smooth[mixed.rows]).max() < 0.2 * np.abs(table_VML[mixed.rows]).max()
    np.testing.assert_array_equal(smooth[: numbers.first], table_VML[: numbers.first])


def test_log_odds_are_the_intercept_and_the_terms(saved: SavedModel, prepared: Path) -> None:
    module, arrays = module_of(saved), rows_of(prepared, "test")
    explainer = AdditiveExplainer(module, saved.preprocessor)
    summed_NL = explainer.exact(arrays).sum(axis=1) + terms_of(module).intercept_L
    stored = {name: torch.from_numpy(arrays[name]) for name in ("numeric", "categorical")}
    exact_NL = SavedModel(saved.folder).module.double()(**stored).detach().numpy()
    np.testing.assert_allclose(summed_NL, exact_NL, rtol=0, atol=1e-12)
    np.testing.assert_allclose(summed_NL, saved.module(**stored).detach().numpy(), rtol=0, atol=1e-5)


def test_terms_have_no_mean_over_the_training_data(saved: SavedModel, prepared: Path) -> None:
    explainer = AdditiveExplainer(module_of(saved), saved.preprocessor)
    found_NGL = explainer.exact(rows_of(prepared, "train"))
    assert abs(found_NGL.mean(axis=0)).max() < 1e-6
    assert found_NGL.std(axis=0).max() > 0.3


def test_an_additive_model_learns_what_is_additive_and_the_pair(prepared: Path, model: Path) -> None:
    result = evaluate(model, prepared, prepared.parent / "evaluated", explain=False)
    assert result.metrics["average_precision"] > 0.6
    saved = SavedModel(model)
    assert saved.config.additive is not None
    names = [feature.name for feature in (*saved.preprocessor.numeric, *saved.preprocessor.coded)]
    assert {"x", "z"} in [{names[feature] for feature in pair} for pair in saved.config.additive.pairs]


def test_a_monotone_curve_never_falls(saved: SavedModel) -> None:
    terms = terms_of(module_of(saved))
    names = [feature.name for feature in saved.preprocessor.numeric]
    (term,) = (term for term in terms.layout.mains if term.features == (names.index("noise"),))
    assert (np.diff(terms.mean_VL[term.rows][1:], axis=0) >= -1e-6).all()


def test_an_envelope_is_monotone_and_leaves_monotone_curves_alone() -> None:
    rng = np.random.default_rng(0)
    curve = torch.from_numpy(rng.normal(size=(50, 4)))
    for sign in (1, -1):
        found = envelope(curve, sign)
        assert (sign * found.diff(dim=0) >= 0).all()
        torch.testing.assert_close(envelope(found, sign), found)


def test_gradient_of_an_envelope_is_that_of_cummax_and_without_atomics_the_same() -> None:
    curve_CH = torch.randint(-2, 3, (50, 4)).double().requires_grad_()
    slope_CH = torch.randn(50, 4).double()
    greatest_CH, index_CH = curve_CH.cummax(dim=0)
    below_CH = curve_CH.flip(0).cummin(dim=0).values.flip(0)
    (expected_CH,) = torch.autograd.grad((greatest_CH + below_CH) / 2, curve_CH, slope_CH)
    (found_CH,) = torch.autograd.grad(envelope(curve_CH, 1), curve_CH, slope_CH)
    assert torch.equal(found_CH, expected_CH)
    added_CH = torch.zeros_like(slope_CH).scatter_add_(0, index_CH, slope_CH)
    torch.testing.assert_close(sum_in_order(slope_CH, index_CH), added_CH)


def test_reasons_are_the_terms_and_pairs_are_named(saved: SavedModel, prepared: Path) -> None:
    source = make_rows(50, seed=1)
    pq.write_table(source, prepared.parent / "new.parquet")
    out = prepared.parent / "scores.parquet"
    predict(saved.folder, prepared.parent / "new.parquet", out, reasons=20)
    scores = pq.read_table(out)
    arrays = saved.preprocessor.transform(source, "rows")
    explainer = AdditiveExplainer(module_of(saved), saved.preprocessor)
    exact_NG, names = explainer.exact(arrays)[:, :, 0], [" x ".join(columns) for columns in explainer.sources]
    for row, reasons in enumerate(scores["label_reasons"].to_pylist()):
        found = {reason["column"]: reason["log_odds"] for reason in reasons}
        assert found == pytest.approx(dict(zip(names, exact_NG[row], strict=True)), abs=1e-6)
    values = {reason["column"]: reason["value"] for reason in scores["label_reasons"].to_pylist()[0]}
    assert values["x x z"] == f"{values['x'] or 'missing'} x {values['z']}"


def test_curves_that_are_shown_are_the_terms_within_their_bands(
    saved: SavedModel, prepared: Path, tmp_path: Path
) -> None:
    found = explain(saved.folder, prepared, tmp_path / "out", split="train", label="label", top=6, rows=2000)
    (curve,) = (curve for curve in found.labels["label"].curves if curve.name == "kind")
    source = make_rows(200, seed=2)
    explainer = AdditiveExplainer(module_of(saved), saved.preprocessor)
    kind = explainer.exact(saved.preprocessor.transform(source, "rows"))[:, explainer.sources.index(("kind",)), 0]
    values = np.array(source["kind"].to_pylist())
    shown = {point.name: point for point in curve.points}
    for name in ("a", "b", "c"):
        assert shown[name].mean == pytest.approx(kind[values == name][0], abs=1e-9)
        low, high = shown[name].band or (0.0, 0.0)
        assert low < shown[name].mean < high


def test_errors_of_a_pair_are_those_of_its_terms_members(saved: SavedModel, prepared: Path, tmp_path: Path) -> None:
    found = explain(saved.folder, prepared, tmp_path / "out", split="train", top=6, rows=2000).labels["label"]
    shown = next(pair for pair in found.maps if {pair.first.name, pair.second.name} == {"x", "z"})
    assert shown.own_error is not None and shown.joint_error is not None
    terms, curves = terms_of(module_of(saved)), AdditiveCurves(module_of(saved))
    (pair,) = (term for term in terms.layout.pairs if term.features == (0, 1))
    error_V = curves.error_factor * terms.table_VML[pair.rows, :, 0].std(axis=1, ddof=1)
    own_error = np.array(shown.own_error)
    # The map's cells are other ones than the term's, and centred over them.
    assert own_error.min() > 0 and own_error.max() < 2 * error_V.max()
    page = (tmp_path / "out/explanation.html").read_text()
    assert f"beyond the sum of the two {shown.own[0][0]:+.3f} ± {shown.own_error[0][0]:.3f}" in page


def bin_of(bins: list[dict[str, Any]], value: Any) -> int:
    """Return the bin of a value, as a reader of ``explanation.json`` finds it."""
    kinds: dict[str, list[int]] = {}
    for index, each in enumerate(bins):
        kinds.setdefault(each["kind"], []).append(index)
    if value is None:
        return kinds["missing"][0]
    if isinstance(value, str):
        return next((index for index in kinds["levels"] if value in bins[index]["levels"]), kinds["rare"][0])
    exact = [index for index in kinds.get("value", []) if bins[index]["value"] == value]
    return (exact or [index for index in kinds["range"] if bins[index].get("start", -math.inf) <= value])[-1]


def test_log_odds_are_recomputed_from_explanation_json(saved: SavedModel, prepared: Path, tmp_path: Path) -> None:
    explain(saved.folder, prepared, tmp_path / "out", split="train", top=2, rows=500)
    found = json.loads((tmp_path / "out/explanation.json").read_text())["labels"]["other"]
    assert {len(term["columns"]) for term in found["terms"]} == {1, 2} and found["maps"]
    pairs = [term["columns"] for term in found["terms"] if len(term["columns"]) == 2]
    assert [[pair["first"], pair["second"]] for pair in found["interactions"]] == pairs
    rows = make_rows(300, seed=4)
    # Between the values of training, beyond them, and without a category.
    rows = rows.set_column(2, "count", pa.array(np.random.default_rng(0).uniform(-2, 8, 300)))
    rows = rows.set_column(4, "kind", pa.array(["d", None, "a"] * 100))
    explainer = AdditiveExplainer(module_of(saved), saved.preprocessor)
    exact_N = explainer.exact(saved.preprocessor.transform(rows, "rows")).sum(axis=1)[:, 1] + explainer.baseline[1]
    for row, exact in zip(rows.to_pylist(), exact_N, strict=True):
        log_odds = found["intercept"]
        for term in found["terms"]:
            cell: Any = term["log_odds"]
            for name, bins in zip(term["columns"], term["bins"], strict=True):
                cell = cell[bin_of(bins, row[name])]
            log_odds += cell
        assert log_odds == pytest.approx(exact, abs=1e-6)


def test_codes_begin_at_the_smallest_value_that_has_them() -> None:
    codes = np.arange(257)
    for knots, scores in (([0.0, 1.0], [-0.7, 0.7]), ([-999.0, 1e-9, 3.5, 1e6], [-2.0, -1.0, 0.3, 3.0])):
        feature = NumericFeature(name="x", knots=knots, scores=scores)
        starts = first_values(feature, codes)
        known = np.isfinite(starts)
        assert (codes_of_values(starts[known], feature) >= codes[known]).all() and known.sum() > 50
        assert (codes_of_values(np.nextafter(starts[known], -np.inf), feature) < codes[known]).all()
    widest = NumericFeature(name="x", knots=[-1.7e308, 1.7e308], scores=[-3.0, 3.0])
    assert first_values(widest, np.array([1, 2, 255, 256])).tolist() == [-np.inf, 1.7e308, 1.7e308, np.inf]


def test_the_page_shows_every_term_of_an_additive_model(saved: SavedModel, prepared: Path, tmp_path: Path) -> None:
    learned = explain(saved.folder, prepared, tmp_path / "out", split="train", label="label", top=2).labels["label"]
    page = html.unescape((tmp_path / "out/explanation.html").read_text())
    assert f"the intercept, {learned.intercept:+.4f}" in page
    # Nothing of gradients, which a table has none of, or of columns that change an effect.
    assert not {"Gradient", "Pale band", "80% of rows"} & {*re.findall("Gradient|Pale band|80% of rows", page)}
    shown = re.findall('<details class="term" data-name="([^"]+)">', page)
    assert {*shown} == {"x", "z", "count", "yes", "kind", "noise", *(name for name in shown if "×" in name)}
    assert len(shown) == len(learned.terms or ()) == 8


def test_a_classifier_can_be_additive_and_explains_itself_exactly(tmp_path: Path) -> None:
    frame = make_rows(600, seed=3).to_pandas()
    features, label = frame[["x", "z", "kind"]], frame["label"]
    model = FastKANClassifier(model="additive", monotone=("z:+",), pairs="0", members=3, epochs=2, random_state=0)
    model.fit(features, label)
    summed = model.explain(features).sum(axis=1)
    np.testing.assert_allclose(summed, model.decision_function(features), rtol=0, atol=1e-5)
    model.save(tmp_path / "model")
    loaded = FastKANClassifier.load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba(features), model.predict_proba(features)) and loaded.model == "additive"
