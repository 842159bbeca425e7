"""Edits of an additive model: what was asked for changes, and nothing else."""

import html
import json
import re
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest

from dkan_core import (
    ConfigError,
    DataError,
    EditResult,
    FastKANClassifier,
    OutputError,
    edit,
    evaluate,
    explain,
    explain_rows,
)
from dkan_core.data.labels import NOT_MEASURED
from dkan_core.editing.edit import _measures
from dkan_core.model.saved_model import SavedModel, model_card
from dkan_core.scoring.prepared import ScoredSplit
from tests.additive_data import make_rows
from tests.command import check, dkan
from tests.editing.effects import effects

ROWS = make_rows(2_000, seed=5)
MIDDLE = (np.array(ROWS["z"]) >= -0.5) & (np.array(ROWS["z"]) <= 0.7)
# Not in the codes that the ends are in.
BEYOND = (np.array(ROWS["z"]) < -0.6) | (np.array(ROWS["z"]) > 0.8)
KIND = np.array(ROWS["kind"].to_pylist()).astype(str)
NO_X = np.array(ROWS["x"].is_null())
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "monotone": (
        {"term": "z", "action": "monotone", "direction": "+"},
        lambda x: np.diff(x[np.argsort(ROWS["z"])]) >= -1e-6,
    ),
    "falling": (
        {"term": "count", "action": "monotone", "direction": "-"},
        lambda x: np.diff(x[np.argsort(ROWS["count"])]) <= 1e-6,
    ),
    "clip": ({"term": "kind", "action": "clip", "low": -0.2, "high": 0.1}, lambda x: np.ptp(x) <= 0.3 + 1e-6),
    "flatten": (
        {"term": "z", "action": "flatten", "start": -0.5, "stop": 0.7},
        lambda x: (np.ptp(x[MIDDLE]) < 1e-6) & (np.ptp(x[~MIDDLE]) > 1),
    ),
    "categories": (
        {"term": "kind", "action": "flatten", "values": ["a", "b"]},
        lambda x: np.ptp(x[np.isin(ROWS["kind"].to_pylist(), ["a", "b"])]) < 1e-6,
    ),
    "set": (
        {"term": "z", "action": "set", "start": -0.5, "stop": 0.7, "to": 30.0},
        lambda x: (np.ptp(x[MIDDLE]) < 1e-5) & (x[MIDDLE].min() - x[BEYOND].max() > 15) & (np.ptp(x[BEYOND]) > 1),
    ),
    "set categories": (
        {"term": "kind", "action": "set", "values": ["a", "missing"], "to": -9.0},
        lambda x: (x[KIND == "a"] < x[KIND == "b"].min() - 5) & (np.ptp(x[(KIND == "a") | (KIND == "None")]) < 1e-5),
    ),
    "set missing": (
        {"term": "x", "action": "set", "values": ["missing"], "to": 30.0},
        lambda x: (x[NO_X] > x[~NO_X].max() + 5).all() & (np.ptp(x[~NO_X]) > 1),
    ),
    "remove": ({"term": "noise", "action": "remove"}, lambda x: x == 0),
}


@pytest.mark.parametrize("cross", ["x", "×"])
def test_a_pair_has_two_names(cross: str, model: Path, tmp_path: Path) -> None:
    pair = next(name for name in effects(model, ROWS)[0] if " x " in name)
    first, second = pair.split(" x ")
    edit(model, [{"term": f"{second} {cross} {first}", "action": "remove"}], tmp_path / "edited")
    assert np.any(effects(model, ROWS)[0][pair]) and not np.any(effects(tmp_path / "edited", ROWS)[0][pair])


@pytest.mark.parametrize("name", CASES)
def test_an_edit_changes_its_term_and_no_other(name: str, model: Path, tmp_path: Path) -> None:
    asked, holds = CASES[name]
    assert isinstance(edit(model, [asked], tmp_path / "edited"), EditResult)
    before, after = (effects(each, ROWS)[0] for each in (model, tmp_path / "edited"))
    assert np.all(holds(after[asked["term"]][:, 0])) and not np.all(holds(before[asked["term"]][:, 0]))
    for term in {*before} - {asked["term"]}:
        np.testing.assert_allclose(after[term], before[term], rtol=0, atol=1e-6)


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_edits_of_columns_hold_beside_an_edit_of_their_pair(first: bool, model: Path, tmp_path: Path) -> None:
    pair = next(name for name in effects(model, ROWS)[0] if " x " in name)
    columns: list[dict[str, Any]] = [{"term": name, "action": "remove"} for name in pair.split(" x ")]
    clip: list[dict[str, Any]] = [{"term": pair, "action": "clip", "high": 0.2}]
    edit(model, columns + clip if first else clip + columns, tmp_path / "edited")
    after = effects(tmp_path / "edited", ROWS)[0]
    assert np.any(after[pair]) and not any(np.any(after[each["term"]]) for each in columns)


def test_a_curve_that_was_edited_stays_when_its_pair_is_edited_later(model: Path, tmp_path: Path) -> None:
    pair = next(name for name in effects(model, ROWS)[0] if " x " in name)
    held, free = pair.split(" x ")
    edit(model, [{"term": held, "action": "scale", "factor": 0.5, "label": "label"}], tmp_path / "first")
    edit(tmp_path / "first", [{"term": pair, "action": "clip", "high": 0.2}], tmp_path / "second")
    (first, _), (second, _) = (effects(tmp_path / name, ROWS) for name in ("first", "second"))
    np.testing.assert_allclose(second[held][:, 0], first[held][:, 0], rtol=0, atol=1e-6)
    assert np.abs(second[held][:, 1] - first[held][:, 1]).max() > 0.01, "only the label's"
    assert np.abs(second[free] - first[free]).max() > 0.01


def test_pairs_that_still_use_an_edited_column_are_named(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = next(name for name in effects(model, ROWS)[0] if " x " in name)
    column = {"term": pair.split(" x ")[0], "action": "remove"}
    edit(model, [column], tmp_path / "edited")
    assert re.search(rf"edit 1 .remove of .*: these terms still use the column: .*{pair}", caplog.text)
    caplog.clear()
    edit(model, [column, {"term": pair, "action": "remove"}], tmp_path / "both")
    assert pair not in caplog.text


def test_parts_of_the_calendar_that_stay_are_named(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {"at": pandas.Timestamp("2024-01-01") + pandas.to_timedelta(rng.integers(0, 9000, 400), "h")}
    )
    found = FastKANClassifier(model="additive", pairs="0", monotone=("at:+",), members=2, epochs=1, random_state=0)
    found.fit(frame, rng.integers(0, 2, 400))
    assert "monotone: log-odds may still rise and fall along 'at', by at.month" in caplog.text
    caplog.clear()
    found.edit([{"term": "at", "action": "remove"}])
    assert "edit 1 (remove of 'at'): these terms still use the column: at.month" in caplog.text


def test_a_range_that_ends_inside_a_code_is_told(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    flatten = {"term": "z", "action": "flatten", "start": -0.5, "stop": 0.7}
    edit(model, [flatten], tmp_path / "edited")
    (told,) = re.findall(
        r"edit 1 .flatten of 'z'.: changes all values from (\S+) to (\S+): start or stop lies", caplog.text
    )
    start, stop = map(float, told)
    assert -0.6 < start <= -0.5 and 0.7 <= stop < 0.8
    caplog.clear()
    # All in this range have numbers of their own.
    edit(model, [{"term": "count", "action": "flatten", "start": 1, "stop": 3.5}], tmp_path / "counts")
    assert "changes all values" not in caplog.text


def test_scaling_one_label_leaves_the_other_and_the_band_follows(model: Path, tmp_path: Path) -> None:
    edit(model, [{"term": "x", "action": "scale", "factor": 0.5, "label": "other"}], tmp_path / "edited")
    (before, _), (after, _) = (effects(each, ROWS) for each in (model, tmp_path / "edited"))
    np.testing.assert_allclose(after["x"], before["x"] * [1, 0.5], rtol=0, atol=1e-6)


def test_centering_after_clipping_keeps_the_mean_log_odds(data: Path, model: Path, tmp_path: Path) -> None:
    clip = {"term": "count", "action": "clip", "high": 0.0}
    edit(model, [clip], tmp_path / "clipped")
    edit(model, [clip, {"term": "count", "action": "center"}], tmp_path / "centered")
    (_, start), (clipped, lower), (centered, same) = (
        effects(each, ROWS) for each in (model, tmp_path / "clipped", tmp_path / "centered")
    )
    assert (lower < start - 0.01).all()
    np.testing.assert_allclose(same, start, rtol=0, atol=1e-6)
    np.testing.assert_allclose(clipped["count"], centered["count"], rtol=0, atol=1e-6)


def test_an_edited_model_is_a_model_and_its_card_lists_the_edits(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "edits.toml").write_text(
        '[[edit]]\nterm = "noise"\naction = "remove"\nnote = "no *cause*"\n'
        '[[edit]]\nterm = "z"\naction = "scale"\nfactor = 2\n'
    )
    out = tmp_path / "edited"
    code = dkan("edit", model, "--set", tmp_path / "edits.toml", "--out", out, "--data", data, monkeypatch=monkeypatch)
    assert code == 0 and "average precision" in capsys.readouterr().out
    card = (out / "README.md").read_text()
    assert (
        "1. remove of noise: no \\*cause\\*" in card
        and "2. scale of z, factor 2" in card
        and "| before | after |" in card
    )
    result = edit(out, [{"term": "yes", "action": "remove"}], tmp_path / "again", data=data)
    assert [each["term"] for each in result.edits] == ["noise", "z", "yes"]
    evaluated = evaluate(tmp_path / "again", data, tmp_path / "evaluated", split="valid", explain=False)
    assert evaluated.metrics["average_precision"] == pytest.approx(result.after["average_precision"])


def test_a_category_without_letters_is_named_in_the_card(model: Path) -> None:
    saved = SavedModel(model)
    done = {"term": "kind", "action": "set", "values": ["a", "", "b"], "to": 2.0}
    card = model_card(saved.config, saved.preprocessor, {**saved.metrics, "edits": [done]})
    assert "1. set of kind, values a, \\(empty\\), b, to 2.0" in card


def test_changes_of_rows_add_up_with_the_baseline(data: Path, model: Path, tmp_path: Path) -> None:
    edit(model, [{"term": "kind", "action": "set", "values": ["a"], "to": 2.0}], tmp_path / "edited")
    explain(tmp_path / "edited", data, tmp_path / "page", against=model)
    rows = json.loads((tmp_path / "page" / "explanation.json").read_text())["labels"]["label"]["against"]["rows"]
    for row in rows:
        assert {each["column"] for each in row["reasons"]} <= {"kind", "(baseline)"}
        change = sum(each["log_odds"] for each in row["reasons"])
        assert change == pytest.approx(row["log_odds"] - row["earlier_log_odds"], abs=1e-3)


def test_metrics_and_thresholds_stay_those_of_validation(data: Path, model: Path, tmp_path: Path) -> None:
    before = SavedModel(model)
    result = edit(model, [{"term": "x", "action": "remove"}], tmp_path / "edited", data=data, split="test")
    edited = SavedModel(tmp_path / "edited")
    assert result.after["average_precision"] != result.before["average_precision"]
    assert edited.thresholds == before.thresholds
    assert edited.metrics["average_precision"] == before.metrics["average_precision"]
    card = (tmp_path / "edited" / "README.md").read_text()
    assert "on the test split | before | after" in card and "validation metrics above are those before" in card
    edit(model, [{"term": "x", "action": "remove"}], tmp_path / "on-valid", data=data)
    assert SavedModel(tmp_path / "on-valid").metrics["average_precision"] != before.metrics["average_precision"]
    assert "those before the last edits" not in (tmp_path / "on-valid" / "README.md").read_text()


def test_the_page_of_rows_counts_terms_and_names_the_intercept(model: Path, tmp_path: Path) -> None:
    pq.write_table(ROWS.slice(0, 3), tmp_path / "rows.parquet")
    (first, *_) = explain_rows(model, tmp_path / "rows.parquet", tmp_path / "page", label="label", top=2)
    page = html.unescape(" ".join((tmp_path / "page" / "rows.html").read_text().split()))
    terms = len(first.reasons)
    assert f"3 rows, {terms} terms" in page and f"{terms - 2} other terms" in page
    assert "the model's intercept. The contributions of all terms" in page and "All terms" in page
    assert not {"All columns", "Strongest column", "other columns"} & {*re.findall(r"\w+ columns?", page)}


@pytest.mark.parametrize("named", ["model", ""], ids=["by its folder", "by its run"])
@pytest.mark.parametrize("where", ["local", "memory://edited-runs"])
def test_a_model_does_not_replace_itself(where: str, named: str, model: Path, tmp_path: Path) -> None:
    run = str(tmp_path / "run") if where == "local" else where
    copied, fs = f"{run}/model", fsspec.url_to_fs(run)[0]
    fs.put(f"{model}/", f"{copied}/", recursive=True)
    kept = fs.cat(f"{copied}/model.safetensors")
    with pytest.raises(OutputError, match="is the model that is edited, which stays as it is"):
        edit(f"{run}/{named}", [{"term": "x", "action": "remove"}], copied, overwrite=True)
    assert fs.cat(f"{copied}/model.safetensors") == kept


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[[edit]]\nterm = "age"\naction = "remove"',
            "edit 1 .remove of 'age'.: the model has no such term; expected one of 'x'",
        ),
        ('[[edit]]\nterm = "NOISE"\naction = "remove"', "did you mean 'noise'"),
        ('[[edit]]\nterm = "q × r"\naction = "remove"', "the model has no such term; expected one of '[^' ]+ x "),
        ('[[edit]]\nterm = "noisy"\naction = "remove"', "did you mean 'noise'"),
        ('[[edit]]\nterm = "x"\naction = "delete"', r"edit 1: action: Input should be 'monotone', 'clip'"),
        (
            '[[edit]]\nterm = "x"\naction = "remove"\nwhy = 1',
            "edit 1: unknown 'why'; expected some of term, action, label",
        ),
        (
            '[[edit]]\nterm = "count"\naction = "flatten"\nstart = 500',
            "no row of the training data has values from 500 on; nearly all are from",
        ),
        (
            '[[edit]]\nterm = "count"\naction = "flatten"\nstart = 1e300',
            "no row of the training data has values from 1e.300 on; nearly all are from",
        ),
        ('[edit]\nterm = "x"', r"it has one \[edit\]; write \[\[edit\]\]"),
        ('[[edits]]\nterm = "x"', r"expected \[\[edit\]\] tables, each with a term and an action; it has edits"),
        ("edit = []", "there is no edit"),
        ('[[edit]]\nterm = "x"\naction = "scale"', "scale needs factor"),
        ('[[edit]]\nterm = "x"\naction = "remove"\nfactor = 2.0', "remove takes no factor"),
        ('[[edit]]\nterm = "x"\naction = "set"\nvalues = ["missing"]', "set needs to"),
        (
            '[[edit]]\nterm = "x"\naction = "set"\nto = 1.0\nstart = 2024-01-01',
            "start: expected a number, got '2024-01-01'$",
        ),
        (
            '[[edit]]\nterm = "x"\naction = "set"\nto = 1.0\nstart = 08:00:30',
            "start: expected a number, got '08:00:30'; times of day are in seconds: 28830",
        ),
        (
            '[[edit]]\nterm = "x"\naction = "set"\nto = 1.0\nvalues = ["high"]',
            "give start or stop, or the value 'missing'",
        ),
        ('[[edit]]\nterm = "kind"\naction = "monotone"\ndirection = "+"', "only a numeric column can be monotone"),
        ('[[edit]]\nterm = "kind"\naction = "flatten"\nvalues = ["q"]', "'q' has no value of its own; expected one of"),
        (
            '[[edit]]\nterm = "x"\naction = "remove"\nlabel = "no"',
            "no label 'no'; its labels are label, other",
        ),
        (
            '[[edit]]\nterm = "x"\naction = "scale"\nfactor = 1e300',
            "edit 1 .scale of 'x'.: factor 1e.300 makes log-odds exceed the limit",
        ),
        (
            '[[edit]]\nterm = "kind"\naction = "clip"\nlow = 1e39',
            "edit 1 .clip of 'kind'.: low 1e.39 makes log-odds exceed",
        ),
        (
            '[[edit]]\nterm = "x"\naction = "scale"\nfactor = 1e308',
            "edit 1 .scale of 'x'.: factor 1e.308 makes log-odds exceed",
        ),
        (
            '[[edit]]\nterm = "kind"\naction = "clip"\nlow = 1e308',
            "edit 1 .clip of 'kind'.: low 1e.308 makes log-odds exceed",
        ),
        (
            '[[edit]]\nterm = "kind"\naction = "flatten"\nvalues = []',
            "edit 1: values: there is none; expected at least",
        ),
        (
            '[[edit]]\nterm = "count"\naction = "flatten"\nstart = 2.4\nstop = 2.6',
            "edit 1 .flatten of 'count'.: no row of the training data has values from 2.4 to 2.6; nearly all are from",
        ),
        ("[[edit", "is not valid TOML"),
        ("x = " + "[" * 100_000, "is nested too deeply to be read"),
        ("", "it is empty"),
    ],
)
def test_a_wrong_edit_is_one_message(
    text: str,
    message: str,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "edits.toml").write_text(text)
    code = dkan("edit", model, "--set", tmp_path / "edits.toml", "--out", tmp_path / "out", monkeypatch=monkeypatch)
    check(code, capsys.readouterr().err, message)
    assert not (tmp_path / "out").exists()


def test_a_classifier_is_edited_as_its_model_folder_is(tmp_path: Path) -> None:
    frame = make_rows(400, seed=3).to_pandas()
    features, classes = frame[["x", "z", "kind"]], frame["label"].map({0: "no", 1: "yes"})
    model = FastKANClassifier(model="additive", pairs="0", members=2, epochs=1, random_state=0).fit(features, classes)
    before = model.explain(features)
    edits: list[dict[str, Any]] = [
        {"term": "z", "action": "remove", "note": "leaks"},
        {"term": "x", "action": "scale", "factor": 2},
    ]
    edited = model.edit(edits)
    after = edited.explain(features)
    assert (after["z"] == 0).all() and (before["z"] != 0).any()
    np.testing.assert_allclose(after["x"], 2 * before["x"], rtol=1e-5, atol=1e-6)
    pandas.testing.assert_frame_equal(model.explain(features), before)
    model.save(tmp_path / "model")
    edit(tmp_path / "model", edits, tmp_path / "edited")
    loaded = FastKANClassifier.load(tmp_path / "edited")
    assert np.array_equal(loaded.predict_proba(features), edited.predict_proba(features))
    assert loaded.classes_.tolist() == ["no", "yes"] and loaded.metrics_["edits"] == edited.metrics_["edits"]
    edited.save(tmp_path / "saved")
    assert "1. remove of z: leaks" in (tmp_path / "saved" / "README.md").read_text()
    (tmp_path / "edits.toml").write_text('[[edit]]\nterm = "z"\naction = "clip"\nhigh = 0.0\n')
    assert [each["action"] for each in edited.edit(tmp_path / "edits.toml").metrics_["edits"]] == [
        "remove",
        "scale",
        "clip",
    ]


def test_quality_that_earlier_edits_had_is_not_that_of_later_ones(data: Path, model: Path, tmp_path: Path) -> None:
    remove = [{"term": "noise", "action": "remove"}]
    edit(model, remove, tmp_path / "measured", data=data)
    assert "edits_after" in SavedModel(tmp_path / "measured").metrics
    edit(tmp_path / "measured", remove, tmp_path / "unmeasured")
    assert "edits_after" not in SavedModel(tmp_path / "unmeasured").metrics


def test_labels_without_a_measured_row_are_in_no_mean() -> None:
    labels_NL = np.array([[1, NOT_MEASURED], [0, NOT_MEASURED]], np.uint8)
    log_odds_NL = np.array([[0.0, 9.0], [0.0, 9.0]], np.float32)
    found = _measures(ScoredSplit(labels_NL, log_odds_NL, None), ["y", "none"])
    assert found["mean_probability"] == found["prevalence"] == 0.5


def test_only_an_additive_model_is_edited(trained: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no terms to edit; only models trained with model additive can be edited"):
        edit(trained.model, [{"term": "x", "action": "remove"}], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"nothing.toml: cannot be read"):
        edit(trained.model, tmp_path / "nothing.toml", tmp_path / "out")
    with pytest.raises(DataError, match="FastKANClassifier: has no terms to edit"):
        FastKANClassifier.load(trained.model).edit([{"term": "x", "action": "remove"}])


def test_edits_in_python_are_a_list_and_take_numbers_of_numpy(model: Path, tmp_path: Path) -> None:
    numbers = {"factor": np.float32(0.5), "term": "x", "action": "scale"}
    assert edit(model, [numbers], tmp_path / "edited").edits[0]["factor"] == 0.5
    for wrong in ({"term": "x", "action": "remove"}, None):
        with pytest.raises(ConfigError, match="expected a list of edits, got one"):
            edit(model, wrong, tmp_path / "out")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="edit 1: expected a term, an action and so on, got '"):
        edit(model, ["x"], tmp_path / "out")  # type: ignore[list-item]
