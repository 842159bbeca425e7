"""What a model trained on a known truth has learned is read back right; files, page and mistakes."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
from dkan_core.data.format.manifest import read_manifest
from dkan_core.explanation.explain import read_rows, safe_names
from dkan_core.explanation.page import effect_alone
from tests.command import check, dkan
from tests.explanation.known import NOISE, TRUE
from tests.report.test_report import check_page

SMALL = TrainConfig(epochs=1, members=2, workers=1, device="cpu")


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


@pytest.mark.parametrize("config", [replace(SMALL, model="additive"), replace(SMALL, hidden=(4,))])
def test_the_map_of_a_sharp_pair_shows_where_its_effect_changes(config: TrainConfig, tmp_path: Path) -> None:
    north, east = np.random.default_rng(0).uniform(size=(2, 8_000))
    even = (np.floor(8 * north) + np.floor(8 * east)) % 2 == 1
    pq.write_table(pa.table({"north": north, "east": east, "even": even}), tmp_path / "fields.parquet")
    prepare(tmp_path / "fields.parquet", tmp_path / "data", PrepareConfig(label=("even",)))
    run = train(tmp_path / "data", tmp_path / "run", config)
    (shown,) = explain(run.model, tmp_path / "data", tmp_path / "out").labels["even"].maps
    assert len(shown.first.names) == len(shown.second.names) == 48
    ends = [np.array(side.edges) for side in (shown.first, shown.second)]
    fields_AB = np.add.outer(*(np.floor(8 * (each[1:] + each[:-1]) / 2) for each in ends)) % 2 == 1
    assert ((np.array(shown.own) > 0) == fields_AB).mean() > 0.9


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


def test_each_label_is_explained_as_by_itself_and_means_stand_above(many: tuple[Path, Path], tmp_path: Path) -> None:
    found = explain(*many, tmp_path / "all", top=1, rows=200)
    assert isinstance(found, Explanation) and list(found.labels) == ["rare", "often", "never"]
    for name, each in found.labels.items():
        alone = explain(*many, tmp_path / name, top=1, rows=200, label=name)
        assert alone.labels == {name: each} and alone.importance == each.importance and each.label == name
    rare, often, never = found.labels.values()
    assert rare.importance != often.importance and rare.curves[0].points != often.curves[0].points
    assert never.average_precision is None and never.importance[0].precision_drop is None
    assert found.average_precision == pytest.approx(
        np.mean([each.average_precision for each in (rare, often) if each.average_precision is not None])
    )
    for measure in ("effect", "slope"):
        values = {
            column.name: np.mean(
                [
                    getattr(one, measure)
                    for each in found.labels.values()
                    for one in each.importance
                    if one.name == column.name
                ]
            )
            for column in found.importance
        }
        assert {column.name: getattr(column, measure) for column in found.importance} == pytest.approx(values)
    plain = json.loads((tmp_path / "all/explanation.json").read_text())
    assert plain == json.loads(json.dumps(found.to_dict())) and "against" not in plain["labels"]["rare"]
    page = (tmp_path / "all/explanation.html").read_text()
    # The means over labels, and for each label importances and a curve.
    assert len(check_page(page)) == 1 + 3 * 2
    assert [page.count(f'<section class="panel" aria-label="{name}">') for name in found.labels] == [1, 1, 1]
    names = ["importance", *(f"labels/{name}/importance" for name in found.labels)]
    assert all((tmp_path / "all" / f"{name}.svg").is_file() for name in names)
    assert len([*(tmp_path / "all/labels").glob("*/curves/*.png")]) == 3


def test_rows_of_weight_0_do_not_count(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, counts = random.normal(size=2000), random.random(2000) < 0.6
    # In the rows that do not count, the label is the wrong way round.
    rows = {"x": x, "noise": random.normal(size=2000), "w": counts * 1.0, "y": ((x > 0) == counts) * 1}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    prepare(tmp_path / "rows.parquet", tmp_path / "data", PrepareConfig(label=("y",), weight="w"))
    model = train(tmp_path / "data", tmp_path / "run", replace(SMALL, epochs=4)).model
    found = explain(model, tmp_path / "data", tmp_path / "out").labels["y"]
    metrics = evaluate(model, tmp_path / "data", tmp_path / "eval", split="valid", explain=False).metrics
    assert metrics["average_precision"] > 0.95
    assert found.average_precision == pytest.approx(metrics["average_precision"])
    assert "each counted once" not in (tmp_path / "out/explanation.html").read_text()
    drops = {column.name: column.precision_drop for column in found.importance}
    assert (drops["x"] or 0) > 0.2 > abs(drops["noise"] or 0)


def test_any_name_is_safe_in_files_and_page(many: tuple[Path, Path], tmp_path: Path) -> None:
    explain(*many, tmp_path / "out", label="often")
    names = sorted(path.name for path in (tmp_path / "out/curves").iterdir())
    assert len(names) == 6 and all(re.fullmatch(r"[\w.-]+", name) for name in names)
    page = (tmp_path / "out/explanation.html").read_text()
    check_page(page)
    assert page.count("<script") == 1 and "&lt;script&gt;" in page
    assert safe_names(["a_b-2", "a b", "a/b", "A_B", ""]) == ["a_b-2-2", "a_b-2", "a_b-3", "A_B", "column"]
    assert safe_names(["値段", "名前", "ü" * 200]) == ["値段", "名前", "ü" * 80]


def test_effect_together_with_others_is_told_apart_from_what_the_figure_shows(
    known: Path, learner: TrainResult, tmp_path: Path
) -> None:
    found = explain(learner.model, known, tmp_path / "out", top=6, rows=500)
    effects = {column.name: column.effect for column in found.importance}
    alone = {curve.name: effect_alone(curve) for curve in found.labels["label"].curves}
    # Whose product counts, and nothing else of them.
    assert alone["left"] < 0.35 * effects["left"] and alone["right"] < 0.35 * effects["right"]
    assert 0.8 * effects["bowl"] < alone["bowl"] < 1.2 * effects["bowl"]
    text = f"Effect {effects['left']:.2f} log-odds; alone, as the figure shows, {alone['left']:.2f}."
    assert text in (tmp_path / "out/explanation.html").read_text()


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
        ({"split": "dev"}, DataError, "has no split 'dev'; expected one of 'train', 'valid'"),
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
    with pytest.raises(DataError, match="is encoded differently"):
        explain(learner.model, prepared, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("mine")
    with pytest.raises(OutputError, match="which this command did not write"):
        explain(learner.model, known, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_command_explains_and_replaces(
    many: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for top in (2, 1):
        words = ["explain", *many, "--out", out, "--split", "train", "--rows", 200, "--top", top, "--seed", 1]
        assert dkan(*words, "--label", "rare", *["--overwrite"] * (top == 1), monkeypatch=monkeypatch) == 0
    plain = json.loads((out / "explanation.json").read_text())
    assert len(list((out / "curves").iterdir())) == 2 and not (out / "interactions").exists()
    assert (plain["rows"], plain["split"], list(plain["labels"]), plain["seed"]) == (200, "train", ["rare"], 1)
    capfd.readouterr()
    code = dkan("explain", *many, "--out", tmp_path / "other", "--label", "x", monkeypatch=monkeypatch)
    check(code, capfd.readouterr().err, "label must be one of rare, often, never, got 'x'")
    assert not (tmp_path / "other").exists()
