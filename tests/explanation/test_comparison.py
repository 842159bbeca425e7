"""Two models side by side: their curves, the columns that one of them alone reads, and the rows that moved."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dkan_core import DataError, PrepareConfig, TrainConfig, TrainResult, evaluate, explain, prepare, train
from dkan_core.explanation.curves import Curve, Point
from dkan_core.explanation.figures.curves import draw_curve, earlier_marks
from dkan_core.explanation.grid import Role
from tests.command import check, dkan
from tests.explanation.known import make_source
from tests.report.test_report import check_page


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a model on other rows, without a column that matters, and with one that is gone today."""
    folder = tmp_path_factory.mktemp("earlier")
    table = make_source(2000, seed=5)[0]
    table = table.append_column("gone", table["bowl"]).drop_columns("bowl")
    pq.write_table(table, folder / "rows.parquet")
    prepare(folder / "rows.parquet", folder / "data", PrepareConfig(label=("label",)))
    config = TrainConfig(epochs=2, hidden=(4,), members=2, workers=1, device="cpu", batch_size=128, blend=False)
    return Path(train(folder / "data", folder / "run", config).model)


def learned(out: Path, label: str = "label") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "explanation.json").read_text())["labels"][label]
    return found


@pytest.fixture(scope="module")
def compared(
    learner: TrainResult, known: Path, earlier: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str]:
    out = tmp_path_factory.mktemp("compared") / "out"
    explain(learner.model, known, out, rows=600, top=7, against=earlier)
    return learned(out), (out / "explanation.html").read_text()


def test_columns_of_one_model_alone_are_named(compared: tuple[dict[str, Any], str]) -> None:
    found, page = compared[0]["against"], compared[1]
    assert (found["only_here"], found["only_there"]) == (["bowl"], ["gone"])
    effects = {column["name"]: (column["effect"], column["earlier_effect"]) for column in found["importance"]}
    assert effects["bowl"][1] is None and effects["gone"][0] is None
    assert all(None not in both for name, both in effects.items() if name not in ("bowl", "gone"))
    changes = [abs((now or 0) - (before or 0)) for now, before in effects.values()]
    assert changes == sorted(changes, reverse=True)
    assert "does not read: bowl." in page and "missing in every row here: gone." in page


def test_curves_of_both_lie_on_the_same_axes(compared: tuple[dict[str, Any], str]) -> None:
    found, page = compared
    ours = {curve["name"]: curve for curve in found["curves"]}
    theirs = {curve["name"]: curve for curve in found["against"]["curves"]}
    assert {*theirs} == {*ours} - {"bowl"}
    figures = check_page(page)
    dashed = [figure for figure in figures if "Effect of rising:" in figure and "stroke-dasharray" in figure]
    assert len(dashed) == 1 and "var(--muted)" in dashed[0]
    assert "in the earlier model" in page and "Dashed, and gray dots: the earlier model." in page
    # The earlier one learned little in its two epochs.
    width = {name: np.ptp([point["mean"] for point in curve["points"]]) for name, curve in theirs.items()}
    assert width["rising"] < np.ptp([point["mean"] for point in ours["rising"]["points"]])


def test_rows_that_moved_have_both_scores_and_reasons(
    compared: tuple[dict[str, Any], str], learner: TrainResult, known: Path, earlier: Path, tmp_path: Path
) -> None:
    rows = compared[0]["against"]["rows"]
    changes = [abs(row["log_odds"] - row["earlier_log_odds"]) for row in rows]
    assert len(rows) == 10 and changes == sorted(changes, reverse=True) and changes[-1] > 0
    assert compared[0]["against"]["mean_change"] < changes[-1]
    for row in rows:
        assert row["probability"] == pytest.approx(1 / (1 + np.exp(-row["log_odds"])), abs=1e-6)
        assert len(row["reasons"]) == 3 and row["reasons"][0]["log_odds"] != 0
        sizes = [abs(reason["log_odds"]) for reason in row["reasons"]]
        assert sizes == sorted(sizes, reverse=True)
    # A row's reasons are differences of what each model gives for it.
    explain(learner.model, known, tmp_path / "same", rows=600, top=2, against=learner.model)
    same = learned(tmp_path / "same")["against"]
    assert same["mean_change"] == 0 and not any(row["reasons"] for row in same["rows"])
    assert same["only_here"] == same["only_there"] == []
    assert [column["effect"] for column in same["importance"]] == [
        column["earlier_effect"] for column in same["importance"]
    ]


def test_report_shows_the_previous_model_s_curves(
    learner: TrainResult, known: Path, earlier: Path, tmp_path: Path
) -> None:
    evaluate(learner.model, known, tmp_path / "eval", previous=learner.model)
    page = (tmp_path / "eval/report.html").read_text()
    assert "The rows whose log-odds changed the most" in page
    # One of other columns is not compared at all, as its metrics are not.
    evaluate(learner.model, known, tmp_path / "other", previous=earlier)
    assert "whose log-odds changed the most" not in (tmp_path / "other/report.html").read_text()


def test_labels_that_the_earlier_model_does_not_know_are_named(
    many: tuple[Path, Path],
    learner: TrainResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    message = "was trained for the labels label, and has none called rare, often, never"
    with pytest.raises(DataError, match=re.escape(message)):
        explain(*many, tmp_path / "out", against=learner.model)
    assert not (tmp_path / "out").exists()
    explain(*many, tmp_path / "labels", against=many[0], top=1, rows=100)
    for name in ("rare", "often", "never"):
        assert learned(tmp_path / "labels", name)["against"]["mean_change"] == 0
    words = ["explain", many[0], "--rows", many[0].parent / "rows.parquet", "--against", many[0]]
    code = dkan(*words, "--out", tmp_path / "rows", monkeypatch=monkeypatch)
    check(code, capfd.readouterr().err, "against: compares models on prepared data")


def test_label_that_was_added_is_explained_alone(
    many: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows, config = many[0].parent / "rows.parquet", TrainConfig(epochs=1, hidden=(4,), device="cpu", strategy="single")
    prepare(rows, tmp_path / "fewer", PrepareConfig(label=("often",), split_column="split", drop=("rare", "never")))
    earlier = train(tmp_path / "fewer", tmp_path / "run", config).model
    with caplog.at_level("WARNING"):
        found = explain(*many, tmp_path / "out", against=earlier, top=1, rows=100)
    assert "was trained for the labels often, and has none called rare, never: not compared" in caplog.text
    assert [name for name, each in found.labels.items() if each.against is not None] == ["often"]


def test_frequent_values_of_the_earlier_model_are_dots_beside_those_of_today() -> None:
    def point(value: float, mean: float, role: Role = "curve") -> Point:
        return Point(name=f"{value:g}", role=role, value=value, mean=mean, low=mean, high=mean, rows=50)

    def curve(mark: float) -> Curve:
        return Curve(
            name="x",
            kind="numeric",
            shape="curve",
            scale="linear",
            scale_width=1.0,
            points=[*(point(float(value), 0.1 * value) for value in range(10)), point(3.0, mark, "mark")],
            density={"edges": [0.0, 5.0, 10.0], "counts": [300.0, 250.0]},
            hidden_rows=0,
            effect_rows=500,
        )

    now, then, same = curve(2.0), curve(-1.0), curve(0.3)
    assert [each.mean for each in earlier_marks(now, then)] == [-1.0]
    assert [each.mean for each in earlier_marks(now, same)] == [0.3], "as it stands out today"
    assert not earlier_marks(same, same)
    drawn = draw_curve(now, "label", then).svg
    assert "in the earlier model -1.000" in drawn and "in the earlier model +0.500" in drawn
