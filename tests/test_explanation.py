"""What a model learned is read back right: from known functions, and from a model trained on a known truth."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dkan_core import (
    ConfigError,
    DataError,
    Explanation,
    OutputError,
    PrepareConfig,
    TrainConfig,
    TrainResult,
    evaluate,
    explain,
    prepare,
    train,
)
from dkan_core.data.encoding import MISSING, SCORE_LIMIT, STEPS, Float64, normal_scores, quantize
from dkan_core.data.manifest import PreparedData, read_manifest
from dkan_core.data.shards import Arrays
from dkan_core.explanation import slopes
from dkan_core.explanation.columns import Column, encode_values, placed, read_values, redrawn, source_columns
from dkan_core.explanation.curves import Curve, read_curve
from dkan_core.explanation.drawings import departing_marks
from dkan_core.explanation.explain import read_rows, safe_names
from dkan_core.explanation.grid import make_grid
from dkan_core.explanation.importance import rank_by_effect
from dkan_core.explanation.interactions import find_interactions, map_pair
from dkan_core.explanation.response import affordable_rows, log_odds
from dkan_core.explanation.slopes import measure_slopes
from dkan_core.model.checkpoint import save_model
from dkan_core.model.tabular import ModelConfig, TabularFastKAN
from tests.command import check, dkan
from tests.test_report import check_page

TRUE = ["rising", "bowl", "left", "right", "color", "spiked"]
NOISE = ["noise", "flag", "letters"]
HOSTILE = "<script>alert('$x$')</script>/../a"
ROWS = 7000


def make_source(rows: int = ROWS, seed: int = 1) -> tuple[pa.Table, Float64]:
    """Return rows whose log-odds are known."""
    rng = np.random.default_rng(seed)
    rising, bowl = np.exp(rng.normal(size=rows)) * 1000, rng.uniform(-30, 30, rows)
    left, right = rng.normal(size=(2, rows))
    color = rng.choice(["red", "green", "blue", "grey"], rows, p=[0.4, 0.3, 0.2, 0.1])
    spiked = np.where(rng.random(rows) < 0.5, 0.0, rng.normal(0, 5, rows).round(3))
    missing = rng.random(rows) < 0.15
    logits = (
        np.where(missing, 2.0, 1.2 * np.log(rising / 1000))
        + (bowl / 15) ** 2
        + 1.5 * left * right
        + 1.5 * (color == "red")
        + 2.0 * (spiked == 0)
        - 4.0
    )
    columns = {
        "rising": pa.array(rising, mask=missing),
        "bowl": pa.array(bowl),
        "left": pa.array(left),
        "right": pa.array(right),
        "color": pa.array(color.tolist()),
        "spiked": pa.array(spiked),
        "noise": pa.array(rng.normal(size=rows)),
        "flag": pa.array(rng.integers(0, 2, rows)),
        "letters": pa.array(rng.choice(list("abcd"), rows).tolist()),
        "label": pa.array((rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.int8)),
    }
    return pa.table(columns), logits


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare rows whose log-odds are known."""
    folder = tmp_path_factory.mktemp("known")
    pq.write_table(make_source()[0], folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("label",)))
    return folder / "data"


@pytest.fixture(scope="module")
def learner(known: Path, tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """Train a small model on them."""
    config = TrainConfig(epochs=10, hidden=(16,), workers=1, device="cpu", batch_size=128, learning_rate=0.02)
    return train(known, tmp_path_factory.mktemp("learner") / "run", config)


@pytest.fixture(scope="module")
def out(known: Path, learner: TrainResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an explanation of the trained model."""
    folder = tmp_path_factory.mktemp("explained") / "out"
    explain(learner.model, known, folder, split="train", rows=3000, top=7)
    return folder


@pytest.fixture(scope="module")
def found(out: Path) -> dict[str, Any]:
    """Return what its explanation.json holds; NaN and infinity are refused."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    plain: dict[str, Any] = json.loads((out / "explanation.json").read_text(), parse_constant=refuse)
    return plain


def curve_of(found: dict[str, Any], name: str, *roles: str) -> list[dict[str, Any]]:
    (curve,) = [curve for curve in found["curves"] if curve["name"] == name]
    return [point for point in curve["points"] if point["role"] in roles]


def test_columns_that_matter_rank_over_noise(found: dict[str, Any]) -> None:
    ranked = found["importance"]
    assert sorted(column["name"] for column in ranked[:6]) == sorted(TRUE)
    assert sorted(column["name"] for column in ranked[6:]) == sorted(NOISE)
    assert [column["effect"] for column in ranked] == sorted((column["effect"] for column in ranked), reverse=True)
    for column in ranked[:6]:
        assert column["precision_drop"] > 4 * column["precision_drop_error"] > 0
    assert abs(ranked[6]["precision_drop"]) < 0.02 < ranked[5]["precision_drop"]
    assert ranked[7]["precision_drop"] is None


def test_slope_of_a_monotone_column_is_its_true_one(found: dict[str, Any], out: Path) -> None:
    slope = {column["name"]: column["slope"] for column in found["importance"]}
    assert slope["color"] is slope["letters"] is None
    # the log-odds are 1.2 z; 15% of the rows have no value, which is a score of 0
    assert slope["rising"] == pytest.approx(1.2 * 0.85**0.5, rel=0.25)
    assert slope["rising"] > 3 * max(slope["noise"], slope["flag"]) and min(slope["noise"], slope["flag"]) >= 0
    page = (out / "explanation.html").read_text()
    assert f"<td>{slope['rising']:.3f}</td></tr>" in page and page.count("<td>–</td></tr>") == 2


def test_curves_have_the_true_shape_in_the_column_s_unit(found: dict[str, Any]) -> None:
    bowl = curve_of(found, "bowl", "curve")
    x, effect = (np.array([point[key] for point in bowl]) for key in ("value", "mean"))
    assert -30 <= x.min() < -28 and 28 < x.max() <= 30
    assert abs(x[effect.argmin()]) < 10 and min(effect[0], effect[-1]) > effect.min() + 2
    rising = curve_of(found, "rising", "curve")
    effects = [point["mean"] for point in rising]
    assert effects[-1] - effects[0] > 2 and np.corrcoef(effects, np.arange(len(effects)))[0, 1] > 0.9
    assert 20 < rising[0]["value"] < 200 and 8_000 < rising[-1]["value"] < 40_000
    red = max(curve_of(found, "color", "level"), key=lambda point: point["mean"])
    assert red["name"] == "red" and red["low"] > 0


def test_missing_and_frequent_values_stand_apart(found: dict[str, Any], known: Path) -> None:
    (missing,) = curve_of(found, "rising", "missing")
    arrays = read_rows(known, read_manifest(known), "train", 3000)
    assert missing["rows"] == np.count_nonzero(arrays["numeric"][:, 0] == 0)
    assert missing["value"] is None and missing["low"] > 0
    (zero,) = curve_of(found, "spiked", "mark")
    around = [point["mean"] for point in curve_of(found, "spiked", "curve") if abs(point["value"]) < 2]
    assert zero["value"] == 0 and zero["mean"] > max(around) + 1
    assert not curve_of(found, "bowl", "missing", "mark")


def test_the_true_pair_is_the_strongest(found: dict[str, Any]) -> None:
    pairs = found["interactions"]
    assert {pairs[0]["first"], pairs[0]["second"]} == {"left", "right"}
    assert pairs[0]["strength"] > 3 * pairs[1]["strength"] and pairs[0]["share"] > 0.5
    own = np.array(found["maps"][0]["own"])
    assert own[0, 0] > 0.5 < own[-1, -1] and own[0, -1] < -0.5 > own[-1, 0]


def test_files_are_all_there_and_the_page_needs_no_network(out: Path, found: dict[str, Any]) -> None:
    curves = {curve["name"] for curve in found["curves"]}
    pairs = {f"{pair['first']['name']}--{pair['second']['name']}" for pair in found["maps"]}
    wanted = {"importance", *(f"curves/{name}" for name in curves), *(f"interactions/{name}" for name in pairs)}
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == {f"{name}.{kind}" for name in wanted for kind in ("svg", "png")} | {
        "explanation.html",
        "explanation.json",
    }
    for path in out.rglob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert len(check_page((out / "explanation.html").read_text())) == 1 + len(curves) + len(pairs) == 11


def test_same_seed_gives_the_same_bytes(many: tuple[Path, Path], tmp_path: Path) -> None:
    for name, seed in (("one", 3), ("two", 3), ("other", 4)):
        explain(*many, tmp_path / name, top=1, seed=seed)
    one, two, other = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.*")}
        for folder in (tmp_path / "one", tmp_path / "two", tmp_path / "other")
    )
    assert one == two and one[Path("explanation.json")] != other[Path("explanation.json")]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_values_are_read_and_set_as_prepare_encodes_them(dtype: Any, tmp_path: Path) -> None:
    table, _ = make_source(2000, seed=2)
    pq.write_table(table, tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("label",), numeric_dtype=dtype))
    preprocessor = read_manifest(tmp_path / "data").preprocessor
    arrays = preprocessor.transform(table, "rows")
    columns = source_columns(preprocessor)
    assert [column.name for column in columns] == preprocessor.columns
    for column in columns[:6]:
        values = table[column.name].to_numpy(zero_copy_only=False).astype(float)
        cells = encode_values(column, values)
        np.testing.assert_array_equal(cells.scores_P, arrays["numeric"][:, column.score_index])
        if column.coded:
            np.testing.assert_array_equal(cells.codes_P, arrays["categorical"][:, column.code_index])
        read = read_values(column, arrays)
        np.testing.assert_array_equal(np.isnan(read), np.isnan(values))
        assert column.scored is not None
        apart = normal_scores(read, column.scored) - normal_scores(values, column.scored)
        assert np.nanmax(np.abs(apart)) < 1.01 * 2 * SCORE_LIMIT / STEPS
        if column.name in ("flag", "spiked"):
            np.testing.assert_array_equal(read == 0, values == 0)


def test_a_column_is_set_and_redrawn_as_a_whole(known: Path) -> None:
    manifest = read_manifest(known)
    arrays = read_rows(known, manifest, "valid", 50)
    del arrays["labels"]
    columns = {column.name: column for column in source_columns(manifest.preprocessor)}
    column = columns["spiked"]
    done = placed(arrays, [(column, encode_values(column, np.array([0.0, 7.0, np.nan])))])
    read = read_values(column, done).reshape(3, 50)
    assert (read[0] == 0).all() and np.isnan(read[2]).all()
    np.testing.assert_allclose(read[1], 7.0, atol=0.5)
    codes = done["categorical"][:, column.code_index].reshape(3, 50)
    assert len(np.unique(codes[:, 0])) == 3 and (codes[2] == MISSING).all()
    other = [index for index in range(arrays["numeric"].shape[1]) if index != column.score_index]
    np.testing.assert_array_equal(done["numeric"][50:100, other], arrays["numeric"][:, other])
    order = np.arange(50)[::-1]
    swapped = redrawn(arrays, columns["rising"], order)
    np.testing.assert_array_equal(
        swapped["numeric"][:, columns["rising"].score_index], arrays["numeric"][order, columns["rising"].score_index]
    )
    np.testing.assert_array_equal(read_values(column, swapped), read_values(column, arrays))


Formula = Callable[..., Float64]


@pytest.fixture(scope="module")
def rows(known: Path) -> tuple[PreparedData, Arrays]:
    """Return rows that are stored exactly."""
    config = PrepareConfig(label=("label",), numeric_dtype="float32")
    manifest = prepare(known.parent / "rows.parquet", known.parent / "exact", config)
    arrays = read_rows(known.parent / "exact", manifest, "train", 2000)
    del arrays["labels"]
    return manifest, arrays


def columns_named(manifest: PreparedData, *names: str) -> list[Column]:
    by_name = {column.name: column for column in source_columns(manifest.preprocessor)}
    return [by_name[name] for name in names]


def known_function(columns: list[Column], formula: Formula) -> Callable[[Arrays], Float64]:
    """Return log-odds that are a formula of columns in their own units."""
    return lambda arrays: formula(*(read_values(column, arrays) for column in columns))[:, None]


def curve(function: Callable[[Arrays], Float64], arrays: Arrays, column: Column) -> Curve:
    return read_curve(function, arrays, column, label=0, rows=300, cells=1e9)


def test_sum_of_columns_has_bands_without_width_and_no_interaction(rows: tuple[PreparedData, Arrays]) -> None:
    manifest, arrays = rows
    left, right, bowl = columns_named(manifest, "left", "right", "bowl")
    function = known_function([left, right, bowl], lambda a, b, c: 2 * a + b - np.abs(c) / 10)
    ranked = rank_by_effect(
        function, arrays, source_columns(manifest.preprocessor), top=3, cells=1e9, seed=0, advance=lambda _: None
    )
    effects = {importance.name: importance.effect for importance in ranked}
    # of a term of a sum, the effect is the standard deviation
    for column, formula in ((left, lambda x: 2 * x), (right, lambda x: x), (bowl, lambda x: np.abs(x) / 10)):
        assert effects[column.name] == pytest.approx(formula(read_values(column, arrays)).std(), rel=0.08)
    assert {name for name in effects if effects[name] > 0} == {"left", "right", "bowl"}
    for point in curve(function, arrays, bowl).points:
        assert point.high - point.low == pytest.approx(0, abs=1e-9)
    pairs = find_interactions(
        function, arrays, [left, right, bowl], label=0, bins=6, rows=50, cells=1e9, advance=lambda _: None
    )
    assert len(pairs) == 3 and max(pair.strength for pair in pairs) < 1e-9


def test_strength_of_a_product_is_its_standard_deviation(rows: tuple[PreparedData, Arrays]) -> None:
    manifest, arrays = rows
    left, right = columns_named(manifest, "left", "right")
    function = known_function([left, right], lambda a, b: 3 * a * b)
    (pair,) = find_interactions(
        function, arrays, [left, right], label=0, bins=12, rows=20, cells=1e9, advance=lambda _: None
    )
    assert pair.strength == pytest.approx(3, rel=0.15) and pair.share > 0.95
    shown = map_pair(function, arrays, left, right, label=0, bins=10, rows=20, cells=1e9)
    assert np.shape(shown.joint) == np.shape(shown.own) == np.shape(shown.rows) == (10, 10)
    assert np.sum(shown.rows) == 2000
    assert curve(function, arrays, left).points[0].high > 3


def test_curve_is_centred_and_its_points_stand_for_every_row(rows: tuple[PreparedData, Arrays]) -> None:
    manifest, arrays = rows
    for column in columns_named(manifest, *TRUE, *NOISE):
        grid = make_grid(column, arrays)
        assert grid.rows_P.sum() == 2000 and grid.weights_P.sum() == pytest.approx(1)
    flag, bowl = columns_named(manifest, "flag", "bowl")
    function = known_function([flag, bowl], lambda a, b: 5 * a + b)
    read = curve(function, arrays, flag)
    assert [(point.role, point.name, point.value) for point in read.points] == [
        ("level", "0", 0.0),
        ("level", "1", 1.0),
    ]
    assert read.points[1].mean - read.points[0].mean == pytest.approx(5)
    assert sum(point.mean * point.rows for point in read.points) == pytest.approx(0, abs=1e-6)
    assert not departing_marks(read)


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def small(rows: tuple[PreparedData, Arrays]) -> TabularFastKAN:
    """Return an untrained model that reads scores on both paths, with missing values and a calibration."""
    shape = ModelConfig.for_data(rows[0], TrainConfig(hidden=(8,), members=2))
    assert shape.binary and shape.cardinalities
    model = TabularFastKAN(shape).eval()
    model.calibrate(1.7, -0.4)
    return model


def test_slope_is_what_finite_differences_find(rows: tuple[PreparedData, Arrays], small: TabularFastKAN) -> None:
    _, arrays = rows
    numeric, step = arrays["numeric"], 0.02
    missing = np.isnan(numeric)
    assert missing[:, 0].any() and not missing[:, 1:].any()
    function = log_odds(small, CPU, [0])
    measured = measure_slopes(small, CPU, arrays, [0], 1e9)
    assert measured.shape == (numeric.shape[1],)
    for place, slope in enumerate(measured):
        shift = np.zeros_like(numeric)
        shift[:, place] = step / 2
        up, down = ({**arrays, "numeric": (numeric + sign * shift).astype(np.float32)} for sign in (1, -1))
        steepness = np.abs(function(up) - function(down))[~missing[:, place]].mean() / step
        assert slope == pytest.approx(steepness * np.nan_to_num(numeric[:, place]).std(), rel=0.01)


def test_slope_is_the_same_however_rows_are_stored_and_cut(
    rows: tuple[PreparedData, Arrays], small: TabularFastKAN, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, arrays = rows
    whole = measure_slopes(small, CPU, arrays, [0], 1e9)
    stored = {**arrays, "numeric": quantize(arrays["numeric"], "uint8")}
    np.testing.assert_allclose(measure_slopes(small, CPU, stored, [0], 1e9), whole, rtol=0.02)
    monkeypatch.setattr(slopes, "CHUNK_ROWS", 300)
    np.testing.assert_allclose(measure_slopes(small, CPU, arrays, [0], 1e9), whole, rtol=1e-5)
    first = {name: array[:64] for name, array in arrays.items()}
    np.testing.assert_array_equal(
        measure_slopes(small, CPU, arrays, [0], 1), measure_slopes(small, CPU, first, [0], 1e9)
    )
    empty = {**arrays, "numeric": np.full_like(arrays["numeric"], np.nan)}
    assert (measure_slopes(small, CPU, empty, [0], 1e9) == 0).all()


def test_wide_data_takes_fewer_rows() -> None:
    arrays = {"numeric": np.zeros((5000, 2000), np.uint8)}
    assert affordable_rows(arrays, 2000, 4e8) == 100
    assert affordable_rows(arrays, 10**6, 4e8) == 64
    assert affordable_rows(arrays, 1, 4e8) == 5000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a model of three labels with cells not measured, untrained, and its data; a column has a hostile name."""
    folder = tmp_path_factory.mktemp("many")
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {HOSTILE: rng.normal(size=800), "b": rng.integers(0, 2, 800), "c": rng.normal(size=800)}
    split = np.array(["train"] * 500 + ["valid"] * 300)
    for name, rate in (("rare", 0.1), ("often", 0.5), ("never", 0.2 * (split == "train"))):
        labels = (rng.random(800) < rate).astype(float)
        labels[rng.random(800) < 0.3] = np.nan
        columns[name] = pa.array(labels, from_pandas=True)
    pq.write_table(pa.table({**columns, "split": split}), folder / "rows.parquet")
    config = PrepareConfig(label=("rare", "often", "never"), split_column="split")
    prepared = prepare(folder / "rows.parquet", folder / "data", config)
    shape = ModelConfig.for_data(prepared, TrainConfig(hidden=(8,), members=2))
    metrics = {"labels": {name: {"threshold": 0.5} for name in prepared.labels}, "epoch": 1, "average_precision": 0.5}
    save_model(folder / "model", TabularFastKAN(shape), shape, prepared.preprocessor, metrics)
    return folder / "model", folder / "data"


def test_many_labels_share_importances_and_one_has_the_curves(many: tuple[Path, Path], tmp_path: Path) -> None:
    both = explain(*many, tmp_path / "all", top=1)
    assert both.label == "often" and both.importance_labels == ["rare", "often", "never"]
    assert isinstance(both, Explanation) and both.average_precision is not None
    one = explain(*many, tmp_path / "one", top=1, label="rare")
    assert one.label == "rare" and one.importance_labels == ["rare"]
    assert one.importance != both.importance and one.curves[0].points != both.curves[0].points
    none = explain(*many, tmp_path / "none", top=2, label="never")
    assert none.average_precision is None and none.importance[0].precision_drop is None
    assert len(check_page((tmp_path / "none/explanation.html").read_text())) == 1 + 2 + 1
    often = explain(*many, tmp_path / "often", top=1, label="often")
    mean, *each = ({column.name: column.slope for column in found.importance} for found in (both, one, often, none))
    assert mean == {name: pytest.approx(np.mean([slope[name] for slope in each]), rel=1e-4) for name in mean}


def test_any_name_is_safe_in_files_and_page(many: tuple[Path, Path], tmp_path: Path) -> None:
    explain(*many, tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out/curves").iterdir())
    assert len(names) == 6 and all(re.fullmatch(r"[\w.-]+", name) for name in names)
    page = (tmp_path / "out/explanation.html").read_text()
    check_page(page)
    assert "<script" not in page and "&lt;script&gt;" in page
    assert safe_names(["a b", "a/b", "A_B", ""]) == ["a_b", "a_b-2", "A_B-3", "column"]


def test_report_shows_what_was_learned_unless_told_not_to(known: Path, learner: TrainResult, tmp_path: Path) -> None:
    pages = []
    for wanted in (True, False):
        evaluate(learner.model, known, tmp_path / str(wanted), explain=wanted)
        pages.append((tmp_path / str(wanted) / "report.html").read_text())
    assert "What the model learned" in pages[0] and "What the model learned" not in pages[1]
    assert len(check_page(pages[0])) == len(check_page(pages[1])) + 8


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"split": "dev"}, DataError, "has no dev split"),
        ({"label": "lable"}, ConfigError, "label must be one of label, got 'lable'"),
        ({"top": 0}, ConfigError, "top must be 1 or more, got 0"),
        ({"rows": 1}, ConfigError, "rows must be 2 or more, got 1"),
        ({"seed": -1}, ConfigError, "seed must be 0 or more, got -1"),
    ],
)
def test_mistakes_are_named_and_leave_nothing(
    known: Path, learner: TrainResult, tmp_path: Path, options: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        explain(learner.model, known, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_data_of_another_model_and_a_foreign_folder_are_refused(
    prepared: Path, learner: TrainResult, known: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="is encoded otherwise"):
        explain(learner.model, prepared, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="already holds something else"):
        explain(learner.model, known, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_command_explains_and_replaces(
    many: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for top in (2, 1):
        words = ["explain", *many, "--out", out, "--split", "train", "--rows", 200, "--top", top, "--seed", 1]
        assert dkan(*words, "--label", "rare", monkeypatch=monkeypatch) == 0
    plain = json.loads((out / "explanation.json").read_text())
    assert len(list((out / "curves").iterdir())) == 2 and not (out / "interactions").exists()
    assert (plain["rows"], plain["split"], plain["label"], plain["seed"]) == (200, "train", "rare", 1)
    capfd.readouterr()
    code = dkan("explain", *many, "--out", tmp_path / "other", "--label", "x", monkeypatch=monkeypatch)
    check(code, capfd.readouterr().err, "label must be one of rare, often, never, got 'x'")
    assert not (tmp_path / "other").exists()
