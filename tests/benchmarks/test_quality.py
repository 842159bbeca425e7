"""The quality benchmark: fair splits, its arithmetic by hand, and real fits in subprocesses; no comparator needed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score

from benchmarks.quality import report, runner, scores, summary
from benchmarks.quality.__main__ import main
from benchmarks.quality.data import DataSet, Encoder, find_files, stage
from benchmarks.quality.models import MODELS, Budget, Model
from benchmarks.quality.processes import run_limited
from benchmarks.timing import cpu_seconds
from dkan_core import DataError
from tests import warm_python

ROOT = Path(__file__).parents[2]
LABELS = ("label", "label_*")
ROWS = 400


def rows(**more: Any) -> pa.Table:
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    site = rng.choice(np.array(["left", "right", None]), ROWS)
    columns = {
        "x": pa.array(x, mask=rng.random(ROWS) < 0.1),
        "bit": pa.array(rng.integers(0, 2, ROWS, dtype=np.uint8)),
        "site": pa.array(site.tolist(), pa.string()),
        "label": pa.array((x + (site == "left") + rng.normal(size=ROWS) > 0.7).astype(np.int8)),
    }
    return pa.table({**columns, **more})


def staged(table: pa.Table, tmp_path: Path) -> DataSet:
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=150)
    return stage(tmp_path / "rows.parquet", tmp_path / "staged", LABELS)


def documented_split(key: np.ndarray) -> np.ndarray:
    """Return 0 train, 1 valid, 2 test by splitmix64, written out once more."""
    with np.errstate(over="ignore"):
        z = key.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bucket = (z ^ (z >> np.uint64(31))) % np.uint64(10)
    return np.where(bucket < 7, 0, np.where(bucket == 7, 1, 2))


@pytest.mark.parametrize("by", ["row", "group_id", "split"])
def test_splits_are_the_documented_ones(by: str, tmp_path: Path) -> None:
    number = np.arange(ROWS)
    table = rows(number=pa.array(number))
    expected = documented_split(number)
    if by == "group_id":
        table = table.append_column("group_id", pa.array(number // 3))
        expected = documented_split(number // 3)
    if by == "split":
        expected = number % 3
        table = table.append_column("split", pa.array(np.array(["train", "valid", "test"])[expected].tolist()))
    data = staged(table, tmp_path)
    for index, split in enumerate(("train", "valid", "test")):
        part = data.read(split)
        assert part["number"].to_pylist() == np.flatnonzero(expected == index).tolist(), "same rows, same order"
        assert set(part["split"].to_pylist()) == {split}
        assert data.rows[split] == len(part)
    assert data.numeric == ("x", "bit", "number") and data.categorical == ("site",)


def test_labels_are_found_by_name_and_null_is_not_measured(tmp_path: Path) -> None:
    second = np.arange(ROWS) % 3
    table = rows(label_second=pa.array(second.astype(np.int8) % 2, mask=second == 2))
    data = staged(table, tmp_path)
    assert data.labels == ("label", "label_second")
    labels = data.labels_NL(data.read("train"))
    assert labels.shape == (data.rows["train"], 2)
    assert set(np.unique(labels[:, 1])) == {0, 1, 255}


def test_encoder_codes_what_train_does_not_have_as_missing(tmp_path: Path) -> None:
    data = staged(rows(), tmp_path)
    encoder = Encoder(data, data.read("train"))
    table = pa.table({"site": ["left", None, "elsewhere"], "x": [1.0, None, float("inf")], "bit": [0, 1, None]})
    assert encoder.codes_NC(table)[:, 0].tolist() == [1, 0, 0]
    np.testing.assert_array_equal(encoder.numeric_NF(table), [[1.0, 0.0], [np.nan, 1.0], [np.nan, np.nan]])


def test_wrong_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such Parquet file"):
        find_files([tmp_path / "absent.parquet"])
    with pytest.raises(DataError, match="no column is called label or label_"):
        staged(rows().drop_columns("label"), tmp_path)
    with pytest.raises(DataError, match=r"train split: label 'label' holds \[0\]; expected both 0 and 1"):
        staged(rows().set_column(3, "label", pa.array(np.zeros(ROWS, np.int8))), tmp_path)
    with pytest.raises(DataError, match=r"train split: label 'label' holds \[0, 1, 2\]"):
        staged(rows().set_column(3, "label", pa.array(np.arange(ROWS, dtype=np.int64) % 3)), tmp_path)
    (tmp_path / "other").mkdir()
    pq.write_table(rows(), tmp_path / "other" / "rows.parquet")
    with pytest.raises(DataError, match=r"two files are called rows\.parquet"):
        find_files([tmp_path / "rows.parquet", tmp_path / "other"])


def test_calibration_error_is_the_one_by_hand() -> None:
    labels = np.array([0, 0, 1, 1, 1, 255], np.uint8)
    probabilities = np.array([0.1, 0.3, 0.2, 0.8, 0.6, 0.99])
    # three bins by rank: {0.1}, {0.2, 0.3}, {0.6, 0.8}
    expected = (1 * abs(0.1 - 0) + 2 * abs(0.25 - 0.5) + 2 * abs(0.7 - 1.0)) / 5
    assert scores.calibration_error(labels, probabilities, bins=3) == pytest.approx(expected)
    assert scores.calibration_error(labels[:2], np.zeros(2)) == 0


def test_prevalence_is_that_of_the_labels_with_an_ap() -> None:
    labels = np.array([[0, 0], [1, 0], [0, 0], [0, 255]], np.uint8)
    found = scores.score(labels, np.array([[0.1, 0.2], [0.9, 0.1], [0.2, 0.1], [0.3, 0.1]]), ["both", "one"])
    assert found["average_precision"] == 1.0 and found["prevalence"] == 0.25
    assert found["labels"] == {"both": 1.0, "one": None}


def test_bootstrap_is_average_precision_with_weights() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 200).astype(np.uint8)
    values = np.round(rng.random(200), 1)  # many equal scores
    unmeasured = labels.copy()
    unmeasured[::5] = 255
    weights = rng.integers(0, 4, 200).astype(np.float64)
    for column in (labels, unmeasured):
        kept = column != 255
        expected = average_precision_score(column[kept], values[kept], sample_weight=weights[kept])
        assert scores._WeightedAP(column, values)(weights) == pytest.approx(expected)


def test_bootstrap_pairs_models_and_averages_runs() -> None:
    rng = np.random.default_rng(1)
    labels = (rng.random((300, 2)) < 0.3).astype(np.uint8)
    good, poor = np.clip(labels * 0.4 + rng.random((300, 2)) * 0.6, 0, 1), rng.random((300, 2))
    found = scores.bootstrap(labels, {"good": [good], "again": [good], "both": [good, poor], "poor": [poor]})
    assert found["good"].shape == (1000,)
    np.testing.assert_array_equal(found["good"], found["again"])
    np.testing.assert_allclose(found["both"], (found["good"] + found["poor"]) / 2)
    low, high = scores.interval(found["good"])
    point = np.mean([average_precision_score(labels[:, label], good[:, label]) for label in range(2)])
    assert low < point < high
    assert scores.interval(found["good"] - found["poor"])[0] > 0


def row(model: str, ap: float | None, cpu: float = 1.0, **more: Any) -> summary.Row:
    if ap is None:
        return {"model": model, "status": runner.FAILED, "problems": ["seed 0: exit code 1: boom"], **more}
    known = {"roc_auc": 0.8, "log_loss": 0.3, "calibration_error": 0.01, "prevalence": 0.1, "spread": None}
    figures = {"cpu_seconds": cpu, "rows_per_second": 1000.0, "rounds": 7.0, "capped": False, "seeds": 1}
    band = {"interval": (ap - 0.1, ap + 0.1), "difference": None}
    return {
        "model": model,
        "status": runner.OK,
        "problems": [],
        "average_precision": ap,
        **known,
        **figures,
        **band,
        **more,
    }


TABLES = [
    [row("dkan", 0.5, 4.0), row("lightgbm", 0.3, 2.0), row("logistic", 0.3, 1.0)],
    [row("dkan", 0.4, 1.0), row("lightgbm", 0.7, 2.0), row("logistic", None)],
]


def test_ranks_share_ties_and_put_failures_last() -> None:
    assert summary.ranks(TABLES[0]) == {"dkan": 1.0, "lightgbm": 2.5, "logistic": 2.5}
    assert summary.ranks(TABLES[1]) == {"dkan": 2.0, "lightgbm": 1.0, "logistic": 3.0}
    absent = [*TABLES[0], row("tabm", None, status=runner.NOT_INSTALLED)]
    assert summary.ranks(absent) == summary.ranks(TABLES[0])


def test_normalised_ap_is_1_for_the_best_and_0_for_the_prevalence() -> None:
    assert summary.normalised(TABLES[0]) == pytest.approx({"dkan": 1.0, "lightgbm": 0.5, "logistic": 0.5})
    assert summary.normalised(TABLES[1]) == pytest.approx({"dkan": 0.5, "lightgbm": 1.0, "logistic": 0.0})
    assert summary.normalised([row("dkan", 0.1)]) == {}, "no model is better than a random order"


def test_summary_over_sets_is_the_one_by_hand() -> None:
    found = {entry["model"]: entry for entry in summary.over_sets(TABLES)}
    assert list(found) == ["dkan", "lightgbm", "logistic"], "best rank first"
    assert found["dkan"]["rank"] == 1.5 and found["logistic"]["rank"] == 2.75
    assert found["dkan"]["normalised"] == pytest.approx(0.75)
    assert found["dkan"]["cpu_ratio"] == pytest.approx(1.0), "geometric mean of 2 and 1/2"
    assert found["logistic"]["cpu_ratio"] == 0.5 and found["logistic"]["sets"] == 1


def test_sets_are_won_tied_and_lost_by_the_interval_of_the_difference() -> None:
    def against(value: float, low: float, high: float) -> summary.Row:
        return row("lightgbm", 0.5, difference={"value": value, "interval": (low, high)})

    rows = [against(-0.3, -0.4, -0.1), against(-0.1, -0.2, 0.1), against(0.1, 0.0, 0.2), against(0.1, 0.05, 0.2)]
    found = summary.against_reference(rows)
    assert (found["wins"], found["ties"], found["losses"]) == (1, 2, 1)
    assert found["difference"] == pytest.approx(-0.05)
    assert found["difference_error"] == pytest.approx(0.0957, abs=1e-4), "sample deviation 0.1915 over the root of 4"
    assert summary.against_reference([])["difference"] is None, "the reference itself, or a model without a result"
    assert summary.against_reference(rows[:1])["difference_error"] is None


def test_seeds_of_a_model_become_one_row() -> None:
    cells = {
        model: [
            {
                "status": runner.OK,
                "metrics": {**dict.fromkeys(("roc_auc", "log_loss", "calibration_error", "prevalence"), 0.2)}
                | {"average_precision": ap},
                "cpu_seconds": 2.0 + seed,
                "rows_per_second": 10.0,
                "rounds": [4, 6],
                "capped": seed == 1,
            }
            for seed, ap in enumerate(aps)
        ]
        for model, aps in {"dkan": (0.4, 0.6), "logistic": (0.3, 0.3)}.items()
    }
    cells["logistic"].append({"status": runner.FAILED, "seed": 2, "reason": "exit code 1: boom"})
    resampled = {"dkan": np.linspace(0.4, 0.6, 101), "logistic": np.linspace(0.4, 0.6, 101) - 0.25}
    found = summary.set_rows(cells, resampled)
    summary.add_differences(found)
    dkan, logistic = found
    assert dkan["average_precision"] == 0.5 and dkan["spread"] == pytest.approx(0.02**0.5)
    assert dkan["cpu_seconds"] == 2.5 and dkan["rounds"] == 5 and dkan["capped"]
    assert dkan["interval"] == pytest.approx((0.405, 0.595)) and dkan["difference"] is None
    assert logistic["difference"]["value"] == pytest.approx(-0.2)
    assert logistic["difference"]["interval"] == pytest.approx((-0.25, -0.25)), "paired, resample by resample"
    assert logistic["problems"] == ["seed 2: exit code 1: boom"] and logistic["seeds"] == 2
    dkan, logistic = summary.set_rows(cells, resampled, "logistic")
    summary.add_differences([dkan, logistic], "logistic")
    assert logistic["difference"] is None and dkan["difference"]["value"] == pytest.approx(0.2)
    assert dkan["difference"]["interval"] == pytest.approx((0.25, 0.25))


def test_results_become_tables_and_a_picture() -> None:
    data = {
        "name": "tiny",
        "labels": ["label"],
        "numeric": ["x"],
        "categorical": [],
        "rows": {"train": 7000, "valid": 1000, "test": 2000},
        "split_by": "hash of the row number",
    }
    difference = {"value": -0.2, "interval": (-0.3, 0.1)}
    table = [*TABLES[0][:1], row("lightgbm", 0.3, 2.0, capped=True, difference=difference), row("logistic", None)]
    entries = [{"data": data, "rows": table}, {"data": {**data, "name": "other"}, "rows": TABLES[1]}]
    facts = {
        "machine": "a machine, 2 of 4 cores usable",
        "settings": {"seeds": 1, "threads": 2, "max_cpu_seconds": 600.0},
        "versions": {"torch": "2.9"},
    }
    page = report.markdown(entries, summary.over_sets([table, TABLES[1]]), facts)
    lines = page.splitlines()
    assert "| dkan | **0.5000** | 0.400 to 0.600 | - | - | 0.8000 | 0.3000 | 0.0100 | 4 | 1,000 | 7 |" in lines
    assert any(
        line.startswith(r"| lightgbm | 0.3000\* | 0.200 to 0.400 | -0.2000 (-0.300 to +0.100) |") for line in lines
    )
    assert "| logistic | failed | - | - | - | - | - | - | - | - | - |" in lines
    assert "- logistic: seed 0: exit code 1: boom" in lines
    assert "7,000/1,000/2,000 rows (train/valid/test, by hash of the row number)" in page
    assert "2 of 4 cores usable" in page and "torch 2.9" in page and "at most 600." in page
    assert "| dkan | 2 | 1.50 | 0.750 | - | - | 1.00 |" in lines
    assert "| lightgbm | 2 | 1.50 | 0.750 | 0/1/0 | -0.2000 | 1.00 |" in lines
    from benchmarks.quality.picture import draw

    assert draw(entries).startswith(b"\x89PNG")
    page = report.markdown(entries, summary.over_sets([table, TABLES[1]]), {**facts, "reference": "lightgbm"})
    assert "minus lightgbm" in page and "lightgbm wins/ties/losses" in page and "minus dkan" not in page


def test_all_processes_of_a_fit_count_and_end(tmp_path: Path) -> None:
    spin = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    log, never = tmp_path / "log", tmp_path / "never"
    code, killed = run_limited(
        [sys.executable, "-c", spin], environment=os.environ, log=log, cpu_seconds=0.5, until=never
    )
    assert killed and code < 0
    code, killed = run_limited(
        [sys.executable, "-c", "print('done')"], environment=os.environ, log=log, cpu_seconds=60, until=never
    )
    assert (code, killed) == (0, False) and log.read_text() == "done\n"


def test_budget_is_shared_by_what_is_still_to_do() -> None:
    unlimited, spent, ample = Budget(None), Budget(1e-6), Budget(cpu_seconds() + 1000)
    assert not unlimited.share(1)() and unlimited.left() is None
    assert not ample.share(2)() and not ample.ran_out
    assert spent.share(2)() and spent.ran_out and spent.left() == 0


def benchmark(out: Path, source: Path, models: str, **options: Any) -> dict[str, Any]:
    """Run the command in this process; the fits are subprocesses all the same."""
    settings = {"label": ",".join(LABELS), "seeds": 1, "max_cpu_seconds": 120.0, "threads": 2, "force": False}
    main([source], out=out, models=models, **{**settings, **options})
    content: dict[str, Any] = json.loads((out / "results.json").read_text())
    return content


@pytest.mark.slow
def test_whole_run_then_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = tmp_path / "sets", tmp_path / "out"
    folder.mkdir()
    pq.write_table(rows(), folder / "tiny.parquet")
    command = ["-m", "benchmarks.quality", folder, "--models", "logistic,dkan", "--seeds", "1"]
    done = warm_python.run([*command, "--threads", "2", "--max-cpu-seconds", "120", "--out", out], ROOT)
    assert done.returncode == 0, done.stderr
    content = json.loads((out / "results.json").read_text())
    found = {cell["model"]: cell for cell in content["cells"].values()}
    for model in ("logistic", "dkan"):
        assert found[model]["status"] == "ok", found[model]
        assert found[model]["metrics"]["average_precision"] > found[model]["metrics"]["prevalence"] + 0.1
        assert found[model]["cpu_seconds"] > 0 and not found[model]["capped"]
    assert "| logistic |" in (out / "results.md").read_text()
    assert (out / "results.png").stat().st_size > 10_000
    assert not list(out.glob("fit-*")), "nothing of a fit is left but its result"

    # what is there is not fitted again; what cannot be fitted is a cell, and no more
    monkeypatch.setitem(MODELS, "absent", Model("logistic", "fit_logistic", ("no_such_module",)))
    monkeypatch.setitem(MODELS, "broken", Model("logistic", "fit_logistic", ()))
    again = benchmark(out, folder, "logistic,dkan,absent,broken")
    assert {key: again["cells"][key] for key in content["cells"]} == content["cells"]
    states = {entry["model"]: entry for entry in again["sets"][0]["rows"]}
    assert states["absent"]["status"] == "not installed"
    assert states["absent"]["problems"] == ["seed 0: no_such_module not installed"]
    assert states["broken"]["status"] == "failed", "the subprocess does not know this model"
    assert states["broken"]["problems"] == ["seed 0: exit code 1: KeyError: 'broken'"]

    def refused(*_: Any) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr("benchmarks.quality.__main__.run_fit", refused)
    benchmark(out, folder, "logistic,dkan")
    for options in ({"force": True}, {"max_cpu_seconds": 60.0}):
        with pytest.raises(AssertionError, match="fitted again"):
            benchmark(out, folder, "logistic", **options)


def test_mistakes_end_with_code_2(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import typer

    for sources, models, message in (
        (tmp_path / "absent.parquet", "logistic", "no such Parquet file"),
        (tmp_path, "logistik", "unknown model"),
    ):
        with pytest.raises(typer.Exit) as stopped:
            benchmark(tmp_path / "out", sources, models)
        assert stopped.value.exit_code == 2
        assert message in caplog.text
